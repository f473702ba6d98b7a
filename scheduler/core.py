"""The decision: what an event changes, and what is to be done. Pure and deterministic: no clock, no chance, no await.

`decide` is the only way the state changes. The rules are in the modules it calls: `turns` (arrival to end), `placement`
(where), `admission` (whether there is room), `fairness` (who is next), `runs`, `pools`, `timers`, `resync`.
The page that explains them is scheduler/README.md; `invariants` says what must always hold.
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from scheduler import limited, money, resync, turns
from scheduler.admission import parted, probed, tried
from scheduler.effects import Effect
from scheduler.events import (
    DataplaneResynced,
    Event,
    FirstTokenSeen,
    Phase,
    ReplicaProbed,
    RunEnded,
    StreamLost,
    Ticked,
    TurnAbandoned,
    TurnArrived,
    TurnEnded,
    TurnFailed,
    TurnsRenewed,
    TurnStarted,
)
from scheduler.placement import fill, go_home, rehome_all
from scheduler.pools import is_ill, put_replica, reindex, set_models
from scheduler.runs import expect_no_more, forget, gone, put_run, sweep_tool_calls
from scheduler.state import (
    IDLE_RUNS_MAX,
    NO_SHARE,
    RUN_FORGOTTEN_S,
    TOOL_CALL_SWEEP_S,
    TURN_LIMIT_S,
    Chain,
    Draft,
    Run,
    State,
)
from scheduler.timers import Timer, is_due, set_run_timer, set_turn_timer, take_due
from scheduler.ways import NOTHING_GIVEN

_SIGNS_OF_LIFE = (TurnStarted, FirstTokenSeen, TurnsRenewed)


def decide(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """The state after `event`, and the effects to perform, in order.

    Time never goes back: an event earlier than the last one counts as simultaneous with it."""
    if isinstance(event, _SIGNS_OF_LIFE) and not (isinstance(event, FirstTokenSeen) and event.limits):
        return turns.heard_of(state, event), ()
    draft = Draft.of(state)
    draft.now = max(draft.now, event.at)
    match event:
        case TurnArrived():
            turns.arrived(draft, event)
        case TurnEnded():
            turns.ended(draft, event)
        case TurnFailed():
            turns.failed(draft, event)
        case FirstTokenSeen():
            limited.told(draft, event)
        case TurnAbandoned():
            turns.abandoned(draft, event)
        case RunEnded():
            _run_ended(draft, event)
        case ReplicaProbed():
            _replica_probed(draft, event)
        case Ticked():
            _ticked(draft, state.now)
        case StreamLost():
            resync.stream_lost(draft, event)
        case DataplaneResynced():
            resync.resynced(draft, event)
        case _:
            assert_never(event)
    _place_held(draft)
    reindex(draft)
    return draft.freeze(), tuple(draft.effects)


def _place_held(draft: Draft) -> None:
    fill(draft)
    while draft.hopeless:
        turns.refuse_hopeless(draft)
        fill(draft)


def _run_ended(draft: Draft, event: RunEnded) -> None:
    run = draft.runs.get(event.run_id)
    money.run_ended(draft, (event.run_id, event.caller))
    if run is None or run.caller == event.caller:
        resync.remember_end(draft, event)
    if run is None or run.caller != event.caller:
        return
    if run.in_flight or run.held:
        put_run(draft, replace(run, ended=True))
        return
    gone(draft, run)
    forget(draft, run)


def _replica_probed(draft: Draft, event: ReplicaProbed) -> None:
    before = draft.replicas.get(event.replica)
    if before is None:
        return
    batch_runs = {caller: draft.shares.get(caller, NO_SHARE).batch_runs for caller in before.takings}
    replica = probed(before, event)
    if replica.kv_tokens is not None:
        likeness = replica.models, replica.kv_tokens
        known = draft.givens.get(likeness, NOTHING_GIVEN)
        replica, givens = tried(replica, known, draft.now)
        if givens is not known:
            draft.givens = draft.givens.set(likeness, givens)
    put_replica(draft, parted(replica, batch_runs))
    draft.roomier.append(event.replica)
    after = draft.replicas[event.replica]
    relearned = event.models is not None and before.models_learned and event.models != before.models
    if relearned and event.models is not None:
        set_models(draft, after, event.models)
        draft.regained.append(event.replica)
    if relearned or (is_ill(after) and not is_ill(before)):
        rehome_all(draft, event.replica)
    if relearned:
        turns.refuse_unserved(draft)


def _wait_for_models_no_longer(draft: Draft) -> None:
    if draft.unknown_models == (0, 0):
        return
    for name in [name for name, replica in draft.replicas.items() if replica.models is None]:
        rehome_all(draft, name)
    turns.refuse_unserved(draft)


def _ticked(draft: Draft, last: float) -> None:
    if not draft.is_open and draft.now >= draft.opens_at:
        draft.is_open = True
        go_home(draft)
        draft.roomier.extend(draft.replicas)
    if draft.models_due_at is not None and draft.now >= draft.models_due_at:
        draft.models_due_at = None
        _wait_for_models_no_longer(draft)
    if draft.dry:
        limited.reopen(draft)
    for timer in take_due(draft):
        _look(draft, timer)
    resync.drop_orphans(draft)
    if draft.now // TOOL_CALL_SWEEP_S != last // TOOL_CALL_SWEEP_S:
        sweep_tool_calls(draft)
        resync.forget_absent(draft)
    _forget_surplus(draft)


def _forget_surplus(draft: Draft) -> None:
    """Forgets idle runs beyond IDLE_RUNS_MAX, those first whose timers are due first, which were set longest ago."""
    surplus = draft.run_counts[2] + draft.run_counts[5] - IDLE_RUNS_MAX
    if surplus <= 0:
        return
    for second in sorted(draft.timers):
        chain: Chain = draft.timers[second]
        kept: Chain = None
        while chain is not None:
            timer, chain = chain
            run = draft.runs.get(timer[1]) if timer[0] == "run" else None
            idle = run is not None and run.born == timer[2] and run.phase is Phase.IDLE and not run.held
            if idle and run is not None and surplus > 0:
                forget(draft, run)
                surplus -= 1
            else:
                kept = (timer, kept)
        draft.timers = draft.timers.delete(second) if kept is None else draft.timers.set(second, kept)
        if surplus <= 0:
            return


def _look(draft: Draft, timer: Timer) -> None:
    """Looks at what a timer is about; see `timers`."""
    match timer:
        case ("run", run_id, born):
            run = draft.runs.get(run_id)
            if run is not None and run.born == born:
                _look_at_run(draft, run)
        case ("pause", run_id, paused_at):
            run = draft.runs.get(run_id)
            if run is not None and run.expected_as is not None and run.paused_at == paused_at:
                gone(draft, run)
                put_run(draft, expect_no_more(draft, run))
        case ("turn", turn_id, _):
            turn = draft.turns.get(turn_id)
            if turn is None or turn.replica is None:
                return  # it ended, or came again and is held: its next placement sets a timer of its own
            if is_due(draft, turn.renewed_at + TURN_LIMIT_S):
                turns.expired(draft, turn)
            else:
                set_turn_timer(draft, turn)
        case ("patience", turn_id, _):
            turn = draft.turns.get(turn_id)
            if turn is not None and turn.replica is None:
                turns.given_up(draft, turn)
        case _:
            assert_never(timer)


def _look_at_run(draft: Draft, run: Run) -> None:
    for turn_id in run.in_flight:
        turn = draft.turns[turn_id]
        if is_due(draft, turn.renewed_at + TURN_LIMIT_S):
            turns.expired(draft, turn)
    known = draft.runs.get(run.run_id)
    if known is None:
        return
    if not known.in_flight and not known.held and is_due(draft, known.active_at + RUN_FORGOTTEN_S):
        forget(draft, known)
    else:
        set_run_timer(draft, known)
