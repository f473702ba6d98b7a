"""What happens to turns: arrival, end, failure, abandonment, expiry. Pure; works on a draft."""

from __future__ import annotations

from msgspec.structs import replace

from common.ids import DataplaneId, TurnId
from scheduler import limited, ways
from scheduler.budgets.forecast import grown
from scheduler.economy import TurnSeen, with_turn
from scheduler.effects import LogExpiry, Reason, RefuseTurn
from scheduler.events import (
    FirstTokenSeen,
    Request,
    RunClass,
    TurnAbandoned,
    TurnArrived,
    TurnEnded,
    TurnFailed,
    TurnsRenewed,
    TurnStarted,
)
from scheduler.fairness import held_key
from scheduler.habits import USUAL
from scheduler.money import members_for, take_in
from scheduler.placement import drop_held, free_slot, placement, rehome_all, rehome_held, submit
from scheduler.pools import may_be_served, put_replica
from scheduler.runs import arrive, expect_back, expect_no_more, forget, identify, put_run, remember_tool_calls, without
from scheduler.state import SIGN_OF_LIFE_S, Draft, Run, State, Turn, with_first_token

WHOLE_REPLY_SHARE = 0.02
"""A reply that took less of its time than this after its first token came whole."""
NAMED_MAX = 8
"""Replicas named in one message."""


def arrived(draft: Draft, event: TurnArrived) -> None:
    """Identifies the turn's run, then places, holds or refuses it. A turn that is known already is answered again."""
    request = event.request
    known = draft.turns.get(request.turn_id)
    if known is not None:
        _arrived_again(draft, known, event)
        return
    run_id = None if request.one_shot else identify(draft, request)
    run = draft.runs.get(run_id) if run_id is not None else None
    arrived_at = draft.now - event.held_s
    if run is not None and run.caller != request.caller:
        message = f"run '{run_id}' belongs to another caller"
        draft.effects.append(RefuseTurn(event.dataplane, request.turn_id, Reason.RUN_OF_OTHER_CALLER, message))
        return
    if not may_be_served(draft, (request.one_shot, request.model)):
        _refuse_model(draft, Turn(request, event.dataplane, run_id, arrived_at, ()))
        return
    if run_id is not None:
        request = take_in(draft, run_id, request, event.held_s)
    if request.deadline_s is not None and request.deadline_s <= event.held_s:
        whose = "its" if event.request.deadline_s is not None else "its run's"
        message = f"{whose} deadline, x-luftpause-deadline, has passed already"
        draft.effects.append(RefuseTurn(event.dataplane, request.turn_id, Reason.DEADLINE, message))
        return
    if run_id is not None:
        run = arrive(draft, run_id, request)
    draft.arrivals += 1
    pool = draft.pools.get((request.one_shot, request.model))
    key = held_key(
        is_continuation=run is not None and (run.paused or bool(run.in_flight)),
        turns_done=run.turns_done if run is not None else 0,
        by_age=pool is not None and pool.is_limited,
        arrived_at=arrived_at,
        arrivals=draft.arrivals,
        turn_id=request.turn_id,
    )
    gives_up_at = limited.gives_up_at(draft, request, event.held_s)
    submit(draft, Turn(request, event.dataplane, run_id, arrived_at, key, gives_up_at=gives_up_at), run)


def heard_of(state: State, event: TurnStarted | FirstTokenSeen | TurnsRenewed) -> State:
    """Starts the time limit of turns in flight anew, within SIGN_OF_LIFE_S. Needs no draft: nothing else changes."""
    now, turns = max(state.now, event.at), state.turns
    for turn_id in event.turn_ids if isinstance(event, TurnsRenewed) else (event.turn_id,):
        turn = turns.get(turn_id)
        if turn is None or turn.replica is None:
            continue
        if isinstance(event, FirstTokenSeen):
            turns = turns.set(turn_id, with_first_token(turn, event.at, now))
        elif now - turn.renewed_at >= SIGN_OF_LIFE_S:
            turns = turns.set(turn_id, replace(turn, renewed_at=now))
    return state if turns is state.turns and now == state.now else replace(state, now=now, turns=turns)


