"""Where turns go: placing one, holding it, freeing its slot, filling what became free. Pure; works on a draft.

Nothing waits that could be placed: every decision ends with `fill`, which gives the room that it made to held turns,
in the order of `fairness.best`. So a new turn that finds room overtakes nobody.
"""

from __future__ import annotations

from heapq import heappop, heappush

from msgspec.structs import replace

from common.ids import ReplicaName
from scheduler import fairness, limited, money
from scheduler.admission import expected_tokens, has_room, owes_batch
from scheduler.effects import PlaceTurn
from scheduler.events import RunClass, TurnEnded, TurnFailed
from scheduler.ordered import Key
from scheduler.parts import with_change
from scheduler.pools import choose, is_ill, load_key, pinned_home, pool_key, pool_members, put_replica, serves
from scheduler.runs import expect_no_more, put_run, resident_tokens, without, without_place
from scheduler.state import STARVES_AFTER, Draft, Replica, Run, Turn
from scheduler.timers import set_patience_timer, set_turn_timer


def submit(draft: Draft, turn: Turn, run: Run | None) -> None:
    """Places a turn that just arrived, or holds it."""
    if run is not None:
        run = _untied_if_home_is_ill(draft, run)
    home = pinned_home(draft, run, pool_key(turn)) if run is not None else None
    resident = run is not None and bool(resident_tokens(run))
    if home is None and draft.histories is not None:
        turn = limited.described(draft, turn)
        if limited.refuses(draft, turn, run):
            if run is not None and run.run_id in draft.runs:
                put_run(draft, run)
            return
        turn = money.with_usd(draft, turn)
        replica = limited.choose(draft, turn, run, resident=resident)
    elif home is None:
        replica = choose(draft, turn, run, resident=resident)
    else:
        replica = home if draft.is_open and _fits(home, turn, resident=resident) else None
    if replica is not None:
        fairness.count_running(draft, turn.request.caller, 1)
        place(draft, turn, run, replica)
        return
    if turn.gives_up_at is not None and turn.gives_up_at <= draft.now:
        if turn.reserved_usd is not None:
            money.release_usd(draft, turn)
        limited.refuse_late(draft, turn)
        if run is not None and run.run_id in draft.runs:
            put_run(draft, run)
        return
    _hold(draft, turn, home.name if home else None)
    if turn.gives_up_at is not None:
        set_patience_timer(draft, turn)
    if run is not None:
        put_run(draft, replace(run, held=(*run.held, turn.request.turn_id)))


def place(draft: Draft, turn: Turn, run: Run | None, replica: Replica) -> None:
    """Puts a turn that is in no lane, and counted as running, in flight on a replica."""
    turn_id, run_class = turn.request.turn_id, turn.request.run_class
    draft.sequence += 1
    budget, reservation = replica.budget, None
    if budget is not None:
        budget, reservation = limited.reserve(draft, budget, replica, turn)
    tokens = 0
    if run is not None:
        tokens = run.tokens if run.is_measured else expected_tokens(replica)
        if run.expected_as is not None and run.home == replica.name:
            # It takes the place that was kept for it, so its home gets no roomier.
            replica = without_place(replica, run)
        else:
            run = expect_no_more(draft, run)
    batch_tokens = tokens if run_class is RunClass.BATCH else 0
    busier = replace(
        replica,
        in_flight=replica.in_flight + 1,
        batch_in_flight=replica.batch_in_flight + (run_class is RunClass.BATCH),
        batch_flight_tokens=replica.batch_flight_tokens + batch_tokens,
        takings=with_change(replica.takings, turn.request.caller, flying=batch_tokens),
        since_batch=0 if run_class is RunClass.BATCH else min(replica.since_batch + 1, STARVES_AFTER),
        last_sequence=draft.sequence,
        budget=budget,
    )
    put_replica(draft, busier)
    if owes_batch(busier):
        draft.roomier.append(busier.name)
    if run is not None:
        run = _generating(draft, run, turn, busier, tokens)
    placed = replace(
        turn,
        held_at=None,
        replica=replica.name,
        sequence=draft.sequence,
        held_s=draft.now - turn.arrived_at,
        renewed_at=draft.now,
        reservation=reservation,
        placed_at=draft.now,
        tokens=tokens,
    )
    draft.turns = draft.turns.set(turn_id, placed)
    draft.effects.append(placement(placed))
    if run is None:
        set_turn_timer(draft, placed)
    elif run.held:
        rehome_held(draft, run)


