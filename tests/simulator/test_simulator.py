"""Floods in virtual time: deterministic, and with what the policy promises."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from fakes.engine.latency import CPU_TESTBED, CPU_TESTBED_PREFILL, Profile
from loadgen.compare import fairness
from loadgen.compare.contest import Timing
from loadgen.compare.figures import Sample, quantities
from loadgen.workload import Group, Workload
from simulator.arms import ArmFactory, Luftpause, named
from simulator.world import World, play

ROOT = pathlib.Path(__file__).parents[2]
TIMING = Timing(60.0, 150.0, 1)

DECODE_BOUND = CPU_TESTBED
PREFILL_BOUND = CPU_TESTBED_PREFILL


def groups(interactive: int, batch: int, **shape: object) -> tuple[Group, ...]:
    workload = Workload(**shape)  # type: ignore[arg-type]
    wanted = (Group(interactive, "interactive", "i", workload), Group(batch, "batch", "b", workload))
    return tuple(group for group in wanted if group.agents)


def per_min(sample: Sample, run_class: str) -> float:
    found = quantities(sample.tally(run_class), sample.seconds)["runs_per_min"]
    assert found is not None
    return found


def flooded(profile: Profile, arm: ArmFactory, *, ends_runs: bool = True, **shape: object) -> tuple[float, float]:
    played = play(World(profile, 2, groups(4, 48, **shape), ends_runs), arm, 7, TIMING)
    return per_min(played.sample, "interactive"), per_min(played.sample, "batch")


def test_the_same_seed_gives_the_same_figures() -> None:
    world = World(CPU_TESTBED, 2, groups(2, 12))
    timing = Timing(5.0, 30.0, 1)
    first, again, other = (play(world, Luftpause, seed, timing).sample for seed in (3, 3, 4))
    figures = [quantities(each.tally("batch"), each.seconds) for each in (first, again, other)]
    assert figures[0] == figures[1] != figures[2]


@pytest.mark.parametrize(
    ("profile", "interactive", "batch"),
    [(DECODE_BOUND, 2.2, 0.8), (PREFILL_BOUND, 5.5, 1.1)],
    ids=["decode-bound", "prefill-bound"],
)
def test_interactive_runs_feel_little_of_a_flood_and_batch_pays_little(
    profile: Profile, interactive: float, batch: float
) -> None:
    router, ours = (flooded(profile, named(name)) for name in ("router", "luftpause"))
    assert ours[0] >= interactive * router[0]
    assert ours[1] >= batch * router[1]


@pytest.mark.parametrize("profile", [DECODE_BOUND, PREFILL_BOUND], ids=["decode-bound", "prefill-bound"])
def test_agents_that_never_tell_and_tools_in_text_get_the_same(profile: Profile) -> None:
    told = flooded(profile, Luftpause)
    untold = flooded(profile, Luftpause, ends_runs=False, tools="text")
    assert untold[0] == pytest.approx(told[0], rel=0.1)
    assert untold[1] == pytest.approx(told[1], rel=0.1)


def test_nothing_is_lost_where_the_pool_is_not_saturated() -> None:
    world = World(CPU_TESTBED, 2, groups(4, 4))
    router, ours = (play(world, named(name), 5, Timing(30.0, 600.0, 1)).sample for name in ("router", "luftpause"))
    for run_class in ("interactive", "batch"):
        assert per_min(ours, run_class) >= 0.97 * per_min(router, run_class)


def test_batch_never_stops_under_interactive_load() -> None:
    alone = play(World(CPU_TESTBED, 2, groups(0, 20)), Luftpause, 1, TIMING).sample
    beside = play(World(CPU_TESTBED, 2, groups(40, 20)), Luftpause, 1, TIMING).sample
    assert per_min(beside, "batch") >= 0.05 * per_min(alone, "batch")


@pytest.mark.parametrize("profile", [DECODE_BOUND, PREFILL_BOUND], ids=["decode-bound", "prefill-bound"])
def test_callers_share_fairly_and_batch_gets_its_trickle(profile: Profile) -> None:
    scenes = {entry.name: entry.groups for entry in fairness.entries(Workload())}
    samples = {
        name: [play(World(profile, 2, groups), Luftpause, 1, Timing(60.0, 240.0, 1)).sample]
        for name, groups in scenes.items()
    }
    bars = fairness.bars(samples)
    assert len(bars) == 3
    assert all(bar.holds for bar in bars), bars


def test_invariants_hold_after_every_decision_of_a_flood() -> None:
    play(World(CPU_TESTBED, 3, groups(3, 20, tools="text")), Luftpause, 2, Timing(0.0, 20.0, 1), checks=True)


def test_the_command_plays_and_writes_its_report(tmp_path: pathlib.Path) -> None:
    arguments = ["simulate", "--minutes", "0.5", "--warm-up-s", "5", "--batch", "6", "--seed", "1"]
    files = ["--json", str(tmp_path / "report.json"), "--svg", str(tmp_path / "picture.svg")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", *arguments, *files],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "virtual minutes" in done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["entries"]) == {"router", "luftpause"}
    assert report["decisions"]["events"] > 0
    assert (tmp_path / "picture.svg").read_text().startswith("<svg")


def test_the_command_plays_the_loads_of_the_fairness_bench() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "cli",
            "simulate",
            "--fairness",
            "--minutes",
            "0.2",
            "--warm-up-s",
            "1",
            "--seed",
            "1",
        ],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    verdicts = [line for line in done.stdout.splitlines() if line.startswith(("holds", "MISSED"))]
    assert len(verdicts) == 3, done.stdout + done.stderr
    assert done.returncode == any(line.startswith("MISSED") for line in verdicts)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--profile", "toaster"], "--profile"), (["--arms", "router,nobody"], "--arms"), (["--tool-s", "x"], "--tool-s")],
)
def test_wrong_options_are_named(arguments: list[str], named: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", "simulate", *arguments],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert named in done.stderr
