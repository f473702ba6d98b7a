"""What a run's next steps will take: tokens, money, time spent waiting, suspensions, each with its spread. Pure.

A step's prompt is the last one's and what a step adds to it, which grows from step to step; completions vary, so that
the spread of a sum grows with the root of the steps. Waits are what the scarcest window refills too slowly, were the
run alone in using it as much as it does now.
"""

from __future__ import annotations

import math

from msgspec import Struct

from scheduler.budgets.ledger import Budget, Price, needs
from scheduler.budgets.prediction import Histories, HistoryKey, Need, mean_and_deviation

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


def grown(context: Context | None, model: str, prompt_tokens: int, completion_tokens: int) -> Context:
    """The context after a turn."""
    if context is None or context.model != model:
        return Context(model, prompt_tokens, completion_tokens, 0.0)
    growth = prompt_tokens - context.prompt_tokens
    if growth < 0:
        return Context(model, prompt_tokens, context.growth, context.deviation)  # it was made shorter
    off = abs(growth - context.growth)
    mean = context.growth + GROWTH_STEP * (growth - context.growth)
    return Context(model, prompt_tokens, mean, context.deviation + GROWTH_STEP * (off - context.deviation))


def forecast(
    histories: Histories,
    key: HistoryKey,
    context: Context,
    steps: int,
    *,
    budget: Budget | None,
    price: Price,
    now: float,
) -> Forecast:
    """What the next `steps` (1 to STEPS_MAX) of a run take, where they go to one replica with this budget and price."""
    completion, spread = mean_and_deviation(histories, key)
    prompts = steps * context.prompt_tokens + context.growth * steps * (steps + 1) / 2
    # The n-th step's growth is in all later prompts too.
    prompts_spread = context.deviation * math.sqrt(steps * (steps + 1) * (2 * steps + 1) / 6)
    completions, completions_spread = steps * completion, spread * math.sqrt(steps)
    tokens = Figure(prompts + completions, math.hypot(prompts_spread, completions_spread))
    usd = Figure(
        price.of(prompts, completions), math.hypot(price.of(prompts_spread, 0), price.of(0, completions_spread))
    )
    mean_need = Need(prompts / steps, completion, None, prompts / steps, prompts / steps)
    wait = wait_spread = longest_s = 0.0
    for window, amount in () if budget is None else needs(budget, mean_need, usd.mean / steps, now):
        rate = max(window.rate, 1e-9)
        seconds = max(0.0, (amount * steps - max(0.0, window.level)) / rate)
        if seconds > wait:
            wait, longest_s = seconds, amount / rate
            wait_spread = tokens.deviation / max(tokens.mean, 1.0) * amount * steps / rate
    suspended = float(steps) if longest_s > SUSPENDED_S else min(float(steps), wait / SUSPENDED_S)
    return Forecast(
        steps, tokens, usd, Figure(wait, wait_spread), Figure(suspended, math.sqrt(suspended) if suspended else 0.0)
    )
