"""Dataplanes that come and go: what becomes of their turns, and what they tell after a restart. Pure; works on a
draft."""

from __future__ import annotations

from immutables import Map
from msgspec.structs import replace

from common.ids import Caller, DataplaneId, ReplicaName, RunId, TurnId
from scheduler import fairness, limited, turns
from scheduler.effects import TellRunEnded
from scheduler.events import DataplaneResynced, KnownRun, KnownTurn, Phase, RunClass, RunEnded, StreamLost
from scheduler.habits import USUAL
from scheduler.placement import free_slot, rehome_held
from scheduler.pools import put_replica
from scheduler.runs import arrive, expect_back, expect_no_more, forget, new_run, put_run, remember_tool_calls
from scheduler.state import ENDED_RUNS_MAX, ORPHAN_LIMIT_S, RUN_FORGOTTEN_S, Draft, Run, Turn
from scheduler.timers import set_turn_timer


def stream_lost(draft: Draft, event: StreamLost) -> None:
    """Drops the held turns of a dataplane, which admits them again; those in flight wait for its resync."""
    for turn_id in _turn_ids_of(draft, event.dataplane):
        turn = draft.turns.get(turn_id)
        if turn is not None and turn.replica is None:
            turns.leave_lane(draft, turn, comes_again=True)
    draft.orphaned = draft.orphaned.set(event.dataplane, draft.now + ORPHAN_LIMIT_S)
    draft.absent = draft.absent.set(event.dataplane, draft.now + RUN_FORGOTTEN_S)


def drop_orphans(draft: Draft) -> None:
    """Frees the slots of dataplanes that did not come back in time."""
    for dataplane in sorted(name for name, due in draft.orphaned.items() if due <= draft.now):
        draft.orphaned = draft.orphaned.delete(dataplane)
        for turn_id in _turn_ids_of(draft, dataplane):
            turn = draft.turns.get(turn_id)
            if turn is not None and turn.replica is not None:
                turns.expired(draft, turn)


def remember_end(draft: Draft, event: RunEnded) -> None:
    """Notes for dataplanes that are away that a run ended: what they tell of it later is older."""
    if draft.absent and len(draft.ended_runs) < ENDED_RUNS_MAX:
        draft.ended_runs = draft.ended_runs.set((event.run_id, event.caller), draft.sequence)


def forget_absent(draft: Draft) -> None:
    """Expects dataplanes no longer that were away for so long that all they could tell is forgotten."""
    for dataplane in [name for name, due in draft.absent.items() if due <= draft.now]:
        _expect_no_longer(draft, dataplane)


def _expect_no_longer(draft: Draft, dataplane: DataplaneId) -> None:
    if dataplane in draft.absent:
        draft.absent = draft.absent.delete(dataplane)
        if not draft.absent:
            draft.ended_runs = Map()


def _has_ended(draft: Draft, run_id: RunId, caller: Caller, sequence: int) -> bool:
    """Whether a run whose last placement has this sequence ended meanwhile; the same id may have begun anew."""
    return sequence <= draft.ended_runs.get((run_id, caller), -1)


def resynced(draft: Draft, event: DataplaneResynced) -> None:
    """Takes over what a dataplane knows. Of two that tell of one run, the one with the later placement is right;
    turns in flight that the dataplane does not name have ended while it was away."""
    if event.dataplane in draft.orphaned:
        draft.orphaned = draft.orphaned.delete(event.dataplane)
    named = {known.request.turn_id for known in event.turns}
    for turn_id in _turn_ids_of(draft, event.dataplane):
        turn = draft.turns[turn_id]
        if turn.replica is not None and turn_id not in named:
            _vanish(draft, turn)
    if draft.histories is not None:
        limited.resynced(draft, event.limits, _unused_s(event))
    for known in event.runs:
        if _has_ended(draft, known.run_id, known.caller, known.sequence):
            draft.effects.append(TellRunEnded(event.dataplane, known.run_id, known.caller))
        else:
            _take_over_run(draft, known)
    for known_turn in event.turns:
        _take_over_turn(draft, event.dataplane, known_turn)
    _expect_no_longer(draft, event.dataplane)
    draft.roomier.extend(draft.replicas)


