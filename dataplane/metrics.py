"""What a dataplane counts. Plain numbers, since they are touched for each turn; `exposition` gives them to
Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import TypedDict

from common.histogram import Histogram
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
    answers: dict[str, int]


class Metrics:
    """The numbers of one process since its start."""

    __slots__ = (
        "_duration",
        "_ttft",
        "_turns",
        "answers",
        "bytes_in",
        "bytes_out",
        "fallbacks",
        "scheduler_streams",
        "spans_lost",
        "tokens_cached",
        "tokens_completion",
        "tokens_prompt",
    )

    def __init__(self) -> None:
        self._turns = dict.fromkeys(((c, o) for c in CLASSES for o in OUTCOMES), 0)
        self._ttft = {c: Histogram(BOUNDS_S) for c in CLASSES}
        self._duration = {c: Histogram(BOUNDS_S) for c in CLASSES}
        self.tokens_prompt = 0
        self.tokens_completion = 0
        self.tokens_cached = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.answers: Counter[int] = Counter()
        """Answers that were not an engine's, by HTTP status."""
        self.scheduler_streams = 0
        self.spans_lost = 0
        self.fallbacks = 0

    def turn_over(self, run_class: turn_pb2.RunClass.ValueType, outcome: str, duration_s: float) -> None:
        """One turn is over, with one of `OUTCOMES`, `duration_s` after it arrived."""
        self._turns[run_class, outcome] += 1
        self._duration[run_class].add(duration_s)

    def first_token(self, run_class: turn_pb2.RunClass.ValueType, ttft_s: float) -> None:
        """The first token of a streamed turn came `ttft_s` after the turn's arrival."""
        self._ttft[run_class].add(ttft_s)

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
                f"{name} {CLASSES[c]}": [*histograms[c].counts, histograms[c].total_s]
                for name, histograms in (("ttft", self._ttft), ("duration", self._duration))
                for c in CLASSES
            },
            "counters": {
                "tokens_prompt": self.tokens_prompt,
                "tokens_completion": self.tokens_completion,
                "tokens_cached": self.tokens_cached,
                "bytes_in": self.bytes_in,
                "bytes_out": self.bytes_out,
                "scheduler_streams": self.scheduler_streams,
                "spans_lost": self.spans_lost,
                "fallbacks": self.fallbacks,
            },
            "answers": {str(status): n for status, n in sorted(self.answers.items())},
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
            "answers": dict(Counter(first["answers"]) + Counter(other["answers"])),
        }
    return first
