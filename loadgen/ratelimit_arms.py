"""The ways of working that `bench ratelimit` compares, on the same tasks.

`reactive`: agents ask, and after a 429 wait as long as it says, twice at most; then the step begins again, as it does
where a client library gives up (openai's retries twice) and the agent's loop catches that. `agentpause`: the package of
that name, its coordinator shared by all agents, where it is installed. `litellm`: its router, where it is installed.
`luftpause`: agents ask, and that is all.
Peers are imported from this environment, or from one that `find_peers` adds. Must not judge.
"""

from __future__ import annotations

import asyncio
import pathlib
import random
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from loadgen.ratelimit_rig import MODEL, Counts
from loadgen.relay_rig import RigError

RETRIES = 2
BACKOFF_S = 0.5
SUSPEND_S = 15.0
"""Agents of agentpause that are told to suspend come again after so long, or the reset that they were told."""


class ArmError(RigError):
    """Agents were answered what no arm expects."""


@dataclass
class Work:
    """What agents did, beside what the provider counts."""

    counts: Counts
    session: aiohttp.ClientSession
    base: str
    steps_redone: int = 0
    suspensions: int = 0
    pings: int = 0
    ended_at: list[float] = field(default_factory=list)

    def body(self, step: int) -> dict[str, Any]:
        """The request of a step."""
        counts = self.counts
        share = step / max(1, counts.steps - 1)
        tokens = round(counts.first_tokens + share * (counts.last_tokens - counts.first_tokens))
        message = {"role": "user", "content": "word " * (tokens * 4 // 5)}
        return {"model": MODEL, "max_tokens": counts.max_tokens, "messages": [message]}

    async def ask(self, agent: int, step: int) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Status, headers and body of one request."""
        headers = {"x-luftpause-run-id": f"agent-{agent}", "x-luftpause-class": "batch"}
        async with self.session.post(f"{self.base}/chat/completions", json=self.body(step), headers=headers) as answer:
            told = {name.lower(): value for name, value in answer.headers.items()}
            if answer.status not in (200, 429):
                raise ArmError(f"an agent was answered {answer.status}: {(await answer.text())[:200]}")
            return answer.status, told, await answer.json()


Step = Callable[[Work, int, int], Awaitable[None]]
"""Does one step of an agent, however long it takes."""


async def play(work: Work, step: Step) -> float:
    """Lets all agents do all their steps; seconds it took, until the last answer."""
    chance = random.Random(1)
    began = time.monotonic()
    starts = [chance.random() * 0.5 / work.counts.speed for _ in range(work.counts.agents)]

    async def agent(number: int) -> None:
        await asyncio.sleep(starts[number])
        for each in range(work.counts.steps):
            await step(work, number, each)
            work.ended_at.append(time.monotonic())
            await asyncio.sleep(work.counts.tool_s / work.counts.speed)

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(work.counts.agents):
                group.create_task(agent(number))
    except* (ArmError, aiohttp.ClientError, OSError) as errors:
        raise ArmError(str(errors.exceptions[0]) or type(errors.exceptions[0]).__name__) from None
    return max(work.ended_at) - began


def find_peers(environment: pathlib.Path) -> None:
    """Lets packages be imported that only a Python environment of their own has. What both have is this one's."""
    sys.path += [str(path) for path in sorted(environment.glob("lib/python*/site-packages"))]


async def luftpause(work: Work, agent: int, step: int) -> None:
    """Asks; after a 429, which is not expected and counted where it comes from, again."""
    while True:
        status, headers, _ = await work.ask(agent, step)
        if status == 200:
            return
        await asyncio.sleep(float(headers.get("retry-after-ms", "0")) / 1000)


async def reactive(work: Work, agent: int, step: int) -> None:
    """Asks, waits after a 429, asks again; after two of those in a row the step begins again."""
    chance = random.Random(agent * 1000 + step)
    refusals = 0
    while True:
        status, headers, _ = await work.ask(agent, step)
        if status == 200:
            return
        refusals += 1
        if refusals % (RETRIES + 1) == 0:
            work.steps_redone += 1
        backoff_s = BACKOFF_S * 2 ** min(refusals, 5) / work.counts.speed
        told_s = float(headers.get("retry-after-ms", "0")) / 1000
        await asyncio.sleep(max(told_s, backoff_s) * chance.uniform(1, 1.25))


def agentpause(counts: Counts) -> Step | None:
    """The step of agents that share agentpause's coordinator; None where the package is not installed."""
    try:
        from agentpause import Budget, MultiAgentCoordinator  # type: ignore[import-not-found]  # noqa: PLC0415
        from agentpause.estimator import Estimator  # type: ignore[import-not-found]  # noqa: PLC0415
    except ImportError:
        return None
    estimator = Estimator(max_tokens=counts.max_tokens, tool_overhead=0)
    last: list[Any] = [Budget(remaining_tokens=counts.window_tokens, remaining_requests=counts.window_requests)]
    read_at = [0.0]
    coordinator = MultiAgentCoordinator(lambda: last[0], wait_threshold_s=SUSPEND_S / counts.speed)

    def take(headers: dict[str, str]) -> None:
        read_at[0] = time.monotonic()
        resets = {name: _duration_s(headers[f"x-ratelimit-reset-{name}"]) for name in ("tokens", "requests")}
        last[0] = Budget(
            remaining_tokens=int(headers["x-ratelimit-remaining-tokens"]),
            remaining_requests=int(headers["x-ratelimit-remaining-requests"]),
            reset_seconds=resets["tokens"],
            reset_requests_seconds=resets["requests"],
            limit_tokens=int(headers["x-ratelimit-limit-tokens"]),
        )

    async def ping(work: Work) -> None:
        """The package's own way to fresh telemetry where nothing was read since a wait began: a request for one
        token."""
        work.pings += 1
        body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "ping"}]}
        async with work.session.post(f"{work.base}/chat/completions", json=body) as answer:
            take({name.lower(): value for name, value in answer.headers.items()})

    async def step(work: Work, agent: int, number: int) -> None:
        tokens = len(work.body(number)["messages"][0]["content"]) // 4
        while True:
            estimate = estimator.estimate(tokens)
            decision = coordinator.request(str(agent), estimate, estimator.sigma(estimate))
            if decision.action != "continue":
                work.suspensions += decision.action == "checkpoint"
                wait_s = decision.wait_seconds or last[0].reset_seconds or SUSPEND_S / counts.speed
                began = time.monotonic()
                await asyncio.sleep(wait_s)
                if read_at[0] < began:
                    await ping(work)
                continue
            status, headers, body = await work.ask(agent, number)
            take(headers)
            coordinator.complete(str(agent))
            if status == 200:
                estimator.record(tokens, body["usage"]["total_tokens"])
                return
            await asyncio.sleep(float(headers.get("retry-after-ms", "1000")) / 1000)

    return step


