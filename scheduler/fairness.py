"""The order of held turns. Pure; works on a draft.

Interactive before batch, then the caller with the fewest running turns, then continuations, then turns done, then
arrival; where only rate limits are waited for, arrival less HEAD_START_S for each turn done. What comes after the
caller does not change while a turn is held: it is its `key`, and a caller's turns are kept in order of it. The count of
running turns changes all the time; it orders callers, not turns. A pool's lanes keep their callers in order
(`count_running` moves one caller when its count changes); at a home, where few callers have turns, they are compared
when asked.
"""

from __future__ import annotations

import math

from immutables import Map
from msgspec.structs import replace

from common.ids import Caller, ReplicaName, TurnId
from scheduler.admission import owes_batch, within_part
from scheduler.events import RunClass
from scheduler.ordered import EMPTY, Key, Ordered
from scheduler.pools import pool_key
from scheduler.state import EMPTY_LANES, NO_SHARE, Draft, Lane, Lanes, Pool, PoolKey, Replica, Run, Share, Turn

HEAD_START_S = 20.0
"""A turn done counts as much as having waited for so long (llm-d: turns + 0.05 · seconds waited)."""

Classes = tuple[RunClass, ...]
INTERACTIVE_ALONE: Classes = (RunClass.INTERACTIVE,)
INTERACTIVE_FIRST: Classes = (RunClass.INTERACTIVE, RunClass.BATCH)
BATCH_FIRST: Classes = (RunClass.BATCH, RunClass.INTERACTIVE)

Where = tuple[ReplicaName | None, PoolKey]
"""The home a turn waits for, or None and it waits for any of its pool."""


def held_key(
    *, is_continuation: bool, turns_done: int, by_age: bool, arrived_at: float, arrivals: int, turn_id: TurnId
) -> Key:
    """A turn's order among those of its class and caller; the least goes first.

    That runs which began go first keeps their prefixes in an engine's KV cache. A rate limit has none, and the last run
    would wait until all others are over: there it is `by_age`."""
    if by_age:
        return (False, 0, arrived_at - HEAD_START_S * turns_done, arrivals, turn_id)
    return (not is_continuation, -turns_done, arrived_at, arrivals, turn_id)


def enqueue(draft: Draft, turn: Turn) -> None:
    """Adds a held turn to its lane."""
    _count_held(draft, turn, 1)
    caller, run_class, key = turn.request.caller, turn.request.run_class, pool_key(turn)
    where = turn.held_at, key
    lanes = _lanes(draft, where)
    lane = lanes[run_class]
    before = lane.queues.get(caller, EMPTY)
    after = before.add(turn.key)
    order, first = lane.order, after.first()
    if turn.held_at is None and first == turn.key:
        share = draft.shares.get(caller, NO_SHARE)
        place = (share.running, first, caller)
        if before:
            order = order.move((share.running, before.first(), caller), place)
        else:
            draft.shares = draft.shares.set(caller, replace(share, waits_in=(*share.waits_in, (key, run_class))))
            order = order.add(place)
    _put_lane(draft, where, lanes, run_class, Lane(lane.queues.set(caller, after), order))


def dequeue(draft: Draft, turn: Turn, *, starts: bool = False) -> None:
    """Takes a held turn out of its lane; `starts`: as it is placed, so that it counts as running now."""
    _count_held(draft, turn, -1)
    caller, run_class, key = turn.request.caller, turn.request.run_class, pool_key(turn)
    where = turn.held_at, key
    lanes = _lanes(draft, where)
    lane = lanes[run_class]
    before = lane.queues[caller]
    after = before.remove(turn.key)
    order, first = lane.order, before.first()
    if turn.held_at is None and (starts or first == turn.key):
        share = draft.shares[caller]
        place = (share.running, first, caller)
        if after:
            order = order.move(place, (share.running + starts, after.first(), caller))
        else:
            order = order.remove(place)
            waits_in = tuple(where for where in share.waits_in if where != (key, run_class))
            _put_share(draft, caller, replace(share, waits_in=waits_in))
    queues = lane.queues.set(caller, after) if after else lane.queues.delete(caller)
    _put_lane(draft, where, lanes, run_class, Lane(queues, order))
    if starts:
        count_running(draft, caller, 1, but=(key, run_class) if turn.held_at is None else None)


