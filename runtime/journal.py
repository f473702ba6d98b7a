"""One run's journal, open for writing: the only place where a run in memory changes.

A record is folded when it is durable and never before, so what anybody sees of a run is what a restart would find.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from runtime.records import AnyRecord, Started, encode
from runtime.run import RunState, apply
from runtime.store import Append, ReadOnlyError, Store
from runtime.tries import Tries

Observe = Callable[[RunState, AnyRecord], None]
"""Is told of a record that has become durable, and of the run as it was before."""

Fence = Mapping[str, bytes | None]
"""What the store must hold for this runtime to be its owner."""


KEPT_S = 0.2
"""Pause between two tries to write what could not be written."""


class Journal:
    """A run and how it grows."""

    __slots__ = (
        "_fence",
        "_is_keeping",
        "_lock",
        "_opened_s",
        "_since_s",
        "_store",
        "_watching",
        "is_ending",
        "observe",
        "run",
        "task",
        "tries",
    )

    def __init__(self, store: Store, fence: Fence, run: RunState) -> None:
        self._store = store
        self._fence = fence
        self._lock = asyncio.Lock()
        self._is_keeping = False
        self._watching: set[asyncio.Future[None]] = set()
        self._opened_s = time.monotonic()
        self._since_s = self._opened_s - max(time.time() - run.started_at, 0.0)
        """Start of the run by the monotonic clock, as the clock on the wall told it when this was made."""
        self.observe: Observe = _nobody
        self.run = run
        """As its records tell it; without its steps once it has ended."""
        self.task: asyncio.Task[None] | None = None
        """What drives it; None while it rests."""
        self.is_ending = False
        """Somebody ends it: nothing else may be begun for it."""
        self.tries: dict[str, Tries] = {}
        """Tries of its open calls since this was made, by their keys. In no record: a call that has begun is in doubt
        for whoever goes on with it."""

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

    @property
    def open_s(self) -> float:
        """Seconds since this runtime has the run."""
        return time.monotonic() - self._opened_s

    def sleep_for(self, servers: tuple[str, ...]) -> None:
        """The run rests until these tool servers are connected; none: it rests no more. This is in no record."""
        if servers != self.run.waits_for:
            self.run = replace(self.run, waits_for=servers)

    async def stop(self) -> None:
        """Stops what is done for the run; what was begun of it is journaled or left open."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def append(self, *records: AnyRecord) -> None:
        """Adds `records`, together; they are durable and folded when this returns.

        Goes on if whoever asked is cancelled. Raises JournalError if they cannot follow, StoreError if they cannot be
        written; then nothing has changed.
        """
        if self._is_keeping and self._store.broken is not None:
            raise ReadOnlyError("what happened before could not be written yet")
        await asyncio.shield(asyncio.ensure_future(self._append(records, keeps=False)))

    async def keep(self, record: AnyRecord) -> None:
        """As `append`, of what has happened outside and is known nowhere else: where the store has no room, waits until
        it has. Nothing else is added before it."""
        await asyncio.shield(asyncio.ensure_future(self._append((record,), keeps=True)))

    def changed(self) -> asyncio.Future[None]:
        """Is done after the next append from this call on; whoever no longer waits for it cancels it.

        No coroutine, which would begin to wait only when the event loop comes to it, and miss what comes before.
        """
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching.add(waiting)
        waiting.add_done_callback(self._watching.discard)
        return waiting

    async def _append(self, records: tuple[AnyRecord, ...], *, keeps: bool) -> None:
        async with self._lock:
            before = after = self.run
            for record in records:
                after = apply(after, record)
            raw = tuple(encode(record) for record in records)
            await self._commit(Append(before.run_id, before.length, raw), keeps=keeps)
            self.run = after if after.end is None else after.summary()
        for record in records:
            self.observe(before, record)
        for waiting in self._watching:
            if not waiting.done():
                waiting.set_result(None)

    async def _commit(self, append: Append, *, keeps: bool) -> None:
        try:
            while True:
                try:
                    return await self._store.commit([append], expects=self._fence)
                except ReadOnlyError:
                    if not (keeps and self._store.wants_room):
                        raise
                self._is_keeping = True
                await asyncio.sleep(KEPT_S)
        finally:
            self._is_keeping = False


def _nobody(_run: RunState, _record: AnyRecord) -> None:
    pass
