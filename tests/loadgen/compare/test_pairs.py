"""Pairs of measurements: the ratio within each pair counts, not the drift of the machine."""

from __future__ import annotations

import pytest

from loadgen.compare.figures import Sample
from loadgen.compare.pairs import interval, worse
from loadgen.record import Tally
from loadgen.workload import Group, Workload


def test_an_interval_is_students() -> None:
    # Logarithms 0, 1, 2: mean 1, deviation 1, so that half the interval is 4.303 / √3.
    found = interval([1.0, 2.718281828, 7.389056099])
    assert found is not None
    assert found.mean == pytest.approx(2.718281828)
    assert found.high / found.mean == pytest.approx(2.718281828 ** (4.303 / 3**0.5), rel=1e-6)
    assert found.low * found.high == pytest.approx(found.mean**2)


def test_one_pair_tells_nothing() -> None:
    assert interval([1.0]) is None


def sample(runs: int, run_s: float) -> Sample:
    tally = Tally()
    for _ in range(runs):
        tally.add_run(run_s)
    return Sample(60.0, ((Group(4, "batch", "b", Workload()), tally),))


def test_worse_is_above_one_for_rates_and_for_latencies() -> None:
    theirs = [sample(100, 5.0), sample(50, 10.0), sample(200, 2.5)]
    ours = [sample(80, 6.0), sample(40, 12.0), sample(160, 3.0)]
    found = worse(ours, theirs, "batch")
    rate, latency = found["runs_per_min"], found["run_s_p50"]
    assert rate is not None
    assert latency is not None
    assert rate.mean == pytest.approx(1.25)
    assert rate.high == pytest.approx(1.25)
    assert latency.mean == pytest.approx(1.2, rel=0.02)
    assert found["cached_share"] is None
