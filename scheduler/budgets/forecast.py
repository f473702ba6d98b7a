"""What a run's next steps will take: tokens, money, time spent waiting, suspensions, each with its spread. Pure.

A step's prompt is the last one's and what a step adds to it, which grows from step to step; completions vary, so that
the spread of a sum grows with the root of the steps.

Waits: the scarcest window is a server that all who use it share, each in a circle of waiting, a turn and a pause. While
it is used up, a round of all takes the sum of their turns ÷ its refill, whatever their order, so a step waits for the
rest of the round that is not its own turn and pause; the first one waits for what is before it now. Until what is left
of the window is used up, nobody waits. In which order they go is not known: a single wait spreads about as widely as it
is long.
"""

from __future__ import annotations

import math

from msgspec import Struct

from scheduler.budgets.ledger import Budget, Price, needs
from scheduler.budgets.prediction import Histories, HistoryKey, Need, mean_and_deviation
from scheduler.budgets.windows import needed

STEPS_MAX = 10_000
SUSPENDED_S = 15.0
"""A wait of a step that is longer is one to be suspended for, rather than held."""
P95 = 1.645
GROWTH_STEP = 0.3


class Context(Struct, frozen=True, gc=False):
    """A run's conversation so far."""

    model: str
    prompt_tokens: float
    """Of the last turn."""
    growth: float
    """Tokens that a step adds to the prompt."""
    deviation: float
    """Mean of how far that was off."""
    turn_s: float = 0.0
    """Mean seconds that its turns take, once they are placed; 0: not known."""
    max_tokens: int | None = None
    """What the last turn allowed."""


class Sharing(Struct, frozen=True, gc=False):
    """Who else uses a replica's windows, as of now."""

    others: float = 0.0
    """Runs with a turn in flight or held there, or expected back, as far as theirs go before the run's turns."""
    ahead: float = 0.0
    """Turns that are before the run's next one now."""
    prompt_tokens: float = 0.0
    """Mean of their turns."""
    pause_s: float = 0.0
    """Mean pause between two turns of a run."""


ALONE = Sharing()


class Figure(Struct, frozen=True, gc=False):
    """A quantity to come."""

    mean: float
    deviation: float
    """Standard deviation."""

    @property
    def p95(self) -> float:
        """What it exceeds once in twenty times."""
        return self.mean + P95 * self.deviation


class Forecast(Struct, frozen=True, gc=False):
    """The next `steps` of a run."""

    steps: int
    tokens: Figure
    usd: Figure
    wait_s: Figure
    suspensions: Figure


def grown(
    context: Context | None,
    model: str,
    prompt_tokens: int,
    completion_tokens: int,
    *,
    turn_s: float = 0.0,
    max_tokens: int | None = None,
) -> Context:
    """The context after a turn that took `turn_s` seconds (0: not known) and allowed `max_tokens`."""
    if context is None or context.model != model:
        return Context(model, prompt_tokens, completion_tokens, 0.0, turn_s, max_tokens)
    if context.turn_s and turn_s:
        turn_s = context.turn_s + GROWTH_STEP * (turn_s - context.turn_s)
    added, growth, deviation = prompt_tokens - context.prompt_tokens, context.growth, context.deviation
    if added >= 0:  # else it was made shorter
        deviation += GROWTH_STEP * (abs(added - growth) - deviation)
        growth += GROWTH_STEP * (added - growth)
    return Context(model, prompt_tokens, growth, deviation, turn_s or context.turn_s, max_tokens)


def forecast(
    histories: Histories,
    key: HistoryKey,
    context: Context,
    steps: int,
    *,
    budget: Budget | None,
    price: Price,
    now: float,
    sharing: Sharing = ALONE,
) -> Forecast:
    """What the next `steps` (1 to STEPS_MAX) of a run take, where they go to one replica with this budget and price,
    and as many share its windows as now."""
    completion, spread = mean_and_deviation(histories, key)
    prompts = steps * context.prompt_tokens + context.growth * steps * (steps + 1) / 2
    # The n-th step's growth is in all later prompts too.
    prompts_spread = context.deviation * math.sqrt(steps * (steps + 1) * (2 * steps + 1) / 6)
    completions, completions_spread = steps * completion, spread * math.sqrt(steps)
    tokens = Figure(prompts + completions, math.hypot(prompts_spread, completions_spread))
    usd = Figure(
        price.of(prompts, completions), math.hypot(price.of(prompts_spread, 0), price.of(0, completions_spread))
    )
    wait = suspensions = Figure(0.0, 0.0)
    if budget is not None:
        next_prompt = context.prompt_tokens + context.growth
        first = needs(budget, likely(next_prompt, completion, context.max_tokens), usd.mean / steps, now)
        own = needs(budget, likely(prompts / steps, completion), usd.mean / steps, now)
        other_usd = price.of(sharing.prompt_tokens, completion)
        others = needs(budget, likely(sharing.prompt_tokens, completion), other_usd, now)
        away_s = context.turn_s + sharing.pause_s
        for (window, on_arrival), (_, amount), (_, other) in zip(first, own, others, strict=True):
            rate = max(window.rate, 1e-9)
            first_s = (sharing.ahead * other + needed(window, on_arrival, now) - window.level) / rate
            later_s = (sharing.others * other + amount) / rate - away_s
            seconds = max(0.0, first_s, first_s + (steps - 1) * later_s)
            if seconds > wait.mean:
                uneven = tokens.deviation / max(tokens.mean, 1.0) * amount * steps / rate
                in_turn = seconds / math.sqrt(steps) * sharing.others / (1 + sharing.others)
                wait = Figure(seconds, math.hypot(uneven, in_turn))
                suspensions = _suspensions(steps, wait, max(0.0, first_s), max(0.0, later_s))
    return Forecast(steps, tokens, usd, wait, suspensions)


def likely(prompt_tokens: float, completion_tokens: float, max_tokens: int | None = None) -> Need:
    """What a turn of these sizes takes when it has ended, or, by its `max_tokens`, when it arrives."""
    return Need(prompt_tokens, completion_tokens, max_tokens, prompt_tokens, prompt_tokens)


def _suspensions(steps: int, wait: Figure, first_s: float, later_s: float) -> Figure:
    """How many of the steps wait for longer than SUSPENDED_S, where the first one waits `first_s`, and of the later
    ones as many as the whole `wait` is for, `later_s` each: until then the window lasts. Waits are about normal."""
    later = min(steps - 1.0, (wait.mean - first_s) / later_s) if later_s else 0.0
    first = 1.0 if first_s else 0.0
    deviation = wait.deviation / math.sqrt(max(1.0, first + later))
    mean = variance = 0.0
    for number, seconds in ((first, first_s), (later, later_s)):
        share = float(seconds > SUSPENDED_S)
        if deviation:
            share = 0.5 * math.erfc((SUSPENDED_S - seconds) / deviation / math.sqrt(2))
        mean += number * share
        variance += number * share * (1 - share)
    return Figure(mean, math.sqrt(variance))
