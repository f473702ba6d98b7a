"""Figures are right, and say nothing where nothing was measured."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console

from loadgen import report
from loadgen.record import Histogram, Tally, TurnRecord
from loadgen.workload import Group, Workload

GROUP = Group(2, "batch", "me", Workload())


def test_percentiles_are_those_of_a_sorted_list_to_half_a_percent() -> None:
    rng = random.Random(1)
    values = sorted(rng.lognormvariate(0, 2) for _ in range(10_000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for percent in (1, 50, 90, 99, 100):
        exact = values[-(-len(values) * percent // 100) - 1]
        assert histogram.percentile(percent) == pytest.approx(exact, rel=0.0051)


def test_a_histogram_stays_small() -> None:
    histogram = Histogram()
    rng = random.Random(1)
    for _ in range(50_000):
        histogram.add(rng.uniform(0, 600))
    assert len(histogram._buckets) < 2_100


def test_figures_of_turns_and_runs() -> None:
    tally = Tally()
    tally.add_turn(TurnRecord(2.0, 0.5, 0.1, prompt_tokens=100, completion_tokens=10, cached_tokens=60))
    tally.add_turn(TurnRecord(4.0, None, None, prompt_tokens=None, completion_tokens=20, cached_tokens=None))
    tally.add_run(6.0)
    tally.add_error("timeout")
    found = report.figures(GROUP, tally, 30.0)
    assert (found["runs"], found["runs_failed"], found["turns"], found["runs_per_min"]) == (1, 1, 2, 2.0)
    assert (found["prompt_tokens"], found["cached_share"], found["tokens_per_s"]) == (100, 0.6, 1.0)
    assert found["turn_s"] == {"count": 2, "mean": 3.0} | {
        "p50": pytest.approx(2.0, rel=0.005),
        "p90": pytest.approx(4.0, rel=0.005),
        "p99": pytest.approx(4.0, rel=0.005),
    }
    assert found["itl_s"]["count"] == found["ttft_s"]["count"] == 1
    assert found["errors"] == {"timeout": 1}
    assert report.faults(found) == "errors: 1 timeout"


def test_the_first_message_of_a_kind_of_error_is_told_with_it() -> None:
    tally = Tally()
    tally.add_error("status 404", "no generative replica serves model 'nope'")
    tally.add_error("status 404", "another message")
    found = report.figures(GROUP, tally, 1.0)
    assert found["errors"] == {"status 404": 2}
    assert report.faults(found) == "errors: 2 status 404: no generative replica serves model 'nope'"


def test_nothing_measured_is_null_and_a_dash() -> None:
    found = report.figures(GROUP, Tally(), 0.0)
    assert found["cached_share"] is None
    assert found["run_s"] == {"count": 0, "mean": None, "p50": None, "p90": None, "p99": None}
    out = io.StringIO()
    Console(file=out, width=120).print(report.table([found, found], "title"))
    assert "– / – / –" in out.getvalue()
    assert "0 s  batch: 0 runs" in report.line(found)
