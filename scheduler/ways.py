"""Which way batch work goes with replicas' KV caches, by what the ways were seen to give. Pure.

`economy` predicts what each way would give, from what turns cost. From outside an engine that is known badly: a first
token also waits for other prompts and for the engine's own work, which looks like dear prefill, so predictions are off
by a factor of two where that costs much (README.md). Hence they only say which ways are worth a try. While batch work
fills a replica, its turns are counted; what a way gave counts from then on, less what the interactive runs that are
there at the moment take of it. A way that was not tried counts as if the prediction were DOUBT times too low. Replicas
of the same models and size learn from each other.
"""

from __future__ import annotations

from msgspec import Struct

from common.ids import Model
from scheduler.economy import TURNS_MIN, Economy, Way, predicted

SETTLING_TURNS = 24
"""Ends of turns after a change of ways that tell of the way before: runs of four turns begin and end with it."""
PART_TURNS = 24
"""A part of a trial, counted on one replica."""
TRIED_TURNS = 48
"""From so many turns on a way is known."""
REMEMBERED_TURNS = 480
REMEMBERED_S = 900.0
"""What a way gave so long ago is forgotten, so that it gets another try where it may be better: engines and loads
change, and a trial may have met a bad moment."""
DOUBT = 2.5
"""How many times more than predicted a way may give, beside one that was tried."""
SWITCH_GAIN = 1.05
"""Another way must promise so many times the turns."""
SAME_SIZE = 1.5
"""What was seen with turns so many times larger or smaller tells nothing any more."""


class Trial(Struct, frozen=True, gc=False):
    """What a replica does while batch work goes one way."""

    turns: int = 0
    """That ended, the first SETTLING_TURNS included, which do not count."""
    began_at: float = 0.0
    """When those had ended."""
    interactive: int = 0
    """Those of them that were interactive."""
    interactive_s: float = 0.0
    """How long these took from placement to end, together."""


NEW_TRIAL = Trial()


class Given(Struct, frozen=True, gc=False):
    """What a way was seen to give on a replica, as means over some turns."""

    turns: int = 0
    rate: float = 0.0
    """Turns a second, interactive ones too."""
    interactive: int = 0
    interactive_s: float = 0.0
    """An interactive turn, from its placement to its end."""
    context_tokens: float = 0.0
    at: float = 0.0
    """When it was seen last."""


Givens = tuple[Given, ...]
"""By way."""
Likeness = tuple[tuple[Model, ...] | None, int]
"""Models and tokens of the KV cache: replicas of which both are the same learn from each other."""
NOTHING_GIVEN: Givens = (Given(),) * len(Way)


def with_turn(trial: Trial, at: float, turn_s: float, *, is_interactive: bool) -> Trial:
    """One more turn has ended, after `turn_s`."""
    turns = trial.turns + 1
    if turns <= SETTLING_TURNS:
        return Trial(turns, at)
    return Trial(
        turns,
        trial.began_at,
        trial.interactive + is_interactive,
        trial.interactive_s + (turn_s if is_interactive else 0.0),
    )


def looked_at(
    trial: Trial, givens: Givens, way: Way, economy: Economy, at: float, *, is_full: bool
) -> tuple[Trial, Givens]:
    """The trial of `way` at a probe, and what is known of all. Where the replica is not full of batch work it begins
    anew: what a way gives is seen only where there is enough to do."""
    turns = trial.turns - SETTLING_TURNS
    if turns < 0:
        return trial, givens
    if not is_full:
        return Trial(SETTLING_TURNS, at), givens
    if turns < PART_TURNS or at <= trial.began_at:
        return trial, givens
    before = givens[way] if _tells(givens[way], economy, at) else Given()
    known = _with_part(before, trial, economy.context_tokens, at)
    return Trial(SETTLING_TURNS, at), (*givens[:way], known, *givens[way + 1 :])


def _with_part(given: Given, trial: Trial, context_tokens: float, at: float) -> Given:
    more = trial.turns - SETTLING_TURNS
    turns = min(given.turns + more, REMEMBERED_TURNS)
    interactive = min(given.interactive + trial.interactive, REMEMBERED_TURNS)
    interactive_s = given.interactive_s
    if trial.interactive:
        seen_s = trial.interactive_s / trial.interactive
        interactive_s += trial.interactive / interactive * (seen_s - interactive_s)
    rate = given.rate + more / turns * (more / (at - trial.began_at) - given.rate)
    return Given(turns, rate, interactive, interactive_s, context_tokens, at)


def next_way(
    givens: Givens, economy: Economy, kv_tokens: int, interactive_tokens: float, now: Way, *, at: float
) -> Way:
    """The way that leaves most for batch work on a replica with a KV cache of `kv_tokens`, of which interactive runs
    hold `interactive_tokens`: the one it goes `now` unless another one promises clearly more."""
    unknown = economy.turns < TURNS_MIN or not (economy.prefill_s and economy.pause_s and economy.context_tokens)
    if unknown or not kv_tokens:
        return now
    rates = predicted(economy, kv_tokens, interactive_tokens)
    known = [way for way in Way if givens[way].turns >= TRIED_TURNS and _tells(givens[way], economy, at)]
    tried = {way: _left(givens[way], economy, interactive_tokens) for way in known}
    if not tried:
        promised = rates
    elif now not in tried:
        return now  # it is being tried
    else:
        promised = tuple(tried[way] if way in tried else _doubted(way, tried, rates) for way in Way)
    best = max(Way, key=lambda way: promised[way])
    return best if promised[best] > promised[now] * SWITCH_GAIN else now


def _tells(given: Given, economy: Economy, at: float) -> bool:
    """Whether what a way gave tells of turns as they are now."""
    then, now = given.context_tokens, economy.context_tokens
    return at < given.at + REMEMBERED_S and now < SAME_SIZE * then and then < SAME_SIZE * now


def _left(given: Given, economy: Economy, interactive_tokens: float) -> float:
    """Turns a second that are batch work's."""
    interactive = interactive_tokens / economy.context_tokens
    return max(0.0, given.rate - interactive / (economy.pause_s + given.interactive_s))


def _doubted(way: Way, tried: dict[Way, float], rates: tuple[float, ...]) -> float:
    """What a way that was not tried may give: predictions are compared with each other, since much of what is wrong
    with one is wrong with all."""
    return min(DOUBT * left * rates[way] / rates[each] if rates[each] else 0.0 for each, left in tried.items())
