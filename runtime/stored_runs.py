"""The runs of a state folder that no runtime has: what a runtime would tell of them, and what moves or forks them.

Whoever uses it holds the folder's lock. Nothing goes on here: the next runtime does that. Read next: `moves`.
"""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import AsyncIterator

from protos import runtime_pb2 as pb
from runtime import moves, recovery, wire
from runtime.journal import Fence
from runtime.lock import holding
from runtime.records import Ended, State, decode
from runtime.sqlite_store import STORE_FILE, SqliteStore
from runtime.store import Store
from runtime.tree import Tree


class StoredRuns:
    """The runs of one store. Methods raise RefusedError, StoreError or JournalError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> list[pb.Run]:
        """Every run, the oldest first."""
        tree = await self._tree({})
        return [wire.write_run(journal.run, tree.usage(journal)) for journal in tree]

    async def get(self, handle: str) -> tuple[pb.GetResponse, list[pb.RunsWatchResponse]]:
        """A whole run, and its records."""
        tree = await self._tree({})
        usage = tree.usage(tree.get("handle", handle))
        run = await recovery.read_run(self._store, handle)
        records = enumerate(decode(raw) for raw in await self._store.read(handle))
        told = pb.GetResponse(run=wire.write_run(run, usage, task_chars=None), messages=wire.write_messages(run))
        return told, [wire.write_record(number, record, lambda run: run.usage) for number, record in records]

    async def export(self, handle: str) -> bytes:
        """See `Runtime.export`."""
        moves.root(await self._tree({}), handle)
        fence = await recovery.take_over(self._store)
        tree = await self._tree(fence)
        top = moves.root(tree, handle)
        for journal in tree.down(top):
            if journal.run.end is None:
                await journal.append(Ended(at=time.time(), state=State.MOVED, text=moves.MOVED))
        return await moves.pack(self._store, fence, tree.down(top))

    async def import_(self, bundle: bytes) -> list[str]:
        """See `Runtime.import_`; gives the handles."""
        journals = await moves.unpack(self._store, await recovery.take_over(self._store), bundle)
        return [journal.run.run_id for journal in journals]

    async def fork(self, handle: str, at: int) -> str:
        """See `Runtime.fork`; gives the handle."""
        source = (await self._tree({})).get("handle", handle)
        return (await moves.fork(self._store, await recovery.take_over(self._store), source, at)).run.run_id

    async def _tree(self, fence: Fence) -> Tree:
        tree = Tree()
        for journal in await recovery.load(self._store, fence):
            tree.add(journal)
        return tree


@contextlib.asynccontextmanager
async def opened(folder: pathlib.Path) -> AsyncIterator[StoredRuns]:
    """Holds the folder's lock and its store open. Raises LockedError, StoreError or OSError."""
    with holding(folder):
        store = await SqliteStore.open(folder / STORE_FILE)
        try:
            yield StoredRuns(store)
        finally:
            await store.close()
