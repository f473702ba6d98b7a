"""Who else uses a replica's rate limits: what a run's forecast counts beside it. Pure; computed when asked for.

Read next: `budgets.forecast`.
"""

from __future__ import annotations

from itertools import islice

from common.ids import TurnId
from scheduler.budgets.forecast import Sharing, likely
from scheduler.budgets.line import scarcest
from scheduler.budgets.prediction import Need
from scheduler.fairness import held_key
from scheduler.ordered import Key
from scheduler.state import Replica, Run, State

LOOKED_AT = 256
"""Turns whose mean size is taken for that of all."""
AGAIN_MAX = 32
"""Turns of one run that are looked ahead."""


def sharing_of(state: State, home: Replica, run: Run, usual: Need) -> Sharing:
    """Who uses the windows of a run's home beside it; `usual`: what a turn takes, where nothing is known of others'.

    Held turns count as far as the replica is one of several that they may go to. A run that goes before all that are
    held, now, is taken to do so later too. Runs of which later turns would go before this one, though they come a round
    later each, are taken to do as many of them, but no more than they have done."""
    by_age = any(state.pools[home.one_shot, model].is_limited for model in home.models or ())
    key = _key(state, run, by_age=by_age)
    held, before = _held(state, home, run, key)
    own = len(run.in_flight) + (run.expected_as is not None)
    others = held + max(0, home.in_flight + home.paused - own)
    looked_at = [turn for turn in islice(state.turns.values(), LOOKED_AT) if turn.need and turn.run_id != run.run_id]
    sizes = [turn.need.prompt for turn in looked_at if turn.need]
    prompt_tokens = sum(sizes) / len(sizes) if sizes else usual.prompt
    if before and home.budget is not None:  # else the window lasts
        each = likely(prompt_tokens, usual.completion)
        round_s = (others + 1) * scarcest(home.budget, each, 0.0, state.now).each_s
        again = 0
        for turn in looked_at:
            other = state.runs.get(turn.run_id) if turn.run_id is not None else None
            if other is not None and (turn.replica is not None or turn.key < key):
                again += _again(state, other, key, round_s, by_age=by_age)
        before += again * len(state.turns) / min(len(state.turns), LOOKED_AT) / _members(state, home)
    share = min(1.0, before / held) if held else 1.0
    return Sharing(others * share, before, prompt_tokens, home.economy.pause_s)


def _again(state: State, other: Run, key: Key, round_s: float, *, by_age: bool) -> int:
    """How many later turns of another run, which come a round after each other, go before the turn with this key."""
    for later in range(1, min(other.turns_done, AGAIN_MAX) + 2):
        if _key(state, other, by_age=by_age, later=later, after_s=later * round_s) >= key:
            return later - 1
    return min(other.turns_done, AGAIN_MAX) + 1


def _key(state: State, run: Run, *, by_age: bool, later: int = 0, after_s: float = 0.0) -> Key:
    """The order of a turn of a run that arrives now, or `after_s`, after so many `later` turns of it."""
    return held_key(
        is_continuation=run.paused or bool(run.in_flight) or later > 0,
        turns_done=run.turns_done + later,
        by_age=by_age,
        arrived_at=state.now + after_s,
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
