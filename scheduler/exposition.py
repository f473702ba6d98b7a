"""Prometheus metrics, computed from the tally and the status when they are asked for. Must not keep anything itself."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from scheduler.summary import ReplicaSummary, Summary
from scheduler.tally import BATCH_BOUNDS_S, Tally

PREFIX = "luftpause_scheduler_"


def render(summary: Summary, tally: Tally) -> bytes:
    """The metrics in Prometheus' text format. Callers are no label: there may be any number of them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(summary, tally))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, summary: Summary, tally: Tally) -> None:
        self._summary = summary
        self._tally = tally

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from _counters(self._tally)
        yield _durations(self._tally)
        yield from _replicas(self._summary.replicas)
        yield from _queues(self._summary)


def _counters(tally: Tally) -> Iterator[Metric]:
    events = CounterMetricFamily(PREFIX + "events", "Events decided, by kind", labels=("kind",))
    for kind, count in tally.events.items():
        events.add_metric((kind,), count)
    placements = CounterMetricFamily(PREFIX + "placements", "Turns placed, by replica", labels=("replica",))
    for replica, count in tally.placements.items():
        placements.add_metric((replica,), count)
    refusals = CounterMetricFamily(PREFIX + "refusals", "Turns refused, by reason", labels=("reason",))
    for reason, count in tally.refusals.items():
        refusals.add_metric((reason.name.lower(),), count)
    yield events
    yield placements
    yield refusals
    yield CounterMetricFamily(PREFIX + "invalid", "Messages, or parts of one, that broke the contract", tally.invalid)
    yield CounterMetricFamily(
        PREFIX + "expiries", "Turns in flight dropped since nobody reported or renewed them in time", tally.expiries
    )


def _durations(tally: Tally) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, BATCH_BOUNDS_S), "+Inf"), tally.batches, strict=True):
        total += count
        buckets.append((bound, total))
    family = HistogramMetricFamily(
        PREFIX + "batch_seconds", "Time to decide and perform one batch of events", unit="seconds"
    )
    family.add_metric((), buckets, sum_value=tally.batches_s)
    return family


def _replicas(replicas: tuple[ReplicaSummary, ...]) -> Iterator[Metric]:
    columns: tuple[tuple[str, str, str], ...] = (
        ("healthy", "healthy", "Whether the last probe succeeded, 0 or 1"),
        ("in_flight", "in_flight_turns", "Turns in flight"),
        ("capacity", "capacity_turns", "Most turns in flight it gets now; absent where not limited"),
        ("reserved", "reserved_turns", "Places kept for interactive runs that are paused"),
        ("engine_running", "engine_running_requests", "Requests its engines run, by their own word"),
        ("engine_waiting", "engine_waiting_requests", "Requests its engines have queued"),
        ("kv_usage", "kv_usage_ratio", "Share of the KV cache in use, 0 to 1"),
    )
    for attribute, name, text in columns:
        family = GaugeMetricFamily(PREFIX + "replica_" + name, text, labels=("replica",))
        for replica in replicas:
            value = getattr(replica, attribute)
            if value is not None:
                family.add_metric((replica.name,), float(value))
        yield family


def _queues(summary: Summary) -> Iterator[Metric]:
    held: dict[str, int] = {}
    oldest_s: dict[str, float] = {}
    for entry in summary.held:
        name = entry.run_class.name.lower()
        held[name] = held.get(name, 0) + entry.turns
        oldest_s[name] = max(oldest_s.get(name, 0.0), entry.oldest_wait_s)
    turns = GaugeMetricFamily(PREFIX + "held_turns", "Turns waiting for admission, by class", labels=("class",))
    waits = GaugeMetricFamily(
        PREFIX + "oldest_wait_seconds", "Longest wait of a held turn, by class", labels=("class",)
    )
    for name, count in held.items():
        turns.add_metric((name,), count)
        waits.add_metric((name,), oldest_s[name])
    runs = GaugeMetricFamily(PREFIX + "runs", "Runs, by phase and class", labels=("phase", "class"))
    for counted in summary.runs:
        runs.add_metric((counted.phase.name.lower(), counted.run_class.name.lower()), counted.runs)
    yield turns
    yield waits
    yield runs