def ended(draft: Draft, event: TurnEnded) -> None:
    """Frees the slot; the run is paused if its reply contained a tool call, else idle."""
    turn = draft.turns.get(event.turn_id)
    if turn is None or turn.replica is None:
        return
    if turn.run_id is not None:
        run = draft.runs[turn.run_id]
        if event.tool_call_ids:
            remember_tool_calls(draft, run, event.tool_call_ids)
        if event.prompt_tokens is not None:
            _measure(draft, turn, run, event.prompt_tokens, event)
    leave_flight(draft, turn, event)


def _measure(draft: Draft, turn: Turn, run: Run, prompt_tokens: int, event: TurnEnded) -> None:
    """Notes what a whole turn told of its replica's economy; its run is as it was before."""
    assert turn.replica is not None
    completion_tokens = event.completion_tokens or 0
    known = run.tokens if run.is_measured and run.turns_done else 0
    fresh_tokens = max(0, prompt_tokens - known)
    first_token_s, decode_s = turn.first_token_at - turn.placed_at, max(0.0, event.at - turn.first_token_at)
    if turn.first_token_at == 0.0 or decode_s < WHOLE_REPLY_SHARE * first_token_s:
        return  # the reply was not streamed: when its first token came is not known
    replica = draft.replicas[turn.replica]
    cached_tokens = event.cached_tokens if event.cached_tokens is not None else prompt_tokens - fresh_tokens
    seen = TurnSeen(
        draft.now,
        prompt_tokens,
        completion_tokens,
        cached_tokens,
        fresh_tokens,
        first_token_s,
        decode_s,
        replica.in_flight,
    )
    is_interactive = turn.request.run_class is RunClass.INTERACTIVE
    trial = ways.with_turn(replica.trial, draft.now, draft.now - turn.placed_at, is_interactive=is_interactive)
    put_replica(draft, replace(replica, economy=with_turn(replica.economy, seen), trial=trial))


def failed(draft: Draft, event: TurnFailed) -> None:
    """Frees the slot; the run is idle."""
    turn = draft.turns.get(event.turn_id)
    replica = turn.replica if turn is not None else None
    if turn is None or replica is None:
        return
    if turn.reservation is None and event.status == limited.TOO_MANY_REQUESTS:
        limited.rest(draft, replica, event.limits)
        rehome_all(draft, replica)
    leave_flight(draft, turn, event)


def abandoned(draft: Draft, event: TurnAbandoned) -> None:
    """Forgets a held turn, or frees the slot of one that was placed meanwhile; the run is idle."""
    turn = draft.turns.get(event.turn_id)
    if turn is None or turn.dataplane != event.dataplane or event.caller not in (None, turn.request.caller):
        return
    if turn.replica is not None:
        leave_flight(draft, turn)
    else:
        leave_lane(draft, turn, comes_again=False)


def given_up(draft: Draft, turn: Turn) -> None:
    """Refuses a held turn whose client waits no longer."""
    leave_lane(draft, turn, comes_again=False)
    limited.refuse_late(draft, turn)


def expired(draft: Draft, turn: Turn) -> None:
    """Frees the slot of a turn in flight of which nothing was heard in time."""
    assert turn.replica is not None
    draft.effects.append(LogExpiry(turn.request.turn_id, turn.replica))
    leave_flight(draft, turn)


def leave_flight(draft: Draft, turn: Turn, end: TurnEnded | TurnFailed | None = None) -> None:
    """Takes a turn out of flight, by its `end` if one was told, and sets its run's phase, and its size where an engine
    told that."""
    free_slot(draft, turn, end)
    if turn.run_id is None:
        return
    run = draft.runs[turn.run_id]
    whole = end if isinstance(end, TurnEnded) else None
    paused, done = whole is not None and whole.has_tool_calls, whole is not None
    tokens, is_measured, context = run.tokens, run.is_measured, run.context
    if whole is not None and whole.prompt_tokens is not None:
        tokens, is_measured = whole.prompt_tokens + (whole.completion_tokens or 0), True
        if turn.reservation is not None and whole.completion_tokens is not None:
            turn_s = draft.now - turn.placed_at if turn.placed_at else 0.0
            request, prompt_tokens = turn.request, whole.prompt_tokens
            context = grown(
                context,
                request.model,
                prompt_tokens,
                whole.completion_tokens,
                turn_s=turn_s,
                max_tokens=request.max_tokens,
            )
    in_flight, turns_done = without(run.in_flight, turn.request.turn_id), run.turns_done + done
    settled = replace(
        run,
        in_flight=in_flight,
        paused=paused,
        paused_at=draft.now,
        turns_done=turns_done,
        active_at=draft.now,
        tokens=tokens,
        is_measured=is_measured,
        context=context,
    )
    is_between_turns = done and not in_flight and not run.ended
    if is_between_turns and draft.habits.get(run.caller, USUAL).expects(turns_done, paused=paused):
        settled = expect_back(draft, settled)
    put_run(draft, settled)
    _tidy(draft, settled)


