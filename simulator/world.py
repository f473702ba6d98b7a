"""One flood in virtual time: agents, an arm, engines; warm-up, then a measured window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fakes.engine.latency import Profile
from simulator.agents import AgentGroup, Agents, Counts
from simulator.arms import ArmFactory
from simulator.clock import Clock
from simulator.engines import SimulatedEngine


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a flood gave, by group."""

    counts: list[Counts]
    measured_s: float
    preemptions: int


def flood(
    profile: Profile,
    replicas: int,
    groups: Sequence[AgentGroup],
    arm: ArmFactory,
    seed: int = 0,
    warm_up_s: float = 60.0,
    measured_s: float = 150.0,
) -> Outcome:
    """Plays a flood; deterministic."""
    clock = Clock()
    engines = [SimulatedEngine(clock, profile) for _ in range(replicas)]
    built = arm(clock, engines)
    agents = Agents(clock, groups, seed, profile.block_tokens, built.submit, built.end_run)
    clock.run(warm_up_s)
    agents.forget_warmup()
    clock.run(warm_up_s + measured_s)
    return Outcome(agents.counts, measured_s, sum(engine.engine.totals.preemptions for engine in engines))
