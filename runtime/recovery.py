"""What a runtime finds when it starts: every run of the store as its journal tells it, made ready to go on.

A call that was begun and has no outcome may have had its effect. If it may be made twice it simply is, under the same
key; any other waits for a person. A run whose parent was cancelled goes with it, should the runtime have died between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from runtime.journal import Fence, Journal
from runtime.records import JournalError, LostTrack, decode
from runtime.run import RunState, fold
from runtime.store import Store
from runtime.tool_specs import EffectKind

OWNER = "owner"
"""Key of the store's value that tells which runtime may write: a number that rises with every start."""
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


async def recover(store: Store, fence: Fence) -> list[Journal]:
    """As `load`, with the calls marked that nobody knows about. Raises JournalError or StoreError."""
    journals = await load(store, fence)
    lost = ((journal, tuple(lost_calls(journal.run, time.time()))) for journal in journals)
    await asyncio.gather(*(journal.append(*records) for journal, records in lost if records))
    return journals


def lost_calls(run: RunState, now: float) -> Iterator[LostTrack]:
    """The calls of an unfinished run whose outcome nobody knows, and that must not be made again by themselves."""
    if run.end is not None or not run.steps:
        return
    for position, each in enumerate(run.steps[-1].calls):
        begun = each.outcome is None and each.intended and each.unknown is None
        if begun and each.call.effect is EffectKind.AT_MOST_ONCE:
            yield LostTrack(at=now, step=len(run.steps) - 1, call=position, known=INTERRUPTED)
