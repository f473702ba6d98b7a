"""Who else uses a replica's rate limits: what a run's forecast counts beside it. Pure; computed when asked for.

Read next: `budgets.forecast`.
"""

from __future__ import annotations

from itertools import islice

from common.ids import TurnId
from scheduler.budgets.forecast import Sharing
from scheduler.fairness import held_key
from scheduler.ordered import Key
from scheduler.pools import has_limits_alone
from scheduler.state import Replica, Run, State

LOOKED_AT = 256
"""Turns whose mean size is taken for that of all."""


def sharing_of(state: State, home: Replica, run: Run, prompt_tokens: float) -> Sharing:
    """Who uses the windows of a run's home beside it; `prompt_tokens`: of turns, where nothing is known of others'.

    Held turns count as far as the replica is one of several that they may go to. A run that goes before all that are
    held, now, is taken to do so later too. Runs whose next turns would go before this one, though they come later, are
    taken to do as many as they have done."""
    by_age = any(has_limits_alone(state, (home.one_shot, model)) for model in home.models or ())
    key = _key(state, run, by_age=by_age, later=0)
    held, before = _held(state, home, run, key)
    own = len(run.in_flight) + (run.expected_as is not None)
    share = before / held if held else 1.0
    sizes, again, looked_at = [], 0, 0
    for turn in islice(state.turns.values(), LOOKED_AT):
        looked_at += 1
        other = state.runs.get(turn.run_id) if turn.run_id is not None else None
        if other is None or turn.need is None or other is run:
            continue
        sizes.append(turn.need.prompt)
        if (turn.replica is not None or turn.key < key) and _key(state, other, by_age=by_age, later=1) < key:
            again += other.turns_done + 1
    # While nobody is held before it, the window lasts.
    again_before = again * len(state.turns) / looked_at / _members(state, home) if before else 0.0
    return Sharing(
        others=(held + max(0, home.in_flight + home.paused - own)) * share,
        ahead=before + again_before,
        prompt_tokens=sum(sizes) / len(sizes) if sizes else prompt_tokens,
        pause_s=home.economy.pause_s,
    )


def _key(state: State, run: Run, *, by_age: bool, later: int) -> Key:
    """The order of a turn of a run that arrives now, or after so many `later` turns of it."""
    return held_key(
        is_continuation=run.paused or bool(run.in_flight) or later > 0,
        turns_done=run.turns_done + later,
        by_age=by_age,
        arrived_at=state.now,
        arrivals=state.arrivals + 1 + later,
        turn_id=TurnId(""),
    )


def _members(state: State, home: Replica) -> int:
    """How many replicas share what is held for `home`."""
    return max((len(state.pools[home.one_shot, model].members) for model in home.models or ()), default=1)


def _held(state: State, home: Replica, run: Run, key: Key) -> tuple[float, float]:
    """Turns of others that are held for `home`, and those of them that go before a turn of the run with this key."""
    held = before = 0.0
    for model in home.models or ():
        pool = state.pools[home.one_shot, model]
        for run_class, lane in enumerate(pool.lanes):
            own = lane.queues.get(run.caller)
            rank = own.count_before(key) if own is not None else 0
            for caller, queue in lane.queues.items():
                count = len(queue)
                held += count / len(pool.members)
                if run_class < run.run_class:
                    before += count / len(pool.members)
                elif run_class == run.run_class:
                    # Callers take turns: as many of each go before it as of its own, and the one that is next.
                    before += (rank if caller == run.caller else min(count, rank + 1)) / len(pool.members)
    own_held = sum(state.turns[turn_id].key < key for turn_id in run.held)
    return max(0.0, held - len(run.held)), max(0.0, before - own_held)
