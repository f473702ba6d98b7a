"""Closed-loop agents in virtual time: a run's turns with tool pauses between, and then the next run. Counts what a user feels."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fakes.engine.batch import Request
from scheduler.events import RunClass
from simulator.clock import Clock

START_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What runs of a group look like, in tokens and seconds."""

    turns: int = 4
    context_tokens: int = 1900
    growth_tokens: int = 110
    """Of a tool's result, with what the chat template adds."""
    reply_tokens: int = 48
    tool_s_min: float = 0.5
    tool_s_max: float = 2.0
    api_tools: bool = True
    """Whether tool calls are seen as such (else replies are text and runs pause all the same)."""
    ends_runs: bool = True
    """Whether a run's end is told."""


@dataclass(frozen=True, slots=True)
class AgentGroup:
    """Agents of one caller and class."""

    agents: int
    run_class: RunClass
    caller: str
    shape: Shape = Shape()


@dataclass(slots=True)
class Turn:
    """One model request, as an arm sees it."""

    run_id: str
    number: int
    """Of the run's turns, from 0."""
    group: AgentGroup
    request: Request
    pauses: bool
    """Whether a tool call comes out of it."""
    arrived_at: float
    first_token: Callable[[], None]
    ended: Callable[[], None]
    replica: int = -1


@dataclass(slots=True)
class Counts:
    """What one group's agents saw."""

    runs_s: list[float] = field(default_factory=list)
    turns_s: list[float] = field(default_factory=list)
    first_tokens_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Agents:
    """All agents of all groups. `submit` gives a turn to the arm; `end_run` tells it a run's end."""

    def __init__(
        self,
        clock: Clock,
        groups: Sequence[AgentGroup],
        seed: int,
        block_tokens: int,
        submit: Callable[[Turn], None],
        end_run: Callable[[str, AgentGroup], None],
    ) -> None:
        self.counts = [Counts() for _ in groups]
        self._clock = clock
        self._block_tokens = block_tokens
        self._submit = submit
        self._end_run = end_run
        self._runs = 0
        for number, group in enumerate(groups):
            for agent in range(group.agents):
                rng = random.Random(f"{seed}:{number}:{agent}")
                delay_s = rng.uniform(0, min(START_S_MAX, group.shape.tool_s_max))
                clock.after(delay_s, lambda n=number, g=group, r=rng: self._begin(n, g, r))  # type: ignore[misc]

    def forget_warmup(self) -> None:
        """Starts counting anew."""
        self.counts = [Counts() for _ in self.counts]

    def _begin(self, number: int, group: AgentGroup, rng: random.Random) -> None:
        self._runs += 1
        run = _Run(self, number, group, rng, self._runs)
        run.next_turn()


class _Run:
    __slots__ = ("agents", "begun_at", "done", "group", "number", "prompt_tokens", "rng", "serial")

    def __init__(self, agents: Agents, number: int, group: AgentGroup, rng: random.Random, serial: int) -> None:
        self.agents = agents
        self.number = number
        self.group = group
        self.rng = rng
        self.serial = serial
        self.done = 0
        self.prompt_tokens = group.shape.context_tokens
        self.begun_at = agents._clock.now

    def next_turn(self) -> None:
        agents, shape = self.agents, self.group.shape
        block_tokens = agents._block_tokens
        base = self.serial << 24
        prompt_blocks = self.prompt_tokens // block_tokens
        blocks = (self.prompt_tokens + shape.reply_tokens) // block_tokens
        # What was generated is tokenised anew as text in the next prompt, and matches only up to the old prompt.
        own = base + ((self.done + 1) << 18)
        hashes = [*range(base, base + prompt_blocks), *range(own + prompt_blocks, own + blocks)]
        request = Request(self.prompt_tokens, shape.reply_tokens, hashes)
        arrived_at = agents._clock.now
        pauses = shape.api_tools and self.done < shape.turns - 1
        turn = Turn(
            f"run-{self.serial}",
            self.done,
            self.group,
            request,
            pauses,
            arrived_at,
            lambda: self._first_token(arrived_at),
            lambda: self._ended(turn),
        )
        agents._submit(turn)

    def _first_token(self, arrived_at: float) -> None:
        agents = self.agents
        agents.counts[self.number].first_tokens_s.append(agents._clock.now - arrived_at)

    def _ended(self, turn: Turn) -> None:
        agents, shape = self.agents, self.group.shape
        now = agents._clock.now
        counts = agents.counts[self.number]
        counts.turns_s.append(now - turn.arrived_at)
        counts.prompt_tokens += turn.request.prompt_tokens
        counts.cached_tokens += turn.request.cached_tokens
        counts.completion_tokens += shape.reply_tokens
        self.done += 1
        self.prompt_tokens += shape.reply_tokens + shape.growth_tokens
        if self.done < shape.turns:
            agents._clock.after(self.rng.uniform(shape.tool_s_min, shape.tool_s_max), self.next_turn)
            return
        counts.runs_s.append(now - self.begun_at)
        if shape.ends_runs:
            agents._end_run(turn.run_id, self.group)
        agents._clock.after(0.0, lambda: agents._begin(self.number, self.group, self.rng))
