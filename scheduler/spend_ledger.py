"""The scheduler's only file: what runs have spent, their budgets of money and their deadlines, in SQLite in the state
folder.

Written after each batch of decisions and before it is acknowledged, so that a report whose spend is lost comes again,
and one whose spend is written counts once: the turns of the last hour are kept beside the sums. Must not decide.
"""

from __future__ import annotations

import pathlib
import sqlite3
import time
from collections.abc import Callable, Iterable

from immutables import Map

from common.ids import RunId, TurnId
from scheduler.budgets.spend import FORGOTTEN_S, RUNS_REMEMBERED, UNLIMITED_FORGOTTEN_S, Recent, Spend, Spends
from scheduler.effects import RecordSpend

FILE = "scheduler-spend.sqlite3"
TURNS_KEPT_S = 3600.0
TIDIED_S = 600.0
"""How often what is forgotten is deleted."""
BUSY_S = 2.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (
    id TEXT PRIMARY KEY, limit_usd REAL NOT NULL, settled_usd REAL NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS turn (id TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS turn_at ON turn (at);
"""
_DEADLINE = "ALTER TABLE run ADD COLUMN deadline REAL NOT NULL DEFAULT 9e999"
"""A file of an earlier version has none. Infinity is no limit, and no deadline."""
_WRITE = """
INSERT INTO run VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET limit_usd = excluded.limit_usd,
    settled_usd = max(settled_usd, excluded.settled_usd), at = excluded.at, deadline = excluded.deadline
"""


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
        self._database.executescript(_SCHEMA)
        if "deadline" not in [column[1] for column in self._database.execute("PRAGMA table_info(run)")]:
            self._database.execute(_DEADLINE)

    def load(self) -> Spends:
        """What is known of runs and turns that are not forgotten; what is, is deleted."""
        now = time.time()
        self._tidy(now)
        ahead_s = self._clock() - now
        return Spends(
            Recent(self._runs("limit_usd < 9e999 OR deadline < 9e999", ahead_s)),
            Recent(self._runs("limit_usd = 9e999 AND deadline = 9e999", ahead_s)),
            Recent(Map({TurnId(turn_id): True for (turn_id,) in self._database.execute("SELECT id FROM turn")})),
        )

    def _runs(self, which: str, ahead_s: float) -> Map[RunId, Spend]:
        """The latest runs of a kind; `ahead_s`: how far the scheduler's clock is ahead of the dates."""
        rows = self._database.execute(
            f"SELECT id, limit_usd, settled_usd, deadline FROM run WHERE {which} ORDER BY at DESC LIMIT ?",  # noqa: S608
            (RUNS_REMEMBERED,),
        )
        return Map({RunId(row[0]): Spend(row[1], row[2], 0.0, row[3] + ahead_s) for row in rows})

    def write(self, records: Iterable[RecordSpend]) -> None:
        """Makes `records` durable, all or none. Raises sqlite3.Error."""
        now = time.time()
        ahead_s = self._clock() - now
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for record in records:
                spend = record.spend
                row = (record.run_id, spend.limit, spend.settled, now, spend.deadline - ahead_s)
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
        self._database.execute("DELETE FROM run WHERE at < ?", (now - FORGOTTEN_S,))
        unlimited = "DELETE FROM run WHERE at < ? AND limit_usd = 9e999 AND deadline = 9e999"
        self._database.execute(unlimited, (now - UNLIMITED_FORGOTTEN_S,))
        self._database.execute("DELETE FROM turn WHERE at < ?", (now - TURNS_KEPT_S,))
