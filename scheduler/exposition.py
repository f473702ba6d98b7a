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

from common.histogram import buckets
from scheduler.effects import Reason
from scheduler.events import DataplaneResynced, Event, RunClass
from scheduler.summary import ReplicaSummary, Summary
from scheduler.tally import BATCH_BOUNDS_S, HELD_BOUNDS_S, Tally

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
        yield from _durations(self._tally)
        yield from _replicas(self._summary.replicas)
        yield from _queues(self._summary)


def _counters(tally: Tally) -> Iterator[Metric]:
    events = CounterMetricFamily(PREFIX + "events", "Events decided, by kind", labels=("kind",))
    for kind in Event.__args__:
        events.add_metric((kind.__name__,), tally.events[kind.__name__])
    placements = CounterMetricFamily(PREFIX + "placements", "Turns placed, by replica", labels=("replica",))
    for replica, count in tally.placements.items():
        placements.add_metric((replica,), count)
    refusals = CounterMetricFamily(PREFIX + "refusals", "Turns refused, by reason", labels=("reason",))
    for reason in Reason:
        refusals.add_metric((reason.name.lower(),), tally.refusals[reason])
    yield events
    yield placements
    yield refusals
    for name, text, value in (
        ("invalid_messages", "Messages, or parts of one, that broke the contract", tally.invalid),
        ("expired_turns", "Turns in flight dropped since nobody reported or renewed them in time", tally.expiries),
        ("dispatch_streams", "Streams that dataplanes opened; each reconnection is one more", tally.streams_opened),
        ("resyncs", "Resyncs applied: what a dataplane told after its start or a reconnection", _resyncs(tally)),
        ("lost_spans", "Spans that no collector took", tally.spans_lost),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value)
    yield GaugeMetricFamily(PREFIX + "dataplanes", "Dataplanes that are connected", tally.dataplanes)
    yield GaugeMetricFamily(PREFIX + "tasks", "Tasks of the event loop; idle, always the same few", tally.tasks)


def _resyncs(tally: Tally) -> int:
    return tally.events[DataplaneResynced.__name__]


def _durations(tally: Tally) -> Iterator[Metric]:
    batches = HistogramMetricFamily(
        PREFIX + "batch_seconds", "Time to decide and perform one batch of events", unit="seconds"
    )
    batches.add_metric((), buckets(BATCH_BOUNDS_S, tally.batches.counts), sum_value=tally.batches.total_s)
    held = HistogramMetricFamily(
        PREFIX + "held_seconds", "How long placed turns had been held, by class", labels=("class",), unit="seconds"
    )
    for run_class, histogram in tally.held.items():
        told = buckets(HELD_BOUNDS_S, histogram.counts)
        held.add_metric((run_class.name.lower(),), told, sum_value=histogram.total_s)
    yield batches
    yield held


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
    held: dict[str, int] = {run_class.name.lower(): 0 for run_class in RunClass}
    oldest_s: dict[str, float] = dict.fromkeys(held, 0.0)
    for entry in summary.held:
        name = entry.run_class.name.lower()
        held[name] += entry.turns
        oldest_s[name] = max(oldest_s[name], entry.oldest_wait_s)
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
