"""The numbers of `metrics` in Prometheus' text format. Names end in their unit."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dataplane.metrics import BOUNDS_S, Snapshot

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_SECONDS = {
    "ttft": ("luftpause_dataplane_ttft_seconds", "From a streamed turn's arrival to its first token, in seconds"),
    "duration": ("luftpause_dataplane_turn_seconds", "From a turn's arrival to its end, in seconds"),
}
_COUNTERS = {
    "tokens_prompt": ("luftpause_dataplane_prompt_tokens", "Prompt tokens, as engines told"),
    "tokens_completion": ("luftpause_dataplane_completion_tokens", "Generated tokens, as engines told"),
    "tokens_cached": ("luftpause_dataplane_cached_tokens", "Prompt tokens from a prefix cache, as engines told"),
    "bytes_in": ("luftpause_dataplane_request_bytes", "Bytes of request bodies"),
    "bytes_out": ("luftpause_dataplane_reply_bytes", "Bytes of reply bodies, as engines sent them"),
}
_GAUGES = {
    "held": ("luftpause_dataplane_turns_held", "Turns that wait for admission"),
    "in_flight": ("luftpause_dataplane_turns_in_flight", "Turns at an engine: open streams and others"),
    "runs": ("luftpause_dataplane_runs", "Runs remembered for a scheduler that restarts"),
    "connections": ("luftpause_dataplane_connections", "Open client connections"),
    "scheduler_connected": ("luftpause_dataplane_schedulers_connected", "Workers that have a scheduler"),
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
        for key, (name, text) in _SECONDS.items():
            *counts, total_s = self._snapshot["seconds"][key]
            running = [sum(counts[: i + 1]) for i in range(len(counts))]
            bounds = [*map(str, BOUNDS_S), "+Inf"]
            yield HistogramMetricFamily(name, text, buckets=list(zip(bounds, running, strict=True)), sum_value=total_s)
        for key, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=self._snapshot["counters"][key])
        for key, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=self._snapshot["gauges"][key])


def expose(snapshot: Snapshot) -> bytes:
    """`snapshot` as Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(_Collector(snapshot))
    return generate_latest(registry)
