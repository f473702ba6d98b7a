"""`./luftpause bench streams`: a short one, and what fails it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from loadgen import bench_streams
from loadgen.bench_streams import Counts, judge

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="puts processes on cores as Linux allows it")

TINY = Counts(streams=100, stuck=2, seconds=2, few=20, few_seconds=1, chunks_s=200, unread_s=1)


@pytest.mark.e2e
async def test_streams_that_nobody_reads_are_cut_and_the_others_go_on() -> None:
    told: list[str] = []
    report = json.loads(json.dumps(await bench_streams.measure(TINY, told.append)))
    assert report["stuck"] == {"were_cut": 2, "in_flight": 98, "in_flight_at_the_end": 0}
    assert (report["errors"], report["first_error"]) == (0, "")
    assert all(each["chunks"] > 100 for each in report["delays"].values())
    assert all(0 < each["p50_ms"] <= each["p99_ms"] <= each["max_ms"] for each in report["delays"].values())
    assert len(told) == bench_streams.STEPS


def passes(*, many: float = 1.0, cut: int = 2, in_flight: int = 98, left: int = 0, errors: int = 0) -> bool:
    """Whether a report passes whose `many` streams were so many times slower than few."""
    delays: dict[str, Any] = {name: {"p50_ms": 1.0, "p99_ms": 5.0} for name in ("few_before", "many", "few_after")}
    delays["many"]["p99_ms"] *= many
    stuck = {"were_cut": cut, "in_flight": in_flight, "in_flight_at_the_end": left}
    return all(bar["seen"] is not None and bar["seen"] <= bar["most"] for bar in judge(TINY, delays, stuck, errors))


def test_every_bar_is_judged() -> None:
    assert passes()
    assert not passes(many=2.1)
    assert not passes(cut=1)
    assert not passes(in_flight=99)
    assert not passes(left=1)
    assert not passes(errors=1)


def test_elsewhere_than_on_linux_it_says_that_it_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert bench_streams.main(json_output=True) == 0
    assert "skipped" in json.loads(capsys.readouterr().out)
