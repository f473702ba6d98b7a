"""`./luftpause simulate`: a load through each arm in virtual time, and what it gave. Read `world` next."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from loadgen.compare import figures, show
from loadgen.compare.contest import Timing
from loadgen.compare.figures import Bar, Sample
from loadgen.workload import Group
from simulator.arms import Luftpause, named
from simulator.world import World, play

YARDSTICK = "router"


@dataclass(frozen=True, slots=True)
class Scene:
    """What is played under one name."""

    name: str
    arm: str
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Simulation:
    """What is asked for."""

    world: World
    """Its groups are those of the scenes."""
    scenes: tuple[Scene, ...]
    timing: Timing
    seed: int
    checks: bool = False
    """Whether the scheduler's invariants are checked after every decision; slow."""
    bars: Callable[[Mapping[str, Sequence[Sample]]], Sequence[Bar]] = lambda _samples: ()
    """What must hold of the scenes' samples."""


def main(simulation: Simulation, settings: dict[str, Any], files: show.Files) -> int:
    """Plays and prints: 0 if all bars hold, 1 if one is missed or a check failed, with the seed that replays it."""
    timing = simulation.timing
    count = len(simulation.scenes) * timing.repeats
    whole_s = timing.warm_up_s + timing.measure_s
    samples: dict[str, list[Sample]] = {scene.name: [] for scene in simulation.scenes}
    costs: dict[str, Any] = {}
    begun_s = time.perf_counter()
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=count * whole_s)
        done_s = 0.0
        for repeat in range(timing.repeats):
            for scene in simulation.scenes:

                def tell(now_s: float, name: str = scene.name, before_s: float = done_s) -> None:
                    bar.update(task, completed=before_s + now_s, description=f"{name}, minute {now_s / 60:.0f}")

                seed = simulation.seed + repeat
                world = replace(simulation.world, groups=scene.groups)
                try:
                    played = play(world, named(scene.arm), seed, timing, tell, checks=simulation.checks)
                except AssertionError as error:
                    print(f"luftpause: seed {seed}, {scene.name}: {error}", file=sys.stderr)
                    return 1
                samples[scene.name].append(played.sample)
                if isinstance(played.arm, Luftpause):
                    costs = played.arm.costs()
                done_s += whole_s
    report = figures.report(samples, YARDSTICK if YARDSTICK in samples else None)
    report |= {"settings": settings | {"seed": simulation.seed}, "decisions": costs}
    bars = simulation.bars(samples)
    code = show.result(show.Measured(samples, "simulated", broken_off=None), report, bars, files)
    print(_closing(simulation, costs, count * whole_s, time.perf_counter() - begun_s), file=sys.stderr)
    return code


def _closing(simulation: Simulation, costs: dict[str, Any], virtual_s: float, real_s: float) -> str:
    said = [f"{virtual_s / 60:.0f} virtual minutes in {real_s:.0f} s; seed {simulation.seed}"]
    if costs:
        said.append(
            f"{costs['events']} decisions, {costs['first_us']:.0f} µs each in the first tenth, "
            f"{costs['last_us']:.0f} µs in the last; {costs['runs']} runs known at the end"
        )
    return "; ".join(said)
