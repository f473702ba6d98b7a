"""The ways of working on the tasks of `bench fanout`, each told by how many seconds it takes.

    fan_out         sub-agents of the runtime, spawned together and awaited together
    one_by_one      sub-agents of the runtime, each awaited before the next is spawned
    direct          the same turns and tool calls at the same time, straight at engines and tools, without luftpause

The requests of `direct` say what those of the runtime say, but for the ids of tool calls, and ask for the reply as a
whole where the runtime has it streamed, which costs less; each agent keeps its engine, as luftpause would have it. So
what is between them is luftpause's own cost and that of streams.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from loadgen.driver import fault_kind, message_of, open_session
from loadgen.fanout_rig import MODEL, Places
from loadgen.mcp_calls import CallError, McpTools, text_of
from loadgen.relay_rig import RigError
from loadgen.spawning import AWAIT_S, task
from loadgen.workload import Workload, plan_run, text

CALLS_MAX = 3
"""Most tool calls of a task."""
MAX_TOKENS = 48
_TOKEN_CHARS = 4
"""Of the simulated engine."""


class ArmError(RigError):
    """A task was not done as it should be; the text says why."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one agent has to do."""

    text: str
    calls: int


def tasks(number: int, tokens: int, seed: int) -> list[Task]:
    """So many tasks of so many tokens, with one, two, three, one, … tool calls. No other seed has their texts."""
    made = []
    for count in range(number):
        calls = count % CALLS_MAX + 1
        shape = Workload(turns=1, context_chars=tokens * _TOKEN_CHARS - len(task("", calls)))
        made.append(Task(task(text(plan_run(shape, seed, count), 0), calls), calls))
    return made


async def fan_out(places: Places, todo: list[Task]) -> float:
    """Seconds from the first `spawn` to the last answer. Raises ArmError."""
    async with McpTools(places.runtime) as runtime:
        begun_s = time.perf_counter()
        handles = await asyncio.gather(*(_spawn(runtime, each) for each in todo))
        await _await(runtime, handles, todo)
        return time.perf_counter() - begun_s


async def one_by_one(places: Places, todo: list[Task]) -> float:
    """Seconds from the first `spawn` to the last answer. Raises ArmError."""
    async with McpTools(places.runtime) as runtime:
        begun_s = time.perf_counter()
        for each in todo:
            await _await(runtime, [await _spawn(runtime, each)], [each])
        return time.perf_counter() - begun_s


async def direct(places: Places, todo: list[Task]) -> float:
    """Seconds from the first turn to the last answer. Raises ArmError."""
    async with McpTools(places.tools) as tools, open_session(None) as engines:
        offered = [_function(each) for each in await tools.list()]
        agents = [
            _Agent(engines, places.engines[number % len(places.engines)], tools, offered) for number in range(len(todo))
        ]
        begun_s = time.perf_counter()
        await asyncio.gather(*(agent.work(each) for agent, each in zip(agents, todo, strict=True)))
        return time.perf_counter() - begun_s


async def _spawn(runtime: McpTools, each: Task) -> str:
    try:
        result = await runtime.call("spawn", task=each.text, maxToolCalls=CALLS_MAX, maxTokens=MAX_TOKENS)
    except CallError as error:
        raise ArmError(f"spawn: {error}: {error.message}") from None
    return str(result["structuredContent"]["handle"])


async def _await(runtime: McpTools, handles: list[str], todo: list[Task]) -> None:
    try:
        results = await runtime.call("await", handles=handles, timeout=AWAIT_S)
    except CallError as error:
        raise ArmError(f"await: {error}: {error.message}") from None
    for told, each in zip(results["structuredContent"]["results"], todo, strict=True):
        if (told["state"], told["toolCalls"], told["failedToolCalls"]) != ("Completed", each.calls, 0):
            raise ArmError(f"expected a run completed with {each.calls} tool calls: {told}")


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of an MCP server as engines are offered it."""
    described = {"name": tool["name"], "description": tool["description"], "parameters": tool["inputSchema"]}
    return {"type": "function", "function": described}


class _Agent:
    """An agent that keeps its own loop at one engine."""

    def __init__(
        self, engines: aiohttp.ClientSession, base_url: str, tools: McpTools, offered: list[dict[str, Any]]
    ) -> None:
        self._engines = engines
        self._url = f"{base_url}/chat/completions"
        self._tools = tools
        self._offered = offered

    async def work(self, todo: Task) -> None:
        """Turn, tool call, turn, until it answers. Raises ArmError."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": todo.text}]
        made = 0
        while called := await self._turn(messages, may_call=made < CALLS_MAX):
            messages.append({"role": "assistant", "content": "", "tool_calls": called})
            for each in called:
                arguments = msgspec.json.decode(each["function"]["arguments"])
                try:
                    found = text_of(await self._tools.call(each["function"]["name"], **arguments))
                except CallError as error:
                    raise ArmError(f"a tool: {error}: {error.message}") from None
                messages.append({"role": "tool", "tool_call_id": each["id"], "content": found})
            made += len(called)
        if made != todo.calls:
            raise ArmError(f"expected {todo.calls} tool calls, saw {made}")

    async def _turn(self, messages: list[dict[str, Any]], *, may_call: bool) -> list[dict[str, Any]]:
        """The tool calls that the reply asks for. Raises ArmError."""
        body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": MAX_TOKENS}
        body |= {"tools": self._offered, "parallel_tool_calls": False}
        if not may_call:
            body["tool_choice"] = "none"
        headers = {"Content-Type": "application/json"}
        try:
            async with self._engines.post(self._url, data=msgspec.json.encode(body), headers=headers) as response:
                received = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ArmError(f"an engine: {fault_kind(error)}") from None
        if response.status != 200:
            raise ArmError(f"an engine: status {response.status}: {message_of(received)}")
        calls: list[dict[str, Any]] = msgspec.json.decode(received)["choices"][0]["message"].get("tool_calls") or []
        return calls
