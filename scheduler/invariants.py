"""What must hold after every event. Pure; for tests and simulations: it looks at everything, which takes time."""

from __future__ import annotations

import math
from collections import Counter

from scheduler.admission import has_room
from scheduler.effects import Effect, PlaceTurn
from scheduler.events import RunClass
from scheduler.pools import load_key, may_be_served, pinned_home, pool_key, serves
from scheduler.runs import resident_tokens
from scheduler.state import Draft, Pool, Share, State, Turn


def check(state: State) -> None:
    """Raises AssertionError where the state contradicts itself."""
    held = [turn for turn in state.turns.values() if turn.replica is None]
    flying = [turn for turn in state.turns.values() if turn.replica is not None]
    _check_replicas(state, flying)
    _check_runs(state)
    _check_lanes(state, held)
    _check_shares(state, held, flying)
    _check_indexes(state)
    _check_nothing_waits_in_vain(state, held)


def check_step(before: State, effects: tuple[Effect, ...], after: State) -> None:
    """Raises AssertionError where a step broke a promise: a turn placed twice, affinity broken, a sequence not
    growing."""
    placed = [effect for effect in effects if isinstance(effect, PlaceTurn)]
    fresh = [effect for effect in placed if effect.sequence > before.sequence]
    assert [effect.sequence for effect in fresh] == sorted({effect.sequence for effect in fresh})
    for effect in placed:
        known = before.turns.get(effect.turn_id)
        if known is not None and known.replica is not None:
            assert (effect.replica, effect.sequence) == (known.replica, known.sequence), "placed twice"
        now = after.turns.get(effect.turn_id)
        assert now is None or now.replica == effect.replica
    for effect in fresh:
        run = before.runs.get(effect.run_id) if effect.run_id is not None else None
        turn = after.turns.get(effect.turn_id)
        home = pinned_home(Draft.of(before), run, pool_key(turn)) if run is not None and turn is not None else None
        if run is None or home is None or not after.replicas[home.name].healthy:
            continue
        if after.replicas[home.name].budget is not None:
            continue  # it answered 429 in this step, and ties nobody until it has rested
        if after.replicas[home.name].models is None and after.models_due_at is None:
            continue  # it has not told its models in time, and ties nobody until it has
        # A run is untied in the step itself where its last turn in flight ends without a tool call.
        tied = any(turn_id in after.turns for turn_id in run.in_flight) if run.in_flight else run.paused
        assert effect.replica == home.name or not tied, "affinity broken"


def _check_replicas(state: State, flying: list[Turn]) -> None:
    in_flight = Counter(turn.replica for turn in flying)
    reserving = Counter(turn.replica for turn in flying if turn.reservation is not None)
    batch = Counter(turn.replica for turn in flying if turn.request.run_class is RunClass.BATCH)
    expected = [run for run in state.runs.values() if run.expected_as is not None]
    paused = Counter(run.home for run in expected)
    reserved = Counter(run.home for run in expected if run.expected_as is RunClass.INTERACTIVE)
    flying_tokens: Counter[str | None] = Counter()
    for turn in flying:
        flying_tokens[turn.replica] += turn.tokens if turn.request.run_class is RunClass.BATCH else 0
    resident: Counter[tuple[str | None, RunClass]] = Counter()
    for run in state.runs.values():
        resident[run.home, run.run_class] += resident_tokens(run)
    for replica in state.replicas.values():
        assert replica.in_flight == in_flight[replica.name]
        assert replica.batch_in_flight == batch[replica.name]
        assert replica.paused == paused[replica.name]
        assert replica.reserved == reserved[replica.name]
        assert (replica.dry_for is not None) == (replica.name in state.dry)
        if replica.budget is not None:
            assert replica.budget.in_flight == reserving[replica.name], "a reservation that no turn holds"
            taken = [turn.reservation.marks for turn in flying if turn.reservation and turn.replica == replica.name]
            for number, window in enumerate(replica.budget.windows):
                flies = sum(marks[number].charge for marks in taken if number < len(marks))
                assert math.isclose(window.flying, flies, rel_tol=1e-6, abs_tol=1e-3), "a charge that no turn holds"
            assert not replica.budget.is_past
            assert state.histories is not None
        assert replica.batch_flight_tokens == flying_tokens[replica.name]
        assert replica.batch_flight_tokens == sum(taken.flying for taken in replica.takings.values())
        assert replica.batch_tokens == sum(taken.resident for taken in replica.takings.values())
        assert replica.batch_tokens == resident[replica.name, RunClass.BATCH]
        assert replica.interactive_tokens == resident[replica.name, RunClass.INTERACTIVE]


