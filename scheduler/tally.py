"""What the host counts, cheaply: plain numbers that `exposition` turns into metrics when it is asked."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from common.ids import ReplicaName
from scheduler.effects import Reason

BATCH_BOUNDS_S = (0.000_025, 0.000_1, 0.000_25, 0.001, 0.002_5, 0.01, 0.025, 0.1, 0.25, 1.0)
"""Upper bounds of the histogram of batch durations, seconds."""


@dataclass(slots=True)
class Tally:
    """Counts since the start."""

    events: Counter[str] = field(default_factory=Counter)
    """By the event's name."""
    placements: Counter[ReplicaName] = field(default_factory=Counter)
    refusals: Counter[Reason] = field(default_factory=Counter)
    invalid: int = 0
    """Messages, or parts of one, that broke the contract."""
    expiries: int = 0
    batches: list[int] = field(default_factory=lambda: [0] * (len(BATCH_BOUNDS_S) + 1))
    """Batches by duration: the n-th took at most the n-th bound, the last longer than all."""
    batches_s: float = 0.0
    """Duration of all batches together."""

    def add_batch(self, duration_s: float) -> None:
        """Counts one batch of events and how long deciding and performing it took."""
        self.batches[bisect_left(BATCH_BOUNDS_S, duration_s)] += 1
        self.batches_s += duration_s