def placement(turn: Turn) -> PlaceTurn:
    """The answer for a turn in flight."""
    assert turn.replica is not None
    return PlaceTurn(turn.dataplane, turn.request.turn_id, turn.run_id, turn.replica, turn.sequence, turn.held_s)


def free_slot(draft: Draft, turn: Turn, end: TurnEnded | TurnFailed | None = None) -> None:
    """Forgets a turn in flight, by its `end` if one was told. The caller sets its run."""
    assert turn.replica is not None
    draft.turns = draft.turns.delete(turn.request.turn_id)
    replica = draft.replicas[turn.replica]
    batch = turn.request.run_class is RunClass.BATCH
    batch_tokens = turn.tokens if batch else 0
    budget, dry_for = replica.budget, replica.dry_for
    if turn.reservation is not None:
        budget, dry_for = limited.settled(draft, replica, turn, end), None
    freer = replace(
        replica,
        in_flight=replica.in_flight - 1,
        batch_in_flight=replica.batch_in_flight - batch,
        batch_flight_tokens=replica.batch_flight_tokens - batch_tokens,
        takings=with_change(replica.takings, turn.request.caller, flying=-batch_tokens),
        budget=budget,
        dry_for=dry_for,
    )
    put_replica(draft, freer)
    if turn.reserved_usd is not None:
        money.release_usd(draft, turn)
    draft.roomier.append(turn.replica)
    fairness.count_running(draft, turn.request.caller, -1)


def drop_held(draft: Draft, turn: Turn) -> None:
    """Forgets a held turn. The caller sets its run."""
    if turn.reserved_usd is not None:
        money.release_usd(draft, turn)
    fairness.dequeue(draft, turn)
    draft.turns = draft.turns.delete(turn.request.turn_id)


def fill(draft: Draft) -> None:
    """Places held turns on the replicas noted as roomier, one at a time on the least loaded that takes one.

    A placement may make room elsewhere (a place that was kept), which is filled too."""
    if draft.regained:
        _tie_again(draft)
    if not draft.is_open or draft.held == (0, 0):
        return
    heap: list[tuple[Key, ReplicaName]] = []
    while draft.roomier or heap:
        for name in set(draft.roomier):
            heappush(heap, (load_key(draft.replicas[name]), name))
        draft.roomier.clear()
        load, name = heappop(heap)
        replica = draft.replicas[name]
        if load == load_key(replica) and _take_next(draft, replica):
            draft.roomier.append(name)


def go_home(draft: Draft) -> None:
    """When the scheduler opens: places held turns of idle runs at their homes, as far as there is room. All turns of
    the outage are there at once, and would else be spread without a look at where their prefixes are."""
    waiting = sorted(
        (turn.request.run_class, turn.key)
        for turn in draft.turns.values()
        if turn.replica is None and turn.held_at is None and turn.run_id is not None
    )
    for _, key in waiting:
        turn = draft.turns[key[-1]]
        assert turn.run_id is not None
        run = draft.runs[turn.run_id]
        home = draft.replicas.get(run.home) if run.home is not None else None
        if turn.held_at is not None or home is None or home.budget is not None:
            continue
        if serves(home, pool_key(turn)) and _fits(home, turn):
            fairness.dequeue(draft, turn, starts=True)
            place(draft, turn, run, home)