def _check_runs(state: State) -> None:
    counts = [0] * 6
    for run_id, run in state.runs.items():
        assert run.run_id == run_id
        counts[3 * run.run_class + run.phase - 1] += 1
        assert len({*run.in_flight, *run.held}) == len(run.in_flight) + len(run.held)
        assert all(state.turns[turn_id].replica is not None for turn_id in run.in_flight)
        assert all(state.turns[turn_id].replica is None for turn_id in run.held)
        assert run.expected_as is None or (not run.in_flight and run.home is not None)
        assert not run.ended or run.in_flight or run.held
    assert tuple(counts) == state.run_counts
    for turn_id, turn in state.turns.items():
        assert turn.request.turn_id == turn_id
        if turn.run_id is not None:
            run = state.runs[turn.run_id]
            assert turn_id in (run.held if turn.replica is None else run.in_flight)
        else:
            assert turn.request.one_shot
    timed = {timer for chain in state.timers.values() for timer in _items(chain)}
    assert all(("run", run.run_id, run.born) in timed for run in state.runs.values()), "a run without its timer"


def _items(chain: object) -> list[object]:
    items = []
    while isinstance(chain, tuple):
        items.append(chain[0])
        chain = chain[1]
    return items


def _check_lanes(state: State, held: list[Turn]) -> None:
    classes = Counter(turn.request.run_class for turn in held)
    assert state.held == (classes[RunClass.INTERACTIVE], classes[RunClass.BATCH])
    in_homes = {
        key[-1]: (name, run_class, caller)
        for name, lanes in state.homes.items()
        for run_class in RunClass
        for caller, queue in lanes[run_class].queues.items()
        for key in queue
    }
    in_pools = {
        key[-1]: (pool_name, run_class, caller)
        for pool_name, pool in state.pools.items()
        for run_class in RunClass
        for caller, queue in pool.lanes[run_class].queues.items()
        for key in queue
    }
    assert not in_homes.keys() & in_pools.keys()
    assert in_homes.keys() | in_pools.keys() == {turn.request.turn_id for turn in held}, "a held turn is in no lane"
    for turn in held:
        request = turn.request
        if turn.held_at is None:
            assert in_pools[request.turn_id] == (pool_key(turn), request.run_class, request.caller)
        else:
            assert in_homes[request.turn_id] == (turn.held_at, request.run_class, request.caller)
        run = state.runs[turn.run_id] if turn.run_id is not None else None
        home = pinned_home(Draft.of(state), run, pool_key(turn)) if run is not None else None
        assert turn.held_at == (home.name if home else None), "a held turn waits in the wrong place"
        assert may_be_served(Draft.of(state), pool_key(turn)), "a held turn that could never be placed"


def _check_shares(state: State, held: list[Turn], flying: list[Turn]) -> None:
    running = Counter(turn.request.caller for turn in flying)
    waits: dict[str, set[object]] = {}
    for turn in held:
        if turn.held_at is None:
            waits.setdefault(turn.request.caller, set()).add((pool_key(turn), turn.request.run_class))
    at_work = Counter(run.caller for run in state.runs.values() if run.run_class is RunClass.BATCH and run.at_work)
    assert set(state.shares) == running.keys() | waits.keys() | at_work.keys()
    for caller, share in state.shares.items():
        assert share == Share(running[caller], at_work[caller], share.waits_in)
        assert set(share.waits_in) == waits.get(caller, set())
        assert len(share.waits_in) == len(set(share.waits_in))
    for pool in state.pools.values():
        for lane in pool.lanes:
            right = {(state.shares[c].running, queue.first(), c) for c, queue in lane.queues.items()}
            assert list(lane.order) == sorted(right)


def _check_indexes(state: State) -> None:
    for key, pool in state.pools.items():
        members = [replica for replica in state.replicas.values() if serves(replica, key)]
        assert pool.members == tuple(sorted(replica.name for replica in members))
        limited = [replica for replica in members if replica.budget is not None and replica.budget.is_limited]
        assert pool.is_limited == (bool(members) and len(limited) == len(members))
        assert pool.members or any(lane.queues for lane in pool.lanes), "a pool that nobody needs"
        roomy = [replica for replica in members if has_room(replica, RunClass.BATCH)]
        tight = [r for r in members if has_room(r, RunClass.INTERACTIVE) and not has_room(r, RunClass.BATCH)]
        assert list(pool.roomy) == sorted(map(load_key, roomy if pool.is_indexed else ()))
        assert list(pool.tight) == sorted(map(load_key, tight if pool.is_indexed else ()))


def _check_nothing_waits_in_vain(state: State, held: list[Turn]) -> None:
    if not state.is_open:
        return
    for turn in held:
        if turn.held_at is not None:
            where = [state.replicas[turn.held_at]]
        else:
            where = [state.replicas[name] for name in state.pools.get(pool_key(turn), Pool()).members]
        request = turn.request
        assert not any(has_room(r, request.run_class, request.caller) for r in where), (
            "a turn waits that could be placed"
        )