def leave_lane(draft: Draft, turn: Turn, *, comes_again: bool) -> None:
    """Takes a held turn back. Unless it `comes_again`, nobody waits for it: its run, if it was paused, is idle."""
    drop_held(draft, turn)
    if turn.run_id is None:
        return
    run = draft.runs[turn.run_id]
    held = without(run.held, turn.request.turn_id)
    if comes_again or held or run.in_flight:
        left = replace(run, held=held, active_at=draft.now)
    else:
        left = replace(expect_no_more(draft, run), held=held, paused=False, active_at=draft.now)
    put_run(draft, left)
    _tidy(draft, left)


def _tidy(draft: Draft, run: Run) -> None:
    """After a turn of a run, as it is set, is gone: forgets the run if it ended, else lets its held turns go where
    they may go now."""
    if run.ended and not run.in_flight and not run.held:
        forget(draft, run)
    elif run.held:
        rehome_held(draft, run)


def refuse_unserved(draft: Draft) -> None:
    """Refuses held turns whose model, as turned out, no replica serves."""
    unserved = [key for key in draft.pools if not may_be_served(draft, key)]
    lanes = [lane for key in sorted(unserved) for lane in draft.pools[key].lanes]
    for key in sorted(key for lane in lanes for queue in lane.queues.values() for key in queue):
        turn = draft.turns[key[-1]]
        leave_lane(draft, turn, comes_again=False)
        _refuse_model(draft, turn)


def refuse_hopeless(draft: Draft) -> None:
    """Refuses held turns that fit nowhere any more, so that those behind them may go."""
    for turn_id in draft.hopeless:
        turn = draft.turns.get(turn_id)
        if turn is not None and turn.replica is None:
            draft.roomier.extend(members_for(draft, turn))
            leave_lane(draft, turn, comes_again=False)
            limited.refuse_for_size(draft, turn)
    draft.hopeless.clear()


def _refuse_model(draft: Draft, turn: Turn) -> None:
    reason, message = _why_unserved(draft, turn.request)
    draft.effects.append(RefuseTurn(turn.dataplane, turn.request.turn_id, reason, message))


def _why_unserved(draft: Draft, request: Request) -> tuple[Reason, str]:
    kind = "one-shot" if request.one_shot else "generative"
    text = f"no {kind} replica serves model '{request.model}'"
    if not draft.unknown_models[request.one_shot]:
        return Reason.UNKNOWN_MODEL, text
    alike = [replica for replica in draft.replicas.values() if replica.one_shot == request.one_shot]
    silent = sorted(replica.name for replica in alike if replica.models is None)
    names = ", ".join(silent[:NAMED_MAX]) + (f" and {len(silent) - NAMED_MAX} more" if len(silent) > NAMED_MAX else "")
    if len(silent) == len(alike):
        return Reason.MODELS_UNKNOWN, f"no {kind} replica has told its models yet: {names}"
    return Reason.UNKNOWN_MODEL, f"{text}; these never told their models: {names}"


def _arrived_again(draft: Draft, turn: Turn, event: TurnArrived) -> None:
    """The same turn id of the same caller and dataplane is the same turn: a placement is told again, a held turn goes
    on waiting. Anybody else's is refused, or he would learn of a turn that is not his, and take its answer."""
    if (turn.dataplane, turn.request.caller) != (event.dataplane, event.request.caller):
        draft.effects.append(refuse_foreign(event.dataplane, turn.request.turn_id))
    elif turn.replica is not None:
        draft.effects.append(placement(turn))


def refuse_foreign(dataplane: DataplaneId, turn_id: TurnId) -> RefuseTurn:
    """Refuses a turn whose id is that of a turn of another caller or dataplane."""
    message = f"turn '{turn_id}' belongs to another caller or dataplane"
    return RefuseTurn(dataplane, turn_id, Reason.RUN_OF_OTHER_CALLER, message)
