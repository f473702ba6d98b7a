"""`./luftpause bench fanout`: its report, and that it sees tasks that are not done as they should be."""

from __future__ import annotations

import json

import pytest

from loadgen import bench_fanout, fanout_arms
from loadgen.bench_fanout import Counts, report
from loadgen.fanout_arms import ArmError, Task
from loadgen.fanout_rig import running

TINY = Counts(agents=4, tokens=300, lookup_s=0.2, repeats=1)


@pytest.mark.e2e
async def test_the_report_has_every_figure_and_both_bars() -> None:
    told: list[str] = []
    made = json.loads(json.dumps(await bench_fanout.measure(TINY, told.append)))
    assert len(told) == bench_fanout.steps(TINY)
    assert [len(made[name]) for name in ("fan_out_s", "direct_s")] == [1, 1]
    # The longest of the four makes three calls; one after another, they make seven.
    assert min(*made["fan_out_s"], *made["direct_s"]) >= 3 * 0.2
    assert made["one_by_one_s"] >= 7 * 0.2
    assert [bar["seen"] > 0 for bar in made["bars"]] == [True, True]


@pytest.mark.e2e
async def test_a_task_that_is_not_done_as_it_should_be_is_told() -> None:
    wrong = [Task('CALL lookup {"query": "x"}', calls=2)]
    async with running(lookup_s=0.0) as places:
        with pytest.raises(ArmError, match="expected a run completed with 2 tool calls"):
            await fanout_arms.fan_out(places, wrong)
        with pytest.raises(ArmError, match="expected 2 tool calls, saw 1"):
            await fanout_arms.direct(places, wrong)


def test_tasks_have_their_length_and_one_to_three_calls() -> None:
    made = fanout_arms.tasks(4, 2_800, seed=1)
    assert {len(each.text) for each in made} == {4 * 2_800}
    assert [each.calls for each in made] == [each.text.count("\nCALL ") for each in made] == [1, 2, 3, 1]
    assert not {each.text for each in made} & {each.text for each in fanout_arms.tasks(4, 2_800, seed=2)}


def test_bars_are_judged_by_the_medians() -> None:
    assert report([10.0, 99.0, 10.0], [10.0, 10.0, 10.0], 50.0)["passed"]


@pytest.mark.parametrize(("direct_s", "one_by_one_s"), [(9.0, 50.0), (10.0, 49.9)])
def test_a_missed_bar_fails_the_report(direct_s: float, one_by_one_s: float) -> None:
    assert not report([10.0], [direct_s], one_by_one_s)["passed"]
