"""The clients of a chaos: agents that own their loop, a flood now and then, and sub-agents of the runtime.

Every agent knows what each reply must be, since the simulated engine does what it is told: a reply that belongs to
somebody else is found out. A turn that fails is sent again until it is answered; some clients leave in mid-turn. What
was seen is in `seen`. Each try has a mark of its own in its body, by which the links know it again under any id. Must
not judge: `chaos_check` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from typing import Any

import aiohttp
import msgspec

from loadgen.chaos_check import Seen
from loadgen.chaos_link import MARK
from loadgen.chaos_rig import MODEL
from loadgen.reply import Reply, ReplyError

AGENTS = 24
STUCK_S = 60.0
"""A turn that is neither answered nor broken off for so long is stuck: queues here are short, outages last seconds."""
_FLOOD_CLIENTS = 40
_PAUSE_S = (0.05, 0.3)
"""How long tools work, and how long a client waits before it tries again."""
_LEAVES_SHARE = 0.05
"""Of the tries of turns: the client leaves within LEAVES_S_MAX."""
_LEAVES_S_MAX = 0.5
_ANONYMOUS_SHARE = 0.2
"""Of the runs: they name no run id, so that their tool call ids alone tell which one they are."""
_END_WITHIN_S = 5.0
_TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
_ALLOWED = (429, 502, 503, 504)
"""What a client may be told of a turn that failed."""


class _Failed(Exception):  # noqa: N818 - an outcome of a try, not an error
    """A try of a turn came to nothing; the text says how."""


class Load:
    """Clients of the dataplanes at `urls`, while `async with` is entered; `finish` lets them end what they have."""

    def __init__(self, urls: tuple[str, ...], seed: int, seen: Seen) -> None:
        self._urls = urls
        self._seed = seed
        self._seen = seen
        self._ending = False
        self._tries = itertools.count()
        self._agents: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Load:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
        )
        self._agents = [asyncio.create_task(self._agent(number)) for number in range(AGENTS)]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for agent in self._agents:
            agent.cancel()
        await asyncio.gather(*self._agents, return_exceptions=True)
        await self._session.close()

    async def finish(self, within_s: float) -> None:
        """Begins nothing new and returns when all runs are done, or after `within_s`. Raises what an agent raised."""
        self._ending = True
        await asyncio.wait(self._agents, timeout=within_s)
        for agent in self._agents:
            if agent.done():
                agent.result()

    async def flood(self, seconds: float, seed: int) -> None:
        """Many clients that send one turn after another, each a run of its own, and often leave."""
        until = time.monotonic() + seconds

        async def client(number: int) -> None:
            chance = random.Random(f"flood:{seed}:{number}")
            while time.monotonic() < until:
                body = _body([{"role": "user", "content": f"{number}"}], stream=chance.random() < 0.5)
                leaves_s = chance.uniform(0, _LEAVES_S_MAX) if chance.random() < 0.3 else None
                headers = {"x-luftpause-class": "batch", "x-luftpause-caller": f"flood-{number % 4}"}
                reply = await self._try(chance.choice(self._urls), body, headers, leaves_s)
                if reply is None:
                    await asyncio.sleep(chance.uniform(*_PAUSE_S))

        await asyncio.gather(*(client(number) for number in range(_FLOOD_CLIENTS)))

    async def _agent(self, number: int) -> None:
        chance = random.Random(f"agent:{self._seed}:{number}")
        count = 0
        while not self._ending:
            self._seen.runs_begun += 1
            await self._run(f"chaos-{number}-{count}", number, chance)
            self._seen.runs_done += 1
            count += 1

    async def _run(self, mark: str, number: int, chance: random.Random) -> None:
        """One run to its end: every turn but the last must call the tool with the run's own words."""
        steps = chance.randint(2, 4)
        stream = chance.random() < 0.7
        headers = {
            "x-luftpause-class": "interactive" if number % 3 == 0 else "batch",
            "x-luftpause-caller": f"caller-{number % 6}",
        }
        if chance.random() >= _ANONYMOUS_SHARE:
            headers["x-luftpause-run-id"] = mark
        calls = "\n".join(f'CALL lookup {{"query": "{mark}-{step}"}}' for step in range(steps))
        messages: list[dict[str, Any]] = [{"role": "user", "content": calls}]
        run_ids: set[str] = set()
        for step in range(steps + 1):
            told, run_id = await self._turn(messages, headers, stream, chance)
            run_ids.add(run_id)
            expected = [f'{{"query": "{mark}-{step}"}}'] if step < steps else []
            if [call["function"]["arguments"] for call in told.get("tool_calls") or []] != expected:
                self._seen.wrong.append(f"{mark}: step {step} was answered with {str(told)[:200]}")
                break
            messages.append(told)
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in told["tool_calls"]]
            if step < steps:
                await asyncio.sleep(chance.uniform(*_PAUSE_S))
        for run_id in run_ids:
            await self._end_run(run_id, headers, chance)

    async def _turn(
        self, messages: list[dict[str, Any]], headers: dict[str, str], stream: bool, chance: random.Random
    ) -> tuple[dict[str, Any], str]:
        """The reply's message and the run's id, however many tries it takes."""
        body = _body(messages, stream) | {"tools": [_TOOL], "parallel_tool_calls": False}
        while True:
            leaves_s = chance.uniform(0, _LEAVES_S_MAX) if chance.random() < _LEAVES_SHARE else None
            reply = await self._try(chance.choice(self._urls), body, headers, leaves_s)
            if reply is not None:
                return reply
            await asyncio.sleep(chance.uniform(*_PAUSE_S))

    async def _try(
        self, url: str, body: dict[str, Any], headers: dict[str, str], leaves_s: float | None
    ) -> tuple[dict[str, Any], str] | None:
        """One try: the reply, or None; its outcome is counted."""
        limit_s = STUCK_S if leaves_s is None else leaves_s
        marked = msgspec.json.encode(body | {"metadata": {"try": f"{MARK}{next(self._tries)}"}})
        try:
            async with asyncio.timeout(limit_s):
                reply = await self._ask(f"{url}/v1/chat/completions", marked, headers)
        except TimeoutError:
            outcome = "stuck" if leaves_s is None else "left"
        except aiohttp.ClientConnectorError:
            outcome = "no connection"
        except (aiohttp.ClientError, ReplyError, OSError):
            outcome = "broken off"
        except _Failed as failed:
            outcome = str(failed)
        else:
            self._seen.turns["answered"] += 1
            return reply
        self._seen.turns[outcome] += 1
        return None

    async def _ask(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[dict[str, Any], str]:
        sent = {"content-type": "application/json", **headers}
        async with self._session.post(url, data=body, headers=sent) as answer:
            run_id = answer.headers.get("x-luftpause-run-id", "")
            if answer.status != 200:
                if answer.status not in _ALLOWED:
                    self._seen.wrong.append(f"status {answer.status}: {(await answer.text())[:200]}")
                raise _Failed(f"status {answer.status}")
            if answer.content_type != "text/event-stream":
                message: dict[str, Any] = msgspec.json.decode(await answer.read())["choices"][0]["message"]
                return {**message, "tool_calls": message.get("tool_calls") or []}, run_id
            reply = Reply()
            async for data in answer.content.iter_any():
                reply.feed(data, 0.0)
            reply.finish()
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
        return {"role": "assistant", "content": reply.text or None, "tool_calls": calls}, run_id

    async def _end_run(self, run_id: str, headers: dict[str, str], chance: random.Random) -> None:
        # A courtesy: the scheduler forgets it anyway.
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with asyncio.timeout(_END_WITHIN_S):
                url = f"{chance.choice(self._urls)}/v1/runs/{run_id}"
                async with self._session.delete(url, headers=headers):
                    pass


def _body(messages: list[dict[str, Any]], stream: bool) -> dict[str, Any]:
    return {"model": MODEL, "messages": messages, "max_tokens": 64, "stream": stream}
