"""The scheduler's only file: what runs have spent, their budgets of money and their deadlines, in SQLite in the state
folder.

Written after each batch of decisions and before it is acknowledged, so that a report whose spend is lost comes again,
and one whose spend is written counts once: the turns of the last hour are kept beside the sums. Must not decide.
"""

from __future__ import annotations

import pathlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator

from immutables import Map

from common.ids import Caller, RunId, TurnId
from scheduler.budgets.spend import FORGOTTEN_S, RUNS_REMEMBERED, UNLIMITED_FORGOTTEN_S, Recent, RunKey, Spend, Spends
from scheduler.effects import RecordSpend

FILE = "scheduler-spend.sqlite3"
TURNS_KEPT_S = 3600.0
TIDIED_S = 600.0
"""How often what is forgotten is deleted."""
BUSY_S = 2.0

_VERSION = 1
"""Of the schema, in the file's `user_version`. Files of version 0 know no callers; some of them no deadlines."""
_OF_NOBODY = """
CREATE TABLE run_of_nobody (
    id TEXT PRIMARY KEY, limit_usd REAL NOT NULL, settled_usd REAL NOT NULL, at REAL NOT NULL,
    deadline REAL NOT NULL DEFAULT 9e999
)
"""
"""Runs of a file of version 0. Infinity is no limit, and no deadline."""
_SCHEMA = (
    """CREATE TABLE run (
        id TEXT NOT NULL, caller TEXT NOT NULL, limit_usd REAL NOT NULL, settled_usd REAL NOT NULL, at REAL NOT NULL,
        deadline REAL NOT NULL, PRIMARY KEY (id, caller)
    )""",
    "CREATE TABLE IF NOT EXISTS turn (id TEXT PRIMARY KEY, at REAL NOT NULL)",
    "CREATE INDEX IF NOT EXISTS turn_at ON turn (at)",
    f"PRAGMA user_version = {_VERSION}",
)
_WRITE = """
INSERT INTO run VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id, caller) DO UPDATE SET limit_usd = excluded.limit_usd,
    settled_usd = max(settled_usd, excluded.settled_usd), at = excluded.at, deadline = excluded.deadline
"""
_IS_LIMITED = "(limit_usd < 9e999 OR deadline < 9e999)"


class SpendLedger:
    """One open file; its dates are seconds since 1970, those of the scheduler are on its own `clock`."""

    def __init__(self, folder: pathlib.Path, clock: Callable[[], float]) -> None:
        """Opens the ledger in `folder`, which is made where it is missing. Raises OSError or sqlite3.Error."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._clock = clock
        self._tidied_at = 0.0
        self._database = sqlite3.connect(folder / FILE, timeout=BUSY_S, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(
            "PRAGMA synchronous=NORMAL"
        )  # a killed process loses nothing; a power cut, the last moments
        self._bring_up_to_date()

    def _bring_up_to_date(self) -> None:
        """Makes the tables of an empty file, and those of an earlier version into ours, all or none. Raises
        sqlite3.Error where a later version made it."""
        execute = self._database.execute
        with self._database:
            execute("BEGIN IMMEDIATE")
            (version,) = execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                raise sqlite3.DatabaseError(f"its schema has version {version}, the latest that is known is {_VERSION}")
            if version == _VERSION:
                return
            execute(_OF_NOBODY)
            columns = [column[1] for column in execute("PRAGMA table_info(run)")]
            if columns:
                known = ", ".join(columns)
                execute(f"INSERT INTO run_of_nobody ({known}) SELECT {known} FROM run")  # noqa: S608
                execute("DROP TABLE run")
            for statement in _SCHEMA:
                execute(statement)

    def load(self) -> Spends:
        """What is known of runs and turns that are not forgotten; what is, is deleted."""
        now = time.time()
        self._tidy(now)
        ahead_s = self._clock() - now
        of_nobody = self._spends("id", "run_of_nobody", ahead_s)
        return Spends(
            Recent(self._runs(_IS_LIMITED, ahead_s)),
            Recent(self._runs(f"NOT {_IS_LIMITED}", ahead_s)),
            Recent(Map({TurnId(turn_id): True for (turn_id,) in self._database.execute("SELECT id FROM turn")})),
            Map({RunId(run_id): spend for (run_id,), spend in of_nobody}),
        )

    def _runs(self, which: str, ahead_s: float) -> Map[RunKey, Spend]:
        """The latest runs of a kind."""
        found = self._spends("id, caller", f"run WHERE {which}", ahead_s)
        return Map({(RunId(run_id), Caller(caller)): spend for (run_id, caller), spend in found})

    def _spends(self, key: str, where: str, ahead_s: float) -> Iterator[tuple[tuple[str, ...], Spend]]:
        """The latest rows, by the columns of their `key`; `ahead_s`: how far the scheduler's clock is ahead of the
        dates."""
        select = f"SELECT limit_usd, settled_usd, deadline, {key} FROM {where} ORDER BY at DESC LIMIT ?"  # noqa: S608
        for limit, settled, deadline, *names in self._database.execute(select, (RUNS_REMEMBERED,)):
            yield tuple(names), Spend(limit, settled, 0.0, deadline + ahead_s)

    def write(self, records: Iterable[RecordSpend]) -> None:
        """Makes `records` durable, all or none. Raises sqlite3.Error."""
        now = time.time()
        ahead_s = self._clock() - now
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for record in records:
                spend = record.spend
                row = (*record.run, spend.limit, spend.settled, now, spend.deadline - ahead_s)
                self._database.execute(_WRITE, row)
                if record.turn_id is not None:
                    self._database.execute("INSERT OR IGNORE INTO turn VALUES (?, ?)", (record.turn_id, now))
            if now - self._tidied_at > TIDIED_S:
                self._tidy(now)

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def _tidy(self, now: float) -> None:
        """Deletes what is forgotten."""
        self._tidied_at = now
        for table in ("run", "run_of_nobody"):
            delete = f"DELETE FROM {table} WHERE at < ?"  # noqa: S608
            self._database.execute(delete, (now - FORGOTTEN_S,))
            self._database.execute(f"{delete} AND NOT {_IS_LIMITED}", (now - UNLIMITED_FORGOTTEN_S,))
        self._database.execute("DELETE FROM turn WHERE at < ?", (now - TURNS_KEPT_S,))
