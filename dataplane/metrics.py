"""What a dataplane counts. Plain numbers, since they are touched for each turn; `exposition` gives them to
Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from typing import TypedDict

from dataplane.meter import Usage
from protos import turn_pb2

OUTCOMES = ("ended", "failed", "abandoned", "refused")
CLASSES = {turn_pb2.RUN_CLASS_INTERACTIVE: "interactive", turn_pb2.RUN_CLASS_BATCH: "batch"}
BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Snapshot(TypedDict):
    """One process's numbers, in a form that can be sent and added up."""

    turns: dict[str, int]
    seconds: dict[str, list[float]]
    counters: dict[str, int]
    gauges: dict[str, int]


class Histogram:
    """Counts by `BOUNDS_S`, and the sum of what was counted."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, value_s: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(BOUNDS_S, value_s)] += 1
        self.total_s += value_s


class Metrics:
    """The numbers of one process since its start."""

    __slots__ = (
        "_turns",
        "bytes_in",
        "bytes_out",
        "duration",
        "tokens_cached",
        "tokens_completion",
        "tokens_prompt",
        "ttft",
    )

    def __init__(self) -> None:
        self._turns = dict.fromkeys(((c, o) for c in CLASSES for o in OUTCOMES), 0)
        self.ttft = Histogram()
        self.duration = Histogram()
        self.tokens_prompt = 0
        self.tokens_completion = 0
        self.tokens_cached = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def turn_over(self, run_class: turn_pb2.RunClass.ValueType, outcome: str, duration_s: float) -> None:
        """One turn is over, with one of `OUTCOMES`, `duration_s` after it arrived."""
        self._turns[run_class, outcome] += 1
        self.duration.add(duration_s)

    def used(self, usage: Usage) -> None:
        """An engine told the tokens of a turn."""
        self.tokens_prompt += usage.prompt_tokens or 0
        self.tokens_completion += usage.completion_tokens or 0
        self.tokens_cached += usage.cached_tokens or 0

    def snapshot(self, **gauges: int) -> Snapshot:
        """All numbers, and the given gauges, which count what is there now."""
        return {
            "turns": {f"{CLASSES[c]} {outcome}": n for (c, outcome), n in self._turns.items()},
            "seconds": {
                name: [*histogram.counts, histogram.total_s]
                for name, histogram in (("ttft", self.ttft), ("duration", self.duration))
            },
            "counters": {
                "tokens_prompt": self.tokens_prompt,
                "tokens_completion": self.tokens_completion,
                "tokens_cached": self.tokens_cached,
                "bytes_in": self.bytes_in,
                "bytes_out": self.bytes_out,
            },
            "gauges": gauges,
        }


def add_up(snapshots: list[Snapshot]) -> Snapshot:
    """The sum over processes; at least one."""
    first, *others = snapshots
    for other in others:
        first = {
            "turns": {k: n + other["turns"].get(k, 0) for k, n in first["turns"].items()},
            "seconds": {
                k: [a + b for a, b in zip(v, other["seconds"][k], strict=True)] for k, v in first["seconds"].items()
            },
            "counters": {k: n + other["counters"].get(k, 0) for k, n in first["counters"].items()},
            "gauges": {k: n + other["gauges"].get(k, 0) for k, n in first["gauges"].items()},
        }
    return first
