"""Closed-loop agents in virtual time: a run's turns with tool pauses between, then the next run. As `loadgen.driver`
has them, with its plans and its tallies; sizes are in tokens here."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fakes.engine.batch import Request
from fakes.engine.latency import Texts
from loadgen.record import Tally, TurnRecord
from loadgen.workload import Group, RunPlan, plan_run
from simulator.clock import Clock

START_S_MAX = 1.0
"""All agents have begun within this time."""


@dataclass(slots=True, eq=False)
class Turn:
    """One model request, as an arm sees it."""

    run_id: str
    number: int
    """Of the run's turns, from 0."""
    group: Group
    request: Request
    calls_tool: bool
    """Whether its reply has a tool call."""
    arrived_at: float
    first_token: Callable[[], None]
    ended: Callable[[], None]


Submit = Callable[[Turn], None]
"""Gives a turn to the arm."""
EndRun = Callable[[str, Group], None]
"""Tells the arm that a run has ended."""


class Agents:
    """All agents of all groups."""

    def __init__(self, clock: Clock, groups: Sequence[Group], seed: int, block_tokens: int, texts: Texts) -> None:
        self.clock = clock
        self.groups = tuple(groups)
        self.tallies = [Tally() for _ in groups]
        self.seed = seed
        self.block_tokens = block_tokens
        self.texts = texts
        self.runs = 0
        self.submit: Submit
        self.end_run: EndRun | None

    def start(self, submit: Submit, end_run: EndRun | None) -> None:
        """Lets all begin within START_S_MAX; `end_run` is None where the end of a run is not told."""
        self.submit, self.end_run = submit, end_run
        for number, group in enumerate(self.groups):
            for agent in range(group.agents):
                rng = random.Random(f"{self.seed}:{number}:{agent}")
                _Agent(self, number, agent).begin_after(rng.uniform(0, START_S_MAX))

    def forget_warmup(self) -> None:
        """Starts counting anew; runs under way are counted whole when they end."""
        self.tallies = [Tally() for _ in self.groups]


class _Agent:
    __slots__ = ("_agents", "_done", "_index", "_number")

    def __init__(self, agents: Agents, number: int, index: int) -> None:
        self._agents = agents
        self._number = number
        self._index = index
        self._done = 0

    def begin_after(self, delay_s: float) -> None:
        self._agents.clock.after(delay_s, self._begin)

    def _begin(self) -> None:
        agents = self._agents
        group = agents.groups[self._number]
        plan = plan_run(group.workload, agents.seed, self._number, self._index, self._done)
        self._done += 1
        agents.runs += 1
        _Run(agents, self._number, plan, agents.runs, self._begin).next_turn()


class _Run:
    __slots__ = ("_agents", "_begun_at", "_blocks", "_done", "_number", "_over", "_plan", "_serial", "_tokens")

    def __init__(self, agents: Agents, number: int, plan: RunPlan, serial: int, over: Callable[[], None]) -> None:
        self._agents = agents
        self._number = number
        self._plan = plan
        self._serial = serial
        self._over = over
        self._done = 0
        self._tokens = 0
        """Of the conversation so far, the last reply included."""
        self._blocks: list[int] = []
        """Hashes of the blocks of the last prompt."""
        self._begun_at = agents.clock.now

    def next_turn(self) -> None:
        """Asks for the next turn."""
        agents, group = self._agents, self._agents.groups[self._number]
        request = self._request()
        arrived_at = agents.clock.now
        first_token_at = arrived_at

        def first_token() -> None:
            nonlocal first_token_at
            first_token_at = agents.clock.now

        def ended() -> None:
            self._ended(request, arrived_at, first_token_at)

        calls_tool = group.workload.tools == "api" and self._done < len(self._plan.turns) - 1
        agents.submit(
            Turn(f"run-{self._serial}", self._done, group, request, calls_tool, arrived_at, first_token, ended)
        )

    def _request(self) -> Request:
        plan = self._plan.turns[self._done]
        size, texts = self._agents.block_tokens, self._agents.texts
        kept = len(self._blocks)
        new_tokens = round(plan.new_chars / texts.chars_per_token)
        if self._done == 0:
            self._tokens = new_tokens + round(texts.context_overhead_tokens)
        elif plan.kept_chars is not None:
            kept_tokens = round(plan.kept_chars / texts.chars_per_token)
            kept = min(kept, kept_tokens // size)
            self._tokens = kept_tokens + new_tokens + round(texts.context_overhead_tokens)
        else:
            self._tokens += new_tokens + round(texts.result_overhead_tokens)
        prompt_tokens = max(1, self._tokens)
        # A hash is the run's number, the turn that wrote the block, and its place. What was generated is tokenised
        # anew as text in the next prompt, so only the old prompt matches.
        base = self._serial << 40 | self._done << 24
        prompt_blocks = prompt_tokens // size
        self._blocks = [*self._blocks[:kept], *range(base + kept, base + prompt_blocks)]
        del self._blocks[prompt_blocks:]
        all_blocks = (prompt_tokens + plan.max_tokens) // size
        generated = range(base + (1 << 23) + prompt_blocks, base + (1 << 23) + all_blocks)
        self._tokens = prompt_tokens + plan.max_tokens
        return Request(prompt_tokens, plan.max_tokens, [*self._blocks, *generated])

    def _ended(self, request: Request, arrived_at: float, first_token_at: float) -> None:
        agents = self._agents
        now = agents.clock.now
        tally = agents.tallies[self._number]
        tokens = request.reply_tokens
        tally.add_turn(
            TurnRecord(
                turn_s=now - arrived_at,
                ttft_s=first_token_at - arrived_at,
                itl_s=(now - first_token_at) / (tokens - 1) if tokens > 1 else None,
                prompt_tokens=request.prompt_tokens,
                completion_tokens=tokens,
                cached_tokens=request.cached_tokens,
            )
        )
        pause_s = self._plan.turns[self._done].tool_s
        self._done += 1
        if self._done < len(self._plan.turns):
            agents.clock.after(pause_s, self.next_turn)
            return
        tally.add_run(now - self._begun_at)
        if agents.end_run is not None:
            agents.end_run(f"run-{self._serial}", agents.groups[self._number])
        agents.clock.after(0.0, self._over)
