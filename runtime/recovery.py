"""What a runtime finds when it starts: every run of the store as its journal tells it, made ready to go on.

A call that was begun and has no outcome may have had its effect. If it may be made twice it simply is, under the same
key; any other waits for a person. A run whose parent was cancelled goes with it, should the runtime have died between.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Iterator

from runtime.journal import Fence, Journal
from runtime.observer import Observer
from runtime.records import JournalError, LostTrack, decode
from runtime.run import RunState, fold
from runtime.store import Store
from runtime.tool_specs import EffectKind

OWNER = "owner"
"""Key of the store's value that tells which runtime may write: a number that rises with every start."""
log = logging.getLogger("runtime.recovery")

INTERRUPTED = "The runtime was stopped while this tool call was in progress, and nobody knows whether it took effect."


async def take_over(store: Store) -> Fence:
    """Makes this runtime the store's owner: whoever was it before writes nothing more. Raises StoreError."""
    before = await store.get(OWNER)
    mine = str(int(before or b"0") + 1).encode()
    await store.commit(puts={OWNER: mine}, expects={OWNER: before})
    return {OWNER: mine}


async def read_run(store: Store, run_id: str) -> RunState:
    """The whole run, with its conversation. Raises JournalError naming the run, or StoreError."""
    try:
        return fold(decode(raw) for raw in await store.read(run_id))
    except JournalError as error:
        raise JournalError(f"run {run_id}: {error}") from None


async def load(store: Store, fence: Fence) -> list[Journal]:
    """Every run as it is, parents before their children.

    Raises JournalError for the first journal that cannot be read: to skip it would be to forget what it did.
    """
    journals = []
    for run_id in await store.runs():
        run = await read_run(store, run_id)
        journals.append(Journal(store, fence, run if run.end is None else run.summary()))
    journals.sort(key=lambda journal: (journal.run.started_at, journal.run.run_id))
    return journals


def new_recovery_id(now: float) -> str:
    """A name for one start of a runtime, by which its log, its spans and its journals are found (UUID, version 7)."""
    random_bits = secrets.randbits(74)
    number = int(now * 1000) << 80 | 0x7 << 76 | random_bits >> 62 << 64 | 0b10 << 62 | random_bits & (1 << 62) - 1
    return str(uuid.UUID(int=number))


async def recover(store: Store, fence: Fence, observer: Observer) -> list[Journal]:
    """As `load`, with the calls marked that nobody knows about. Raises JournalError or StoreError."""
    began, recovery_id = time.monotonic(), new_recovery_id(time.time())
    journals = await load(store, fence)
    found = [journal for journal in journals if journal.run.end is None]
    for journal in found:
        journal.observe = observer.observe
    lost = ((journal, tuple(lost_calls(journal.run, time.time(), recovery_id))) for journal in journals)
    await asyncio.gather(*(journal.append(*records) for journal, records in lost if records))
    took_s = time.monotonic() - began
    for journal in found:
        observer.recovered(journal.run, recovery_id, took_s)
        log.debug("event=run_recovered run=%s recovery_id=%s", journal.run.run_id, recovery_id)
    if found:
        log.info("event=recovered recovery_id=%s runs=%d duration_s=%.3f", recovery_id, len(found), took_s)
    return journals


def lost_calls(run: RunState, now: float, recovery_id: str | None = None) -> Iterator[LostTrack]:
    """The calls of an unfinished run whose outcome nobody knows, and that must not be made again by themselves."""
    if run.end is not None or not run.steps:
        return
    for position, each in enumerate(run.steps[-1].calls):
        begun = each.outcome is None and each.intended and each.unknown is None
        if begun and each.call.effect is EffectKind.AT_MOST_ONCE:
            yield LostTrack(at=now, step=len(run.steps) - 1, call=position, known=INTERRUPTED, recovery_id=recovery_id)
