"""What a run's next turn is likely to take, in tokens. Pure.

A turn takes what the last one took and what was added to its prompt; how far that was off before is the spread.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

HISTORY_MAX = 64
"""Turns that are remembered; older ones tell little of a context that grows."""
TOKENS_A_BYTE = 0.25
"""English text in common vocabularies. What it is off by shows in the spread."""
FIRST_REPLY_TOKENS = 256.0
P95 = 1.645
"""Standard deviations that a normal variable exceeds once in twenty times."""
SPREAD_PART_MIN = 0.1
SPREAD_TOKENS_MIN = 16.0
"""The least spread, as a part and in tokens: turns that were alike so far do not promise that the next one is."""


class Cost(NamedTuple):
    """What a turn took."""

    prompt_bytes: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Likely:
    """The tokens of a turn to come."""

    tokens: float
    deviation: float

    def quantile(self, caution: float) -> float:
        """What a turn exceeds once in twenty times, or less often with a `caution` above 1."""
        return self.tokens + P95 * caution * self.deviation


def predict(history: Sequence[Cost], prompt_bytes: int) -> Likely:
    """The likely cost of a turn whose messages have `prompt_bytes`, after the turns in `history`."""
    if not history:
        tokens = prompt_bytes * TOKENS_A_BYTE + FIRST_REPLY_TOKENS
        return Likely(tokens, tokens / 2)
    tokens = _after(history[-1], prompt_bytes)
    pairs = itertools.pairwise(history)
    residuals = [cost.tokens - _after(before, cost.prompt_bytes) for before, cost in pairs]
    spread = math.sqrt(sum(each * each for each in residuals) / len(residuals)) if residuals else tokens / 2
    return Likely(tokens, max(spread, SPREAD_PART_MIN * tokens, SPREAD_TOKENS_MIN))


def remembered(history: Sequence[Cost], cost: Cost) -> tuple[Cost, ...]:
    """`history` with one turn more, and without what is too old."""
    return (*history, cost)[-HISTORY_MAX:]


def bytes_of(messages: Sequence[object]) -> int:
    """The size of `messages`, whatever they are made of."""
    return len(json.dumps(list(messages), ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))


def _after(last: Cost, prompt_bytes: int) -> float:
    return max(0.0, last.tokens + (prompt_bytes - last.prompt_bytes) * TOKENS_A_BYTE)
