"""Journals in one SQLite file: one connection, in one thread that commits together whatever queued meanwhile.

WAL with `synchronous=FULL`: a commit that returned is on disk. After a write that failed nothing is acknowledged. Where
there was no room for it, it is known not to be on disk, and the store may be revived. After an error of fsync nobody
knows what is there, until the file is opened anew, which starts from what it finds.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import pathlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from runtime.lock import keep_private
from runtime.store import Append, ConflictError, ReadOnlyError, StoreError

STORE_FILE = "runs.db"
"""Its name in a state folder."""
SCHEMA_VERSION = 1
"""`PRAGMA user_version` of the file."""
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
"""Errors of writes that happen before a transaction's last frame is whole, hence before it is committed: no space left
is the first, other limits (of the file's size, say) and disks that refuse are the second, the third is of the index."""
BATCH_MAX = 512
"""Most commits in one transaction."""

_SCHEMA = f"""
BEGIN;
CREATE TABLE runs (run_id TEXT PRIMARY KEY, length INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE records (run_id TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (run_id, number))
    WITHOUT ROWID;
CREATE TABLE named (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

log = logging.getLogger("runtime.store")

Work = Callable[[sqlite3.Connection], Any]


@dataclass(slots=True)
class _Job:
    work: Work
    writes: bool
    revives: bool
    """It is a write that is tried although one before it had no room."""
    done: asyncio.Future[Any]


class SqliteStore:
    """See `store.Store`."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._broken: str | None = None
        self._wants_room = False
        self._logged: str | None = None
        """The last error that was logged since a commit."""
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._serve, name="store", daemon=True)

    @classmethod
    async def open(cls, path: pathlib.Path) -> Self:
        """Opens or makes the file at `path`. Raises StoreError where it is not ours, or of another schema version."""
        store = cls(path)
        store._thread.start()
        await asyncio.wrap_future(store._opened)
        return store

    @property
    def broken(self) -> str | None:
        """See `Store.broken`."""
        return self._broken

    @property
    def wants_room(self) -> bool:
        """See `Store.wants_room`."""
        return self._broken is not None and self._wants_room

    async def revive(self, puts: Mapping[str, bytes], expects: Mapping[str, bytes | None]) -> None:
        """See `Store.revive`."""
        await self._do(lambda connection: _commit(connection, (), puts, expects), writes=True, revives=True)

    async def commit(
        self,
        appends: Sequence[Append] = (),
        puts: Mapping[str, bytes] | None = None,
        expects: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """See `Store.commit`."""
        await self._do(lambda connection: _commit(connection, appends, puts or {}, expects or {}), writes=True)

    async def read(self, run_id: str, start: int = 0) -> list[bytes]:
        """See `Store.read`."""
        query = "SELECT body FROM records WHERE run_id = ? AND number >= ? ORDER BY number"
        rows = await self._select(query, (run_id, start))
        return [body for (body,) in rows]

    async def runs(self) -> dict[str, int]:
        """See `Store.runs`."""
        return dict(await self._select("SELECT run_id, length FROM runs ORDER BY run_id", ()))

    async def get(self, key: str) -> bytes | None:
        """See `Store.get`."""
        rows = await self._select("SELECT value FROM named WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    async def forget(self, run_ids: Sequence[str]) -> None:
        """See `Store.forget`."""
        await self._do(lambda connection: _forget(connection, run_ids), writes=True)

    async def close(self) -> None:
        """See `Store.close`."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def _select(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = await self._do(
            lambda connection: connection.execute(query, values).fetchall(), writes=False
        )
        return rows

    async def _do(self, work: Work, *, writes: bool, revives: bool = False) -> Any:
        if writes and self._broken and not (revives and self._wants_room):
            raise ReadOnlyError(self._broken)
        if not self._thread.is_alive():
            raise StoreError("the store is closed")
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(work, writes, revives, done))
        return await done

    def _serve(self) -> None:
        """The thread: opens, then performs batches of jobs until it is told to stop."""
        try:
            connection = _open(self._path)
        except (sqlite3.Error, OSError, StoreError) as error:
            text = str(error) if isinstance(error, StoreError) else f"the store {self._path.name}: {error}"
            self._opened.set_exception(StoreError(text))
            return
        self._opened.set_result(None)
        with contextlib.closing(connection):
            while (job := self._jobs.get()) is not None:
                batch = [job]
                while len(batch) < BATCH_MAX and not self._jobs.empty():
                    following = self._jobs.get()
                    if following is None:
                        self._jobs.put(None)
                        break
                    batch.append(following)
                self._perform(connection, batch)

    def _perform(self, connection: sqlite3.Connection, batch: list[_Job]) -> None:
        """Writes first, in one transaction: a read sees every write that was asked for before it."""
        outcomes: list[tuple[asyncio.Future[Any], Any]] = self._write(connection, [job for job in batch if job.writes])
        for job in batch:
            if not job.writes:
                try:
                    outcomes.append((job.done, job.work(connection)))
                except sqlite3.Error as error:
                    outcomes.append((job.done, StoreError(f"the store cannot be read: {error}")))
                except Exception as error:  # noqa: BLE001 - it is who asked that has to know
                    outcomes.append((job.done, error))
        # A loop that is closed waits for nothing any more.
        with contextlib.suppress(RuntimeError):
            batch[0].done.get_loop().call_soon_threadsafe(_settle, outcomes)

    def _write(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[tuple[asyncio.Future[Any], Any]]:
        if not jobs:
            return []
        if self._broken is None or (self._wants_room and any(job.revives for job in jobs)):
            outcomes: list[tuple[asyncio.Future[Any], Any]] = []
            try:
                connection.execute("BEGIN IMMEDIATE")
                for job in jobs:
                    connection.execute("SAVEPOINT one")
                    try:
                        outcomes.append((job.done, job.work(connection)))
                    except sqlite3.Error:
                        raise
                    except Exception as error:  # noqa: BLE001 - a conflict, or nothing that can be stored
                        connection.execute("ROLLBACK TO one")
                        outcomes.append((job.done, error))
                    connection.execute("RELEASE one")
                connection.execute("COMMIT")
            except Exception as error:  # noqa: BLE001 - the thread must live, and others wait
                self._break(error)
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            else:
                self._broken = self._logged = None
                return outcomes
        return [(job.done, ReadOnlyError(self._broken)) for job in jobs]

    def _break(self, error: Exception) -> None:
        self._wants_room = getattr(error, "sqlite_errorcode", None) in _NO_ROOM
        until = "there is room again" if self._wants_room else "the runtime is restarted"
        self._broken = f"the store is read-only until {until}: {error}"
        if self._broken != self._logged:
            self._logged = self._broken
            log.error("event=store_read_only error=%s", self._broken)


def _settle(outcomes: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for done, outcome in outcomes:
        if done.done():  # whoever asked has stopped waiting
            continue
        if isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)


def _open(path: pathlib.Path) -> sqlite3.Connection:
    path.touch(mode=0o600)  # what runs say is for its owner alone
    for part in path.parent.glob(f"{path.name}*"):
        keep_private(part, 0o600)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                raise StoreError(f"the store {path.name} holds something else than journals")
            connection.executescript(_SCHEMA)
        elif version != SCHEMA_VERSION:
            expected = f"this release reads version {SCHEMA_VERSION}"
            raise StoreError(f"the store {path.name} has schema version {version}; {expected}")
    except BaseException:
        connection.close()
        raise
    return connection


def _commit(
    connection: sqlite3.Connection,
    appends: Sequence[Append],
    puts: Mapping[str, bytes],
    expects: Mapping[str, bytes | None],
) -> None:
    for key, expected in expects.items():
        row = connection.execute("SELECT value FROM named WHERE key = ?", (key,)).fetchone()
        if (row[0] if row else None) != expected:
            raise ConflictError(f"the value '{key}' is not the expected one")
    for append in appends:
        row = connection.execute("SELECT length FROM runs WHERE run_id = ?", (append.run_id,)).fetchone()
        length = row[0] if row else 0
        if length != append.length:
            raise ConflictError(f"run {append.run_id} has {length} records, expected {append.length}")
        numbered = ((append.run_id, number, body) for number, body in enumerate(append.records, length))
        connection.executemany("INSERT INTO records VALUES (?, ?, ?)", numbered)
        connection.execute("REPLACE INTO runs VALUES (?, ?)", (append.run_id, length + len(append.records)))
    connection.executemany("REPLACE INTO named VALUES (?, ?)", puts.items())


def _forget(connection: sqlite3.Connection, run_ids: Sequence[str]) -> None:
    for table in ("records", "runs"):
        connection.executemany(f"DELETE FROM {table} WHERE run_id = ?", [(run_id,) for run_id in run_ids])  # noqa: S608
