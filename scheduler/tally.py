"""What the host counts, cheaply: plain numbers that `exposition` turns into metrics when it is asked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from common.histogram import Histogram
from common.ids import ReplicaName
from scheduler.effects import Reason
from scheduler.events import RunClass

BATCH_BOUNDS_S = (0.000_025, 0.000_1, 0.000_25, 0.001, 0.002_5, 0.01, 0.025, 0.1, 0.25, 1.0)
"""Upper bounds of the histogram of batch durations, seconds."""
HELD_BOUNDS_S = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
"""Those of the time that turns are held."""


@dataclass(slots=True)
class Tally:
    """Counts since the start, and what is counted nowhere else."""

    events: Counter[str] = field(default_factory=Counter)
    """By the event's name."""
    placements: Counter[ReplicaName] = field(default_factory=Counter)
    refusals: Counter[Reason] = field(default_factory=Counter)
    invalid: int = 0
    """Messages, or parts of one, that broke the contract."""
    expiries: int = 0
    dataplanes: int = 0
    """Those that have a Dispatch stream now."""
    streams_opened: int = 0
    spans_lost: int = 0
    """As the tracer told when somebody asked last."""
    tasks: int = 0
    """Tasks of the event loop when somebody asked last."""
    batches: Histogram = field(default_factory=lambda: Histogram(BATCH_BOUNDS_S))
    """How long deciding and performing a batch of events took."""
    held: dict[RunClass, Histogram] = field(default_factory=lambda: {c: Histogram(HELD_BOUNDS_S) for c in RunClass})
    """How long placed turns had been held."""
