"""Every metric of every service is described, has a unit, and is what dashboard, alerts and documents speak of."""

from __future__ import annotations

import importlib
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from common.histogram import Histogram
from common.ids import ReplicaName
from dataplane.exposition import expose
from dataplane.metrics import Metrics as DataplaneMetrics
from protos import turn_pb2
from runtime import exposition as runtime_exposition
from runtime.metrics import Metrics as RuntimeMetrics
from runtime.toolbox import ServerStatus
from scheduler import exposition as scheduler_exposition
from scheduler.summary import ReplicaSummary, Summary
from scheduler.tally import Tally

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs"
UNITS = {
    *("seconds", "bytes", "tokens", "ratio"),
    *("turns", "runs", "requests", "connections", "streams", "spans", "messages", "calls", "commits", "answers"),
    *("events", "placements", "refusals", "resyncs", "dataplanes", "fallbacks", "schedulers", "tasks"),
    *("healthy", "up", "writable"),  # 0 or 1
}
"""A word of each name says what is counted, or in which base unit."""
LABELS = {"class", "kind", "le", "outcome", "phase", "reason", "replica", "server", "state", "status"}
"""Each of few values: no runs, turns, callers or models."""
NAME = re.compile(r"\bluftpause_(?:scheduler|dataplane|runtime)_[a-z_]+")


def expositions() -> dict[str, bytes]:
    """Of each service, with something of everything."""
    dataplane = DataplaneMetrics()
    dataplane.turn_over(turn_pb2.RUN_CLASS_BATCH, "ended", 0.2)
    dataplane.answers[404] += 1
    tally = Tally()
    tally.placements[ReplicaName("gpu-0")] += 1
    replica = ReplicaSummary(ReplicaName("gpu-0"), "generative", (), True, 1, 2, 0, 1, 0, 0.5)
    gauges = dict.fromkeys(("held", "in_flight", "runs", "connections", "scheduler_connected", "tasks"), 1)
    servers = (ServerStatus("fake", True, "", 0.0, ()),)
    return {
        "dataplane": expose(dataplane.snapshot(**gauges)),
        "scheduler": scheduler_exposition.render(Summary((replica,), (), ()), tally),
        "runtime": runtime_exposition.render(RuntimeMetrics(), (), servers, writable=True, spans_lost=0, tasks=3),
    }


def families(text: bytes) -> list[Metric]:
    """What a Prometheus reads."""
    return list(text_string_to_metric_families(text.decode()))


def samples() -> dict[str, set[str]]:
    """Names that can be asked for, with the names of their labels."""
    found: dict[str, set[str]] = {}
    for text in expositions().values():
        for family in families(text):
            # A family may have no sample yet, whose labels are told by its kind alone.
            found.setdefault(family.name + ("_total" if family.type == "counter" else ""), set())
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("service", ["dataplane", "scheduler", "runtime"])
def test_every_metric_is_described_and_has_a_unit_and_labels_of_few_values(service: str) -> None:
    read = families(expositions()[service])
    assert len({family.name for family in read}) == len(read) > 10
    for family in read:
        assert family.name.startswith(f"luftpause_{service}_"), family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        assert len(family.documentation) > 10, family.name
        assert UNITS & set(family.name.split("_")), family.name
        assert {label for sample in family.samples for label in sample.labels} <= LABELS, family.name
        if family.type == "histogram":
            assert family.name.endswith("_seconds"), family.name
        assert all(sample.name.endswith("_total") for sample in family.samples) or family.type != "counter"


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram((1, 2))
    for duration_s in (0.5, 1, 1.5, 9):
        histogram.add(duration_s)
    assert (histogram.counts, histogram.total_s) == ([2, 1, 1], 12)


def queries() -> Iterator[tuple[str, str]]:
    """Every query of dashboard, alerts and documents, and where it is."""
    dashboard = json.loads((DOCS / "monitoring" / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    yaml: Any = importlib.import_module("yaml")
    for group in yaml.safe_load((DOCS / "monitoring" / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"]
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            yield f"alert {rule['alert']}", rule["expr"]
    operations = (DOCS / "operations.md").read_text()
    for query in re.findall(r"`([^`]*luftpause_[^`]*)`", operations):
        yield "docs/operations.md", query


def test_what_is_watched_exists() -> None:
    known = samples()
    asked = list(queries())
    assert len(asked) > 50
    for where, query in asked:
        assert query.count("(") == query.count(")"), (where, query)
        names = NAME.findall(query)
        assert names or "up{" in query, (where, query)
        for name in names:
            assert name in known, f"{where}: no service has {name}"
        for name, matchers in re.findall(r"(luftpause_[a-z_]+)\{([^}]*)\}", query):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert labels <= known[name], f"{where}: {name} has no label {labels - known[name]}"


def test_every_alert_is_explained() -> None:
    operations = (DOCS / "operations.md").read_text()
    alerts = [where.removeprefix("alert ") for where, _ in queries() if where.startswith("alert ")]
    assert [alert for alert in alerts if f"`{alert}`" not in operations] == []