def _vanish(draft: Draft, turn: Turn) -> None:
    """Takes a turn out of flight that ended unseen; its run's phase is told by the resync, else it is idle."""
    free_slot(draft, turn)
    if turn.run_id is not None:
        run = draft.runs[turn.run_id]
        in_flight = tuple(other for other in run.in_flight if other != turn.request.turn_id)
        _set(draft, replace(run, in_flight=in_flight, active_at=draft.now))


def _take_over_run(draft: Draft, known: KnownRun) -> None:
    draft.sequence = max(draft.sequence, known.sequence)
    run = draft.runs.get(known.run_id)
    if known.age_s >= RUN_FORGOTTEN_S or (run is not None and run.sequence > known.sequence):
        return
    at = draft.now - known.age_s
    if run is None:
        run = new_run(draft, Run(known.run_id, known.caller, known.run_class, active_at=at))
    run = expect_no_more(draft, run)
    paused = known.phase is Phase.PAUSED and not run.in_flight
    told = replace(
        run,
        caller=known.caller,
        run_class=known.run_class,
        home=known.replica if known.replica in draft.replicas else None,
        sequence=known.sequence,
        paused=paused,
        paused_at=at,
        turns_done=max(run.turns_done, known.turns_done),
        active_at=max(run.active_at, at),
    )
    if paused and known.age_s < draft.habits.get(known.caller, USUAL).patience_s:
        told = expect_back(draft, told)
    _set(draft, told)
    remember_tool_calls(draft, told, known.tool_call_ids)


def _take_over_turn(draft: Draft, dataplane: DataplaneId, known: KnownTurn) -> None:
    draft.sequence = max(draft.sequence, known.sequence)
    request = known.request
    turn = draft.turns.get(request.turn_id)
    if turn is not None and turn.replica is not None:
        draft.turns = draft.turns.set(request.turn_id, replace(turn, dataplane=dataplane, renewed_at=draft.now))
        return
    if turn is not None:
        turns.leave_lane(draft, turn, comes_again=True)
    replica = draft.replicas.get(known.replica)
    if replica is None:
        return
    turn = Turn(
        request,
        dataplane,
        run_id=None if request.one_shot else request.run_id,
        arrived_at=draft.now - known.age_s,
        key=(),
        replica=known.replica,
        sequence=known.sequence,
        renewed_at=draft.now,
    )
    replica, turn = limited.taken_over(draft, turn, replica)
    draft.turns = draft.turns.set(request.turn_id, turn)
    batch = request.run_class is RunClass.BATCH
    busier = replace(replica, in_flight=replica.in_flight + 1, batch_in_flight=replica.batch_in_flight + batch)
    put_replica(draft, busier)
    fairness.count_running(draft, request.caller, 1)
    if turn.run_id is None:
        set_turn_timer(draft, turn)
        return
    run = expect_no_more(draft, arrive(draft, turn.run_id, request))
    later = known.sequence >= run.sequence
    generating = replace(
        run,
        home=known.replica if later else run.home,
        sequence=known.sequence if later else run.sequence,
        in_flight=(*run.in_flight, request.turn_id),
        paused=False,
        ended=run.ended or _has_ended(draft, turn.run_id, request.caller, known.sequence),
    )
    _set(draft, generating)


def _unused_s(event: DataplaneResynced) -> dict[ReplicaName, float]:
    """For how long each replica got no turn of the dataplane, at least."""
    ages: dict[ReplicaName, float] = {}
    told = [(run.replica, run.age_s) for run in event.runs] + [(turn.replica, turn.age_s) for turn in event.turns]
    for replica, age_s in told:
        ages[replica] = min(age_s, ages.get(replica, age_s))
    return ages


def _set(draft: Draft, run: Run) -> None:
    if run.held:
        rehome_held(draft, run)
        return
    put_run(draft, run)
    if run.ended and not run.in_flight:
        forget(draft, run)


def _turn_ids_of(draft: Draft, dataplane: DataplaneId) -> list[TurnId]:
    """A dataplane's turns in the order of their ids, so that the outcome does not depend on the map's."""
    return sorted(turn_id for turn_id, turn in draft.turns.items() if turn.dataplane == dataplane)