def rehome_held(draft: Draft, run: Run) -> None:
    """Sets a run whose phase or home changed, and moves its held turns to where they belong now; places none."""
    for turn_id in run.held:
        turn = draft.turns[turn_id]
        run = _untied_if_home_is_ill(draft, run)
        home = pinned_home(draft, run, pool_key(turn))
        where = home.name if home else None
        if turn.held_at != where:
            fairness.dequeue(draft, turn)
            _hold(draft, turn, where)
            draft.roomier.extend(pool_members(draft, turn) if where is None else (where,))
    put_run(draft, run)


def rehome_all(draft: Draft, name: ReplicaName) -> None:
    """Lets the turns held for a replica that is ill, rests or does not serve their model any more go elsewhere."""
    lanes = draft.homes.get(name, ())
    held = sorted(key for lane in lanes for queue in lane.queues.values() for key in queue)
    for key in held:
        turn = draft.turns[key[-1]]
        assert turn.run_id is not None
        rehome_held(draft, draft.runs[turn.run_id])


def _tie_again(draft: Draft) -> None:
    """Lets held turns of the runs that are at home on a replica that ties them again wait for it. It looks at all held
    turns, which the end of a rest and other models are seldom enough for."""
    homes = set(draft.regained)
    held = (turn for turn in draft.turns.values() if turn.replica is None and turn.run_id is not None)
    runs = {turn.run_id for turn in held if turn.run_id is not None and draft.runs[turn.run_id].home in homes}
    for run_id in sorted(runs):
        rehome_held(draft, draft.runs[run_id])


def _hold(draft: Draft, turn: Turn, home: ReplicaName | None) -> None:
    """Lets a turn wait for one replica, or for any of its pool."""
    if turn.held_at != home:
        turn = replace(turn, held_at=home)
    draft.turns = draft.turns.set(turn.request.turn_id, turn)
    fairness.enqueue(draft, turn)


def _fits(replica: Replica, turn: Turn, *, resident: bool = False) -> bool:
    return has_room(replica, turn.request.run_class, turn.request.caller, resident=resident)


def _take_next(draft: Draft, replica: Replica) -> bool:
    """Places the held turn that goes next to the replica, if there is one and room for it."""
    turn_id = fairness.best(draft, replica, _takes(replica, draft.held))
    if turn_id is None:
        return False
    turn = draft.turns[turn_id]
    if replica.budget is not None and not limited.fits(draft, replica, turn):
        return False
    fairness.dequeue(draft, turn, starts=True)
    place(draft, turn, draft.runs[turn.run_id] if turn.run_id is not None else None, replica)
    return True


def _takes(replica: Replica, held: tuple[int, int]) -> fairness.Classes:
    """The classes of which `replica` takes one of the `held` turns now, in order."""
    if owes_batch(replica):
        return fairness.BATCH_FIRST if has_room(replica, RunClass.INTERACTIVE) else ()
    if held[RunClass.BATCH] and has_room(replica, RunClass.BATCH):
        return fairness.INTERACTIVE_FIRST  # for which there is more room always
    return fairness.INTERACTIVE_ALONE if held[RunClass.INTERACTIVE] and has_room(replica, RunClass.INTERACTIVE) else ()


def _generating(draft: Draft, run: Run, turn: Turn, replica: Replica, tokens: int) -> Run:
    """Sets the run with a turn placed. Where it is tied to a home that does not serve this turn's model, that stays
    its home."""
    turn_id = turn.request.turn_id
    home = draft.replicas.get(run.home) if run.home is not None and (run.in_flight or run.paused) else None
    if home is not None and home.budget is not None:
        home = None
    generating = replace(
        run,
        home=home.name if home is not None and not is_ill(home) else replica.name,
        sequence=draft.sequence,
        in_flight=(*run.in_flight, turn_id),
        held=without(run.held, turn_id),
        paused=False,
        expected_as=None,
        tokens=tokens,
        active_at=draft.now,
    )
    put_run(draft, generating)
    return generating


def _untied_if_home_is_ill(draft: Draft, run: Run) -> Run:
    """A run whose home is unhealthy moves at once: it has no home any longer. It is not set yet."""
    home = draft.replicas.get(run.home) if run.home is not None else None
    return run if home is None or not is_ill(home) else replace(expect_no_more(draft, run), home=None)
