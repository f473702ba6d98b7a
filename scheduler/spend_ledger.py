"""The scheduler's only file: what runs with a budget of money have spent, in SQLite in the state folder.

Written after each batch of decisions and before it is acknowledged, so that a report whose spend is lost comes again,
and one whose spend is written counts once: the turns of the last hour are kept beside the sums. Must not decide.
"""

from __future__ import annotations

import pathlib
import sqlite3
import time
from collections.abc import Iterable

from immutables import Map

from common.ids import RunId, TurnId
from scheduler.budgets.spend import FORGOTTEN_S, Spend, Spends
from scheduler.effects import RecordSpend

FILE = "scheduler-spend.sqlite3"
TURNS_KEPT_S = 3600.0
BUSY_S = 2.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (
    id TEXT PRIMARY KEY, limit_usd REAL NOT NULL, settled_usd REAL NOT NULL, at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS turn (id TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS turn_at ON turn (at);
"""


class SpendLedger:
    """One open file; dates are seconds since 1970."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Opens the ledger in `folder`, which is made where it is missing. Raises OSError or sqlite3.Error."""
        folder.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(folder / FILE, timeout=BUSY_S, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(
            "PRAGMA synchronous=NORMAL"
        )  # a killed process loses nothing; a power cut, the last moments
        self._database.executescript(_SCHEMA)

    def load(self) -> Spends:
        """What is known of runs and turns that are not forgotten; what is, is deleted."""
        now = time.time()
        self._database.execute("DELETE FROM run WHERE at < ?", (now - FORGOTTEN_S,))
        self._database.execute("DELETE FROM turn WHERE at < ?", (now - TURNS_KEPT_S,))
        runs = self._database.execute("SELECT id, limit_usd, settled_usd FROM run")
        known = {RunId(run_id): Spend(limit, settled) for run_id, limit, settled in runs}
        turns = self._database.execute("SELECT id FROM turn")
        return Spends(Map(known), Map({TurnId(turn_id): None for (turn_id,) in turns}))

    def write(self, records: Iterable[RecordSpend]) -> None:
        """Makes `records` durable, all or none. Raises sqlite3.Error."""
        now = time.time()
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for record in records:
                self._database.execute(
                    "INSERT INTO run VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET limit_usd = excluded.limit_usd,"
                    " settled_usd = max(settled_usd, excluded.settled_usd), at = excluded.at",
                    (record.run_id, record.limit_usd, record.settled_usd, now),
                )
                self._database.execute("INSERT OR IGNORE INTO turn VALUES (?, ?)", (record.turn_id, now))

    def close(self) -> None:
        """Closes the file."""
        self._database.close()