def count_running(draft: Draft, caller: Caller, change: int, *, but: tuple[PoolKey, RunClass] | None = None) -> None:
    """Counts a caller's turns in flight, and moves it in the order of the lanes where turns of it are held, `but` for
    one where that is done."""
    share = draft.shares.get(caller, NO_SHARE)
    running = share.running + change
    for waits_in in share.waits_in:
        if waits_in == but:
            continue
        key, run_class = waits_in
        pool = draft.pools[key]
        lane = pool.lanes[run_class]
        first = lane.queues[caller].first()
        order = lane.order.move((share.running, first, caller), (running, first, caller))
        moved = Lane(lane.queues, order)
        lanes = (moved, pool.lanes[1]) if run_class is RunClass.INTERACTIVE else (pool.lanes[0], moved)
        draft.pools = draft.pools.set(key, Pool(pool.members, pool.roomy, pool.tight, lanes, pool.is_limited))
    _put_share(draft, caller, replace(share, running=running))


def count_at_work(draft: Draft, before: Run | None, after: Run | None) -> None:
    """Counts a caller's batch runs that are at work, where one changes, or changes its caller by a resync."""
    was, now = _works_for(before), _works_for(after)
    if was == now:
        return
    for caller, change in ((was, -1), (now, 1)):
        if caller is not None:
            share = draft.shares.get(caller, NO_SHARE)
            _put_share(draft, caller, replace(share, batch_runs=share.batch_runs + change))


def _works_for(run: Run | None) -> Caller | None:
    """The caller of a batch run that is at work."""
    return run.caller if run is not None and run.run_class is RunClass.BATCH and run.at_work else None


def best(draft: Draft, replica: Replica, classes: Classes) -> TurnId | None:
    """The held turn that goes next to `replica`: one that must go there or one that may; None if there is none.

    Only turns of `classes` are considered, those of the first before all others, and no batch turns of callers that
    have their part of the replica."""
    home = draft.homes.get(replica.name)
    for run_class in classes:
        if not draft.held[run_class]:
            continue
        parted = replica if run_class is RunClass.BATCH and replica.parts and not owes_batch(replica) else None
        orders = [draft.pools[replica.one_shot, model].lanes[run_class].order for model in replica.models or ()]
        candidates = [head for order in orders if (head := _head(order, parted)) is not None]
        if home is not None and home[run_class].queues:
            candidates.append(_first_at_home(draft, home[run_class].queues, parted))
        if candidates and (first := min(candidates)[1]):
            turn_id: TurnId = first[-1]
            return turn_id
    return None


def _head(order: Ordered, parted: Replica | None) -> Key | None:
    """The first (running turns of the caller, first key) of a pool's lane; `parted`: of a caller that has not its part
    of that replica yet."""
    if parted is None:
        return order.chunks[0][0][:2] if order.chunks else None
    return next((entry[:2] for entry in order if within_part(parted, entry[2])), None)


def _first_at_home(draft: Draft, queues: Map[Caller, Ordered], parted: Replica | None) -> Key:
    """The same of a home's queues; what compares greater than all where there is none."""
    shares = draft.shares
    least, first = math.inf, ()
    for caller, queue in queues.items():
        running, key = shares.get(caller, NO_SHARE).running, queue.chunks[0][0]
        better = running < least or (running == least and key < first)
        if better and (parted is None or within_part(parted, caller)):
            least, first = running, key
    return least, first


def _count_held(draft: Draft, turn: Turn, change: int) -> None:
    interactive, batch = draft.held
    if turn.request.run_class is RunClass.INTERACTIVE:
        draft.held = (interactive + change, batch)
    else:
        draft.held = (interactive, batch + change)


def _put_share(draft: Draft, caller: Caller, share: Share) -> None:
    if share != NO_SHARE:
        draft.shares = draft.shares.set(caller, share)
    elif caller in draft.shares:
        draft.shares = draft.shares.delete(caller)


def _lanes(draft: Draft, where: Where) -> Lanes:
    held_at, key = where
    if held_at is not None:
        return draft.homes.get(held_at, EMPTY_LANES)
    pool = draft.pools.get(key)
    return pool.lanes if pool is not None else EMPTY_LANES


def _put_lane(draft: Draft, where: Where, lanes: Lanes, run_class: RunClass, lane: Lane) -> None:
    """Sets one of the `lanes` that are at `where`."""
    held_at, key = where
    changed = (lane, lanes[1]) if run_class is RunClass.INTERACTIVE else (lanes[0], lane)
    if held_at is None:
        pool = draft.pools.get(key, Pool())
        if pool.members or changed[0].queues or changed[1].queues:
            draft.pools = draft.pools.set(key, Pool(pool.members, pool.roomy, pool.tight, changed, pool.is_limited))
        else:
            draft.pools = draft.pools.delete(key)
    elif changed[0].queues or changed[1].queues:
        draft.homes = draft.homes.set(held_at, changed)
    else:
        draft.homes = draft.homes.delete(held_at)
