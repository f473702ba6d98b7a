"""One run's journal, open for writing: the only place where a run in memory changes.

A record is folded when it is durable and never before, so what anybody sees of a run is what a restart would find.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from runtime.records import AnyRecord, Started, encode
from runtime.run import RunState, apply
from runtime.store import Append, Store

Observe = Callable[[RunState, AnyRecord], None]
"""Is told of a record that has become durable, and of the run as it was before."""

Fence = Mapping[str, bytes | None]
"""What the store must hold for this runtime to be its owner."""


class Journal:
    """A run and how it grows."""

    __slots__ = ("_fence", "_lock", "_since_s", "_store", "_watching", "is_ending", "observe", "run", "task")

    def __init__(self, store: Store, fence: Fence, run: RunState) -> None:
        self._store = store
        self._fence = fence
        self._lock = asyncio.Lock()
        self._watching: set[asyncio.Future[None]] = set()
        self._since_s = time.monotonic() - max(time.time() - run.started_at, 0.0)
        """Start of the run by the monotonic clock, as the clock on the wall told it when this was made."""
        self.observe: Observe = _nobody
        self.run = run
        """As its records tell it; without its steps once it has ended."""
        self.task: asyncio.Task[None] | None = None
        """What drives it; None while it rests."""
        self.is_ending = False
        """Somebody ends it: nothing else may be begun for it."""

    @classmethod
    async def begin(cls, store: Store, fence: Fence, started: Started) -> Journal:
        """A new run, durable when this returns. Raises StoreError."""
        run = apply(None, started)
        await store.commit([Append(run.run_id, 0, (encode(started),))], expects=fence)
        return cls(store, fence, run)

    @property
    def age_s(self) -> float:
        """Seconds since the run's start; a clock on the wall that is set meanwhile does not count."""
        return time.monotonic() - self._since_s

    async def append(self, *records: AnyRecord) -> None:
        """Adds `records`, together; they are durable and folded when this returns.

        Goes on if whoever asked is cancelled. Raises JournalError if they cannot follow, StoreError if they cannot be
        written; then nothing has changed.
        """
        await asyncio.shield(asyncio.ensure_future(self._append(records)))

    async def changed(self) -> None:
        """Returns after the next append."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching.add(waiting)
        try:
            await waiting
        finally:
            self._watching.discard(waiting)

    async def _append(self, records: tuple[AnyRecord, ...]) -> None:
        async with self._lock:
            before = after = self.run
            for record in records:
                after = apply(after, record)
            raw = tuple(encode(record) for record in records)
            await self._store.commit([Append(before.run_id, before.length, raw)], expects=self._fence)
            self.run = after if after.end is None else after.summary()
        for record in records:
            self.observe(before, record)
        for waiting in self._watching:
            if not waiting.done():
                waiting.set_result(None)


def _nobody(_run: RunState, _record: AnyRecord) -> None:
    pass