def litellm(counts: Counts) -> Step | None:
    """The step of agents that share LiteLLM's router; None where it is not installed."""
    try:
        from litellm import Router  # type: ignore[import-not-found]  # noqa: PLC0415
        from litellm.exceptions import RateLimitError  # type: ignore[import-not-found]  # noqa: PLC0415
    except ImportError:
        return None
    made: list[Any] = []

    async def step(work: Work, agent: int, number: int) -> None:
        if not made:
            target = {"model": f"openai/{MODEL}", "api_base": work.base, "api_key": "unused"}
            limits = {"tpm": counts.window_tokens, "rpm": counts.window_requests}
            deployment = {"model_name": MODEL, "litellm_params": {**target, **limits}}
            # The strategy that looks at tpm and rpm; the usual one does not.
            made.append(Router([deployment], num_retries=RETRIES, routing_strategy="usage-based-routing-v2"))
        refusals = 0
        while True:
            try:
                await made[0].acompletion(**work.body(number), user=f"agent-{agent}")
            except RateLimitError:
                work.steps_redone += 1
                refusals += 1
                await asyncio.sleep(BACKOFF_S * 2 ** min(refusals, 5) / counts.speed)
            else:
                return

    return step


def _duration_s(text: str) -> float:
    """Seconds of a duration as the simulated provider writes it."""
    if text.endswith("ms"):
        return float(text[:-2]) / 1000
    minutes, _, seconds = text.removesuffix("s").rpartition("m")
    return float(minutes or 0) * 60 + float(seconds)
