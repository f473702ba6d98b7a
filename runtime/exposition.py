"""The runtime's numbers in Prometheus' text format, made when they are asked for. Callers and runs are no labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.histogram import Histogram, buckets
from runtime.metrics import CALL_OUTCOMES, ENDS, Metrics
from runtime.records import RunClass, State
from runtime.run import RunState
from runtime.toolbox import ServerStatus

PREFIX = "luftpause_runtime_"


def render(
    metrics: Metrics,
    runs: Iterable[RunState],
    servers: Iterable[ServerStatus],
    *,
    writable: bool,
    spans_lost: int,
    tasks: int,
) -> bytes:
    """The exposition of one runtime with these runs and tool servers."""
    registry = CollectorRegistry(auto_describe=False)
    families = [*_counters(metrics, spans_lost), *_durations(metrics), *_now(runs, servers, writable, tasks)]
    registry.register(_Snapshot(families))
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """All families."""
        return iter(self._families)


def _counters(metrics: Metrics, spans_lost: int) -> Iterator[Metric]:
    turns = CounterMetricFamily(PREFIX + "turns", "Model turns, by class and outcome", labels=("class", "outcome"))
    for run_class in RunClass:
        for outcome, replied in (("ended", True), ("failed", False)):
            turns.add_metric((run_class, outcome), metrics.turns[run_class, replied])
    calls = CounterMetricFamily(
        PREFIX + "tool_calls",
        "Tool calls by outcome; unknown: whether they took effect; refused: not made, for their arguments or a limit",
        labels=("outcome",),
    )
    for call_outcome in CALL_OUTCOMES:
        calls.add_metric((call_outcome,), metrics.calls[call_outcome])
    ends = CounterMetricFamily(PREFIX + "ended_runs", "Runs that ended, by how", labels=("state",))
    for state in ENDS:
        ends.add_metric((state,), metrics.ends[state])
    yield from (turns, calls, ends)
    for name, text, value in (
        ("prompt_tokens", "Prompt tokens of turns, as engines told", metrics.prompt_tokens),
        ("completion_tokens", "Generated tokens of turns, as engines told", metrics.completion_tokens),
        ("cached_tokens", "Prompt tokens of turns from a prefix cache, as engines told", metrics.cached_tokens),
        ("spawned_runs", "Runs that were spawned", metrics.spawned),
        ("recovered_runs", "Runs that were found unfinished at the start, and went on", metrics.recovered),
        ("failed_commits", "Commits of the journal that failed", metrics.failed_commits),
        ("lost_spans", "Spans that no collector took", spans_lost),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value)


def _durations(metrics: Metrics) -> Iterator[Metric]:
    turns = HistogramMetricFamily(
        PREFIX + "turn_seconds",
        "Model turns with a reply, being held and tries again included, by class",
        labels=("class",),
        unit="seconds",
    )
    for run_class, histogram in metrics.turn_s.items():
        _add(turns, (run_class,), histogram)
    yield turns
    for name, text, histogram in (
        ("tool_call_seconds", "Tool calls that came to an outcome", metrics.call_s),
        (
            "journal_commit_seconds",
            "From a record's write until it is durable",
            metrics.commit_s,
        ),
    ):
        family = HistogramMetricFamily(PREFIX + name, text, unit="seconds")
        _add(family, (), histogram)
        yield family


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    family.add_metric(labels, buckets(histogram.bounds_s, histogram.counts), sum_value=histogram.total_s)


def _now(runs: Iterable[RunState], servers: Iterable[ServerStatus], writable: bool, tasks: int) -> Iterator[Metric]:
    counts = Counter(run.state for run in runs)
    by_state = GaugeMetricFamily(PREFIX + "runs", "Runs that are kept, by state", labels=("state",))
    for state in State:
        by_state.add_metric((state,), counts[state])
    up = GaugeMetricFamily(PREFIX + "tool_server_up", "Whether a tool server is connected, 0 or 1", labels=("server",))
    for server in servers:
        up.add_metric((server.name,), int(server.up))
    yield by_state
    yield up
    text = "Whether the journal takes writes, 0 or 1; where not, until there is room or a restart"
    yield GaugeMetricFamily(PREFIX + "journal_writable", text, int(writable))
    yield GaugeMetricFamily(PREFIX + "tasks", "Tasks of the event loop; they go when no run is active", tasks)
