"""Load of sub-agents: runs that the runtime works on, spawned and awaited over MCP, one after another for each agent.

The same surface as `driver.Load`, for the same reports. What a run did is told by the runtime after its end, so turns
have no times of their own: each counts with the mean of its run, and first tokens are not seen. The task tells the
tool calls line by line, as the simulated engine makes them (`fakes.engine.reply`); a real model decides itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from typing import Any

from loadgen.driver import PAUSE_AFTER_FAULT_S, START_S_MAX
from loadgen.mcp_calls import CallError, McpTools
from loadgen.record import Tally
from loadgen.workload import Group, RunPlan, plan_run, text

TOOL = "lookup"
"""What the sub-agents call: a tool of the simulated tool server, as `./luftpause up` starts it."""
AWAIT_S = 600
"""Most that one `await` may wait; it is repeated."""
_NUMBERED_FROM = 1_000_000
"""Number of the first group: no text of an own-loop agent beside it, with the same seed, is one of these."""
CANCEL_S = 5.0
"""How long the sub-agents under way at the end have to be cancelled."""


def task(context: str, calls: int) -> str:
    """A task that is done with so many calls of `TOOL`."""
    lines = "\n".join(f'CALL {TOOL} {{"query": "record {number}"}}' for number in range(1, calls + 1))
    return f"{context}\nMake these tool calls one after another, then answer:\n{lines}"


class SpawnLoad:
    """A load that runs within `async with`, for as long as its user waits there."""

    def __init__(self, url: str, token: str | None, model: str | None, groups: Sequence[Group], seed: int) -> None:
        """`url` is where the runtime's MCP is; `model` None: the runtime's own choice."""
        self.groups = tuple(groups)
        self.tallies = [Tally() for _ in groups]
        self._seed = seed
        self._model = {} if model is None else {"model": model}
        self._clients = [McpTools(url, token, group.caller) for group in groups]
        self._opened = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._under_way: set[tuple[int, str]] = set()
        """Sub-agents that have not ended, as number of the group and handle."""
        self._spawning: set[asyncio.Task[str]] = set()

    async def __aenter__(self) -> SpawnLoad:
        for number, group in enumerate(self.groups):
            await self._opened.enter_async_context(self._clients[number])
            self._tasks += [asyncio.create_task(self._agent(number, agent)) for agent in range(group.agents)]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await asyncio.gather(*self._spawning, return_exceptions=True)
                ends = (self._clients[number].call("cancel", handle=handle) for number, handle in self._under_way)
                await asyncio.gather(*ends, return_exceptions=True)
        await self._opened.aclose()

    def raise_if_broken(self) -> None:
        """Raises the exception of an agent that ended: none should, since faults of runs are counted."""
        for each in self._tasks:
            if each.done():
                each.result()

    def forget_warmup(self) -> None:
        """Starts counting anew; runs under way are counted whole when they end."""
        self.tallies = [Tally() for _ in self.groups]

    async def _agent(self, number: int, agent: int) -> None:
        key = (self._seed, _NUMBERED_FROM + number, agent)
        await asyncio.sleep(random.Random(":".join(map(str, key))).uniform(0, START_S_MAX))
        done = 0
        while True:
            plan = plan_run(self.groups[number].workload, *key, done)
            done += 1
            try:
                await self._run(number, plan)
            except CallError as error:
                self.tallies[number].add_error(error.kind, error.message)
                await asyncio.sleep(PAUSE_AFTER_FAULT_S)

    async def _run(self, number: int, plan: RunPlan) -> None:
        """One run, counted if it completes. Raises CallError, also where it ends otherwise."""
        begun_s = time.perf_counter()
        # Not cancelled on its way: of a run that was started, the handle must be known.
        spawning = asyncio.create_task(self._spawn(number, plan))
        self._spawning.add(spawning)
        spawning.add_done_callback(self._spawning.discard)
        handle = await asyncio.shield(spawning)
        state = "Running"
        while state == "Running":
            (told,) = (await self._tell(number, "await", handles=[handle], timeout=AWAIT_S))["results"]
            state = told["state"]
        run_s = time.perf_counter() - begun_s
        if state == "AwaitingApproval":
            await self._tell(number, "cancel", handle=handle)
        self._under_way.discard((number, handle))
        if state != "Completed":
            raise CallError(state, told.get("error", ""))
        shown = (await self._tell(number, "status", handle=handle))["runs"]
        (own,) = (each["own"] for each in shown if each["handle"] == handle)
        self.tallies[number].add_told_turns(
            own["turns"], own["turnS"], own["promptTokens"], own["cachedTokens"], own["completionTokens"]
        )
        self.tallies[number].add_run(run_s)

    async def _spawn(self, number: int, plan: RunPlan) -> str:
        """The handle of a new run, which is under way then."""
        spawned = await self._tell(
            number,
            "spawn",
            task=task(text(plan, 0), len(plan.turns) - 1),
            serviceClass=self.groups[number].run_class,
            tools=[TOOL],
            maxToolCalls=len(plan.turns) - 1,
            maxTokens=max(turn.max_tokens for turn in plan.turns),
            **self._model,
        )
        handle: str = spawned["handle"]
        self._under_way.add((number, handle))
        return handle

    async def _tell(self, number: int, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self._clients[number].call(tool, **arguments)
        told: dict[str, Any] = result["structuredContent"]
        return told
