"""The numbers of `metrics` in Prometheus' text format. Names end in their unit."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.histogram import buckets
from dataplane.metrics import BOUNDS_S, CLASSES, Snapshot

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_SECONDS = {
    "ttft": ("luftpause_dataplane_ttft_seconds", "From a streamed turn's arrival to its first token, by class"),
    "duration": ("luftpause_dataplane_turn_seconds", "From a turn's arrival to its end, by class"),
}
_COUNTERS = {
    "tokens_prompt": ("luftpause_dataplane_prompt_tokens", "Prompt tokens, as engines told"),
    "tokens_completion": ("luftpause_dataplane_completion_tokens", "Generated tokens, as engines told"),
    "tokens_cached": ("luftpause_dataplane_cached_tokens", "Prompt tokens from a prefix cache, as engines told"),
    "bytes_in": ("luftpause_dataplane_request_bytes", "Bytes of request bodies"),
    "fallbacks": ("luftpause_dataplane_fallbacks", "Turns sent to another replica after one failed them"),
    "bytes_out": ("luftpause_dataplane_reply_bytes", "Bytes of reply bodies, as engines sent them"),
    "scheduler_streams": (
        "luftpause_dataplane_scheduler_streams",
        "Streams to the scheduler that were opened: one a worker, and one more each time it was lost",
    ),
    "spans_lost": ("luftpause_dataplane_lost_spans", "Spans that no collector took"),
}
_GAUGES = {
    "held": ("luftpause_dataplane_turns_held", "Turns that wait for admission"),
    "in_flight": ("luftpause_dataplane_turns_in_flight", "Turns at an engine: open streams and others"),
    "runs": ("luftpause_dataplane_runs", "Runs remembered for a scheduler that restarts"),
    "connections": ("luftpause_dataplane_connections", "Open client connections"),
    "scheduler_connected": ("luftpause_dataplane_schedulers_connected", "Workers that have a scheduler"),
    "tasks": ("luftpause_dataplane_tasks", "Tasks of the event loops; idle, always the same few"),
}


class _Collector(Collector):
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        turns = CounterMetricFamily(
            "luftpause_dataplane_turns", "Turns that are over, by class and outcome", labels=("class", "outcome")
        )
        for key, count in self._snapshot["turns"].items():
            turns.add_metric(key.split(" "), count)
        yield turns
        answers = CounterMetricFamily(
            "luftpause_dataplane_answers", "Answers that were not an engine's, by HTTP status", labels=("status",)
        )
        for status, count in self._snapshot["answers"].items():
            answers.add_metric((status,), count)
        yield answers
        for key, (name, text) in _SECONDS.items():
            family = HistogramMetricFamily(name, text, labels=("class",), unit="seconds")
            for run_class in CLASSES.values():
                *counts, total_s = self._snapshot["seconds"][f"{key} {run_class}"]
                family.add_metric((run_class,), buckets(BOUNDS_S, counts), sum_value=total_s)
            yield family
        for key, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=self._snapshot["counters"][key])
        for key, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=self._snapshot["gauges"][key])


def expose(snapshot: Snapshot) -> bytes:
    """`snapshot` as Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(_Collector(snapshot))
    return generate_latest(registry)
