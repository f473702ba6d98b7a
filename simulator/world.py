"""One load in virtual time: agents, an arm, engines; warm-up, then the measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fakes.engine.latency import Profile
from loadgen.compare.contest import Timing
from loadgen.compare.figures import Sample
from loadgen.workload import Group
from scheduler.invariants import check
from simulator.agents import Agents
from simulator.arms import Arm, ArmFactory, Luftpause
from simulator.clock import Clock
from simulator.engines import SimulatedEngine

TELL_EVERY_S = 10.0
"""Virtual seconds between two looks at what happened so far."""


@dataclass(frozen=True, slots=True)
class World:
    """What a load meets."""

    profile: Profile
    replicas: int
    groups: tuple[Group, ...]
    ends_runs: bool = True
    """Whether agents tell the end of a run."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of it."""

    sample: Sample
    arm: Arm
    engines: Sequence[SimulatedEngine]


def play(
    world: World,
    arm: ArmFactory,
    seed: int,
    timing: Timing,
    tell: Callable[[float], None] = lambda _now_s: None,
    *,
    checks: bool = False,
) -> Played:
    """Lets the agents work through `arm`; the same arguments, the same outcome. `tell` hears the virtual time.

    With `checks` the scheduler's invariants are checked after every decision: raises AssertionError."""
    warm_up_s, measure_s = timing.warm_up_s, timing.measure_s
    clock = Clock()
    engines = [SimulatedEngine(clock, world.profile) for _ in range(world.replicas)]
    agents = Agents(clock, world.groups, seed, world.profile.block_tokens, world.profile.texts)
    built = arm(clock, engines)
    if checks and isinstance(built, Luftpause):
        built.check = check
    agents.start(built.submit, built.end_run if world.ends_runs else None)
    _advance(clock, warm_up_s, tell)
    agents.forget_warmup()
    _advance(clock, warm_up_s + measure_s, tell)
    sample = Sample(measure_s, tuple(zip(agents.groups, agents.tallies, strict=True)))
    return Played(sample, built, engines)


def _advance(clock: Clock, until_s: float, tell: Callable[[float], None]) -> None:
    while clock.now < until_s:
        clock.run(min(clock.now + TELL_EVERY_S, until_s))
        tell(clock.now)
