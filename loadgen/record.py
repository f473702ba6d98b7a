"""Counts what happened, in fixed memory however long a flood is. Pure; must not read a clock. Read `report` next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

_BUCKET_RATIO = 1.01
_LOG_RATIO = math.log(_BUCKET_RATIO)
_SMALLEST = 1e-6


class Histogram:
    """Values in buckets that grow by 1 %, so that percentiles are right to 0.5 % and cost no sorting."""

    __slots__ = ("_buckets", "count", "total")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        """Counts one value; what is below a millionth is counted as that."""
        self._buckets[round(math.log(max(value, _SMALLEST)) / _LOG_RATIO)] += 1
        self.count += 1
        self.total += value

    def take(self, other: Histogram) -> None:
        """Counts all that `other` has counted."""
        self._buckets.update(other._buckets)
        self.count += other.count
        self.total += other.total

    def percentile(self, percent: float) -> float | None:
        """The smallest value that `percent` of all values do not exceed (nearest rank); None if there is none."""
        rank = math.ceil(self.count * percent / 100)
        for bucket in sorted(self._buckets):
            rank -= self._buckets[bucket]
            if rank <= 0:
                return math.exp(bucket * _LOG_RATIO)
        return None


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One whole turn, seen by its agent. Seconds count from the first attempt, so retries are in them."""

    turn_s: float
    ttft_s: float | None
    """None: the reply had no token."""
    itl_s: float | None
    """Mean time between two tokens; None: fewer than two."""
    prompt_tokens: int | None
    completion_tokens: int
    cached_tokens: int | None


@dataclass(slots=True)
class Tally:
    """What happened to the agents of one group."""

    turns: int = 0
    """Turns that ended with a whole reply."""
    runs: int = 0
    """Runs whose turns all did."""
    runs_failed: int = 0
    prompt_tokens: int = 0
    """Of turns whose engine told its usage."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Failed turns, by what went wrong."""
    messages: dict[str, str] = field(default_factory=dict)
    """What the server said of the first one of a kind, where it said something."""
    retries: Counter[str] = field(default_factory=Counter)
    """Attempts answered with 429 or 503 and made again, by status."""
    run_s: Histogram = field(default_factory=Histogram)
    turn_s: Histogram = field(default_factory=Histogram)
    ttft_s: Histogram = field(default_factory=Histogram)
    itl_s: Histogram = field(default_factory=Histogram)

    def add_turn(self, turn: TurnRecord) -> None:
        """Counts one whole turn."""
        self.turns += 1
        self.completion_tokens += turn.completion_tokens
        if turn.prompt_tokens is not None:
            self.prompt_tokens += turn.prompt_tokens
            self.cached_tokens += turn.cached_tokens or 0
        self.turn_s.add(turn.turn_s)
        for histogram, value in ((self.ttft_s, turn.ttft_s), (self.itl_s, turn.itl_s)):
            if value is not None:
                histogram.add(value)

    def add_told_turns(
        self, turns: int, turns_s: float, prompt_tokens: int, cached_tokens: int, completion_tokens: int
    ) -> None:
        """Counts whole turns of which only the sums are known."""
        self.turns += turns
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.completion_tokens += completion_tokens
        for _ in range(turns):
            self.turn_s.add(turns_s / turns)

    def add_run(self, run_s: float) -> None:
        """Counts one run that came to its end."""
        self.runs += 1
        self.run_s.add(run_s)

    def add_error(self, kind: str, message: str = "") -> None:
        """Counts one failed turn, and its run with it. `message` is what the server said, if anything."""
        self.errors[kind] += 1
        if message:
            self.messages.setdefault(kind, message)
        self.runs_failed += 1


def merged(tallies: Iterable[Tally]) -> Tally:
    """One tally of all that happened in `tallies`."""
    whole = Tally()
    for tally in tallies:
        for name in ("turns", "runs", "runs_failed", "prompt_tokens", "cached_tokens", "completion_tokens"):
            setattr(whole, name, getattr(whole, name) + getattr(tally, name))
        whole.errors.update(tally.errors)
        whole.retries.update(tally.retries)
        whole.messages = tally.messages | whole.messages
        for name in ("run_s", "turn_s", "ttft_s", "itl_s"):
            getattr(whole, name).take(getattr(tally, name))
    return whole
