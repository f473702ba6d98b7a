"""Runs that leave a store, come into one, or begin as a fork of another. The same with a runtime and without one.

A run that moves is first ended here as moved, durably, and only then given away: whenever this is interrupted, the run
is live in one store at most, and to export it again gives its bundle. A store remembers the bundles that it gave and
took, longer than their runs, and takes none of them.

Must not drive runs (`service`), nor know what a bundle looks like (`bundles`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable

from runtime import bundles, incoming
from runtime.journal import Fence, Journal
from runtime.records import AnyRecord, decode, encode
from runtime.recovery import lost_calls
from runtime.refusals import WrongStateError
from runtime.run import fold
from runtime.store import Append, Store
from runtime.tool_specs import ToolSpec
from runtime.tree import Tree

MOVED = "moved into a bundle; it goes on where that is imported"
_KNOWN = "bundle/"
"""Prefix of the store's values that tell which bundles it gave or took."""


def new_run_id(now: float) -> str:
    """An id that no other run has; ids sort by their starts."""
    return f"run-{int(now * 1000):012x}-{secrets.token_hex(6)}"


def root(tree: Tree, handle: str) -> Journal:
    """The run, if it can be moved. Raises UnknownRunError, or WrongStateError where it belongs below another."""
    journal = tree.get("handle", handle)
    if journal.run.parent is not None:
        top = journal.run.root
        raise WrongStateError("handle", f"a run moves with all of its tree; move run {top}, at its top")
    return journal


async def size(store: Store, journals: Iterable[Journal]) -> int:
    """About how many bytes the bundle of these runs has."""
    total = 0
    for journal in journals:
        total += sum(len(raw) + 1 for raw in await store.read(journal.run.run_id))
    return total


async def pack(store: Store, fence: Fence, journals: Iterable[Journal]) -> bytes:
    """The bundle of a tree whose runs have all ended, or ended here as moved. Raises WrongStateError or StoreError."""
    runs = []
    for journal in journals:
        if journal.run.end is None:
            raise WrongStateError("handle", f"run {journal.run.run_id} is just being ended; try again")
        runs.append(bundles.kept(await _records(store, journal)))
    bundle_id, raw = bundles.write(runs)
    await store.commit(puts={_KNOWN + bundle_id: b"given"}, expects=fence)
    return raw


async def unpack(
    store: Store, fence: Fence, raw: bytes, find: Callable[[str], ToolSpec | None] = lambda _name: None
) -> list[Journal]:
    """Takes the runs of a bundle into the store, parents first, with the calls marked that nobody knows about, and
    those that are still to be made judged by the tools that `find` knows by name.

    They are durable when this returns, all or none. Raises InvalidArgumentError, WrongStateError or StoreError.
    """
    bundle_id, records = bundles.read(raw)
    known = await store.get(_KNOWN + bundle_id)
    if known is not None:
        how = "was exported from this store" if known == b"given" else "has been imported already"
        raise WrongStateError("bundle", f"it {how}, and a run has one owner")
    here = await store.runs()
    now = time.time()
    appends, journals = [], []
    for of_one in (incoming.judged(each, find) for each in records):
        found = fold(of_one)
        if found.run_id in here:
            raise WrongStateError("bundle", f"run {found.run_id} is in this store already")
        whole = (*of_one, *lost_calls(found, now))
        run = fold(whole)
        appends.append(Append(run.run_id, 0, tuple(encode(record) for record in whole)))
        journals.append(Journal(store, fence, run if run.end is None else run.summary()))
    await store.commit(appends, {_KNOWN + bundle_id: b"taken"}, {**fence, _KNOWN + bundle_id: None})
    return journals


async def fork(store: Store, fence: Fence, source: Journal, at: int) -> Journal:
    """A new run with the steps before `at` of another one; durable when this returns.

    Raises InvalidArgumentError or StoreError.
    """
    now = time.time()
    records = bundles.fork(await _records(store, source), at, new_run_id(now), now)
    run = fold(records)
    await store.commit([Append(run.run_id, 0, tuple(encode(record) for record in records))], expects=fence)
    return Journal(store, fence, run)


async def _records(store: Store, journal: Journal) -> list[AnyRecord]:
    return [decode(raw) for raw in await store.read(journal.run.run_id)]
