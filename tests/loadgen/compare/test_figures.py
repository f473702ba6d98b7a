"""Figures of a comparison: medians over repeats, ratios within a repeat, bars that say what they saw."""

from __future__ import annotations

import pytest

from loadgen.compare import figures, table
from loadgen.compare.figures import Bar, Sample, jain
from loadgen.record import Tally, TurnRecord
from loadgen.workload import Group, RunClass, Workload

WORKLOAD = Workload()


def tally(runs: int, run_s: float = 5.0, *, cached: int = 0, failed: bool = False) -> Tally:
    made = Tally()
    for _ in range(runs):
        made.add_run(run_s)
        made.add_turn(TurnRecord(1.0, run_s / 10, 0.01, 100, 48, cached))
    if failed:
        made.add_error("broken off", "the engine said so")
    return made


def sample(interactive: Tally, batch: Tally, seconds: float = 60.0) -> Sample:
    groups = (Group(4, "interactive", "i", WORKLOAD), interactive), (Group(8, "batch", "b", WORKLOAD), batch)
    return Sample(seconds, groups)


SAMPLES = {
    "router": [sample(tally(10, 20.0), tally(100)), sample(tally(12, 18.0), tally(120))],
    "luftpause": [sample(tally(30, 6.0, cached=50), tally(90)), sample(tally(30, 7.0, cached=70), tally(114))],
}


def test_a_figure_is_the_median_over_repeats_with_the_least_and_the_largest() -> None:
    seen = figures.report(SAMPLES, "router")["entries"]
    assert seen["router"]["interactive"]["runs_per_min"] == {"median": 11, "min": 10, "max": 12}
    assert seen["luftpause"]["interactive"]["cached_share"] == {"median": 0.6, "min": 0.5, "max": 0.7}
    assert seen["router"]["interactive"]["cached_share"]["median"] == 0


def test_ratios_are_taken_within_a_repeat() -> None:
    seen = figures.report(SAMPLES, "router")["entries"]["luftpause"]
    assert seen["interactive"]["x_runs_per_min"] == {"median": 2.75, "min": 2.5, "max": 3.0}
    assert seen["batch"]["x_runs_per_min"] == {"median": 0.925, "min": 0.9, "max": 0.95}
    assert seen["interactive"]["x_cached_share"] is None, "nothing to divide by"


def test_without_the_router_there_are_no_ratios() -> None:
    report = figures.report({"luftpause": SAMPLES["luftpause"]}, "router")
    assert report["yardstick"] is None
    assert "x_runs_per_min" not in report["entries"]["luftpause"]["batch"]


def test_a_p99_is_of_all_repeats_together_and_shown_only_with_enough_runs() -> None:
    report = figures.report(SAMPLES, "router")
    assert report["entries"]["luftpause"]["batch"]["p99"]["runs"] == 204
    (_, batch) = table.tables(report)
    assert list(batch.columns[5].cells) == ["– of 220", "– of 204"]
    enough = {"router": [sample(tally(1), tally(200))] * 2}
    (_, batch) = table.tables(figures.report(enough, None))
    assert list(batch.columns[4].cells) == ["5.0 of 400"]


@pytest.mark.parametrize(
    ("required", "holds"),
    [
        ({"interactive": 2.7, "batch": 0.92}, [True, True]),
        ({"interactive": 2.8, "batch": 0.93}, [False, False]),
        ({"peers": 1.0}, [False]),
        ({"p90": 2.0}, [False]),
    ],
)
def test_bars_are_judged_by_medians_and_what_was_not_measured_misses(
    required: dict[str, float], holds: list[bool]
) -> None:
    bars = figures.judge(figures.report(SAMPLES, "router"), "luftpause", required)
    assert [bar.holds for bar in bars] == holds


def test_latency_is_compared_with_that_of_an_idle_pool_and_rates_with_the_best_peer() -> None:
    alone = Sample(60.0, ((Group(4, "interactive", "i", WORKLOAD), tally(40, 5.0)),))
    peers = {"smg": [sample(tally(15), tally(80))] * 2, "other": [sample(tally(10), tally(110))] * 2}
    report = figures.report({**SAMPLES, **peers, "alone": [alone] * 2}, "router")
    p90, best = figures.judge(report, "luftpause", {"p90": 1.5, "peers": 0.9})
    assert p90.seen == pytest.approx(6.5 / 5, rel=0.01)
    assert best.seen == pytest.approx(102 / 110)
    assert p90.holds
    assert best.holds


def test_a_missed_bar_says_what_was_asked_and_what_was_seen() -> None:
    lines = table.verdicts([Bar("a ÷ b", 2.5, 2.0), Bar("c", 1.0, None, is_most=True), Bar("d", 1.0, 1.0)])
    assert lines == [
        "MISSED  a ÷ b: 2 (at least 2.5)",
        "MISSED  c: not measured (at most 1)",
        "holds   d: 1 (at least 1)",
    ]


def test_errors_are_told_with_what_the_server_said() -> None:
    report = figures.report({"router": [sample(tally(1), tally(1, failed=True))]}, None)
    assert table.faults(report) == ["router, batch: 1 × broken off (the engine said so)"]


@pytest.mark.parametrize(("shares", "index"), [([3.0, 3.0], 1.0), ([1.0, 0.0, 0.0], 1 / 3), ([0.0, 0.0], None)])
def test_fairness_is_one_where_all_get_the_same(shares: list[float], index: float | None) -> None:
    assert jain(shares) == (None if index is None else pytest.approx(index))


def test_callers_share_by_what_each_of_their_agents_got() -> None:
    def group(agents: int, caller: str) -> Group:
        run_class: RunClass = "batch"
        return Group(agents, run_class, caller, WORKLOAD)

    equal = Sample(60.0, ((group(2, "a"), tally(20)), (group(1, "b"), tally(10))))
    seen = figures.report({"router": [equal]}, None)["entries"]["router"]["batch"]
    assert seen["callers"] == 2
    assert seen["fairness"]["median"] == 1.0
    assert figures.median([equal], "batch", "runs_per_min", "b") == 10


def test_a_measurement_in_which_not_every_agent_ended_a_run_is_doubted() -> None:
    short = {"router": [sample(tally(4), tally(8)), sample(tally(4), tally(7))]}
    [line] = table.doubts(figures.report(short, None))
    assert line == "router, batch: 7 runs of 8 agents ended in a measurement; measure longer"
