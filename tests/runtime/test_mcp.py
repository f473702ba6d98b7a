"""The MCP surface, driven by the official client over real HTTP in both eras of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestParams, ElicitResult

from tests.runtime.memory_of_runs import resident_kib
from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.waiting import wait_until

LOOKUP = 'CALL lookup {"query": "x"}'
ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    """One runtime for all tests here, with a token."""
    with running_runtime(tmp_path_factory.mktemp("mcp"), {"LUFTPAUSE_TOKEN": "secret"}) as made:
        yield made


@contextlib.asynccontextmanager
async def connected(runtime: RuntimeProcess, era: Any = "auto", **options: Any) -> AsyncIterator[Client]:
    """A client of the runtime; `caller` names it, `token` replaces the right one."""
    headers = {"Authorization": f"Bearer {options.pop('token', runtime.token)}"}
    if "caller" in options:
        headers["x-luftpause-caller"] = options.pop("caller")
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable_http_client(runtime.mcp_url, http_client=http)
        async with Client(transport, mode=era, **options) as client:
            yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool tells. Fails if it is an error."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    assert isinstance(answer.structured_content, dict)
    return answer.structured_content


async def error(client: Client, tool: str, **arguments: Any) -> str:
    """The error of a tool."""
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return str(answer.content[0].text)  # type: ignore[union-attr]


@ERAS
async def test_spawned_runs_are_awaited_together(runtime: RuntimeProcess, era: str) -> None:
    async with connected(runtime, era) as client:
        handles = [(await call(client, "spawn", task=f'CALL lookup {{"query": "{n}"}}'))["handle"] for n in range(3)]
        told = await call(client, "await", handles=handles)
        assert [each["handle"] for each in told["results"]] == handles
        for each in told["results"]:
            assert each["state"] == "Completed"
            assert each["answer"]
            assert each["failedToolCalls"] == 0
            assert each["budget"]["limits"] == {}
            assert each["budget"]["exceeded"] is False


@ERAS
async def test_run_returns_the_answer(runtime: RuntimeProcess, era: str) -> None:
    async with connected(runtime, era) as client:
        told = await call(client, "run", task=LOOKUP, serviceClass="batch", budgetToolCalls=3)
        assert (told["state"], told["toolCalls"], told["failedToolCalls"]) == ("Completed", 1, 0)
        assert told["budget"]["limits"] == {"toolCalls": 3}
        assert told["budget"]["used"]["toolCalls"] == 1


@ERAS
async def test_the_tools_say_what_they_are_for(runtime: RuntimeProcess, era: str) -> None:
    async with connected(runtime, era) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == {"spawn", "await", "run", "status", "cancel", "approve", "decide", "tools"}
        for tool in listed.values():
            assert len(tool.description or "") > 40
            for name, schema in tool.input_schema["properties"].items():
                assert schema.get("description"), f"{tool.name}.{name}"
        assert listed["spawn"].input_schema["required"] == ["task"]
        assert listed["spawn"].input_schema["properties"] == listed["run"].input_schema["properties"]
        assert client.instructions


@ERAS
@pytest.mark.parametrize(
    ("action", "allow", "times"), [("accept", True, 1), ("accept", False, 0), ("decline", None, 0)]
)
async def test_an_approval_is_asked_by_a_form(
    runtime: RuntimeProcess, era: str, action: Any, allow: bool | None, times: int
) -> None:
    asked: list[str] = []

    async def answer(_context: Any, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action=action, content=None if allow is None else {"allow": allow})

    name = f"{era}-{action}-{allow}"
    async with connected(runtime, era, elicitation_callback=answer) as client:
        await call(client, "run", task=f'CALL set_note {{"name": "{name}", "text": "x"}}')
        told = await call(client, "run", task=f'CALL delete_note {{"name": "{name}"}}')
        assert told["state"] == "Completed"
        assert told["failedToolCalls"] == 1 - times
    assert len(asked) == 1
    assert asked[0].startswith("Allow the tool call delete_note")
    deleted = [line for line in runtime.ledger.read_text().splitlines() if "delete_note" in line and name in line]
    assert len(deleted) == times


@ERAS
async def test_a_client_that_cannot_ask_is_told_to_approve(runtime: RuntimeProcess, era: str) -> None:
    async with connected(runtime, era) as client:
        told = await call(client, "run", task=LOOKUP, approveTools=["lookup"])
        assert told["state"] == "AwaitingApproval"
        assert told["pendingApproval"] == {"question": "0-0-0", "tool": "lookup", "arguments": {"query": "x"}}
        assert "approve" in told["note"]
        asked = told["pendingApproval"]["question"]
        for allow in (True, False):  # sent again by a client that lost the reply, and by one with a mind of its own
            answered = await call(client, "approve", handle=told["handle"], allow=allow, question=asked)
            assert answered["allowed"] is True
        assert "has asked no '9-9-9'" in await error(
            client, "approve", handle=told["handle"], allow=True, question="9-9-9"
        )
        (result,) = (await call(client, "await", handles=[told["handle"]]))["results"]
        assert result["state"] == "Completed"


@ERAS
async def test_a_dismissed_form_leaves_the_question_open(runtime: RuntimeProcess, era: str) -> None:
    async def answer(_context: Any, _params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="cancel")

    async with connected(runtime, era, elicitation_callback=answer) as client:
        told = await call(client, "run", task=LOOKUP, approveTools=["lookup"])
        assert told["state"] == "AwaitingApproval"
        assert (await call(client, "cancel", handle=told["handle"]))["cancelled"] == [told["handle"]]


@ERAS
async def test_bad_arguments_are_errors_that_name_them(runtime: RuntimeProcess, era: str) -> None:
    async with connected(runtime, era) as client:
        assert "handles: there is no run 'nobody'" in await error(client, "await", handles=["nobody"])
        assert "budgetTokens: expected a whole number from 1" in await error(client, "spawn", task="x", budgetTokens=-1)
        assert "tools: there is no tool 'x'; there are: lookup" in await error(client, "spawn", task="x", tools=["x"])
        assert (await error(client, "spawn", task="x", tools=[1] * 100_000)).count("expected a valid string") == 1
        for arguments in ({"tools": ["x"] * 1001}, {"approveTools": ["x"] * 1001}):
            (name,) = arguments
            assert f"{name}: expected at most 1000" in await error(client, "spawn", task="x", **arguments)
        assert "handles: expected at most 1000" in await error(client, "await", handles=["x"] * 1001)
        for name in ("budgetTokens", "budgetSeconds", "maxToolCalls"):
            assert f"{name}: expected a number" in await error(client, "spawn", task="x", **{name: True})
        assert "timeout: expected a number" in await error(client, "await", handles=["x"], timeout=True)
        unknown = await error(client, "spawn", task="x", **{f"no{number}": 1 for number in range(1000)})
        assert unknown.count("there is no such argument") == 5
        wrong = await error(client, "spawn", maxToolCalls="many", tools="lookup", budgetToken=5)
        assert "maxToolCalls: expected a valid integer" in wrong
        assert "tools: expected a list" in wrong
        assert "task: it is needed" in wrong
        assert "budgetToken: there is no such argument; there are: task, model, " in wrong
        assert "://" not in wrong
        for seconds in (1e308, -1):
            assert f"at most {2**53}" in await error(client, "spawn", task="x", budgetSeconds=seconds)
        assert "expected 'interactive' or 'batch'" in await error(client, "spawn", task="x", serviceClass="fast")
        done = await call(client, "run", task="x")
        assert "parent: run" in await error(client, "spawn", task="x", parent=done["handle"])
        assert "waits for no approval" in await error(client, "approve", handle=done["handle"], allow=True)


async def test_status_shows_parent_and_children_and_cancel_reaches_them(runtime: RuntimeProcess) -> None:
    async with connected(runtime, caller="tree") as client:
        root = (await call(client, "spawn", task=LOOKUP, approveTools=["lookup"]))["handle"]
        child = (await call(client, "spawn", task=LOOKUP, approveTools=["lookup"], parent=root))["handle"]
        shown = (await call(client, "status", handle=child))["runs"]
        assert [each["handle"] for each in shown] == [root, child]
        assert {each["caller"] for each in shown} == {"tree"}
        everything = {each["handle"] for each in (await call(client, "status"))["runs"]}
        assert everything >= {root, child}
        assert set((await call(client, "cancel", handle=root))["cancelled"]) == {root, child}
        assert (await call(client, "cancel", handle=root))["cancelled"] == []


async def test_the_caller_is_the_session_where_none_is_named(runtime: RuntimeProcess) -> None:
    async with connected(runtime, "legacy") as client:
        handle = (await call(client, "spawn", task=LOOKUP, approveTools=["lookup"]))["handle"]
        (shown,) = (await call(client, "status", handle=handle))["runs"]
        assert len(shown["caller"]) >= 16
        await call(client, "cancel", handle=handle)


@ERAS
async def test_a_client_that_leaves_cancels_nothing(runtime: RuntimeProcess, era: str) -> None:
    async with connected(runtime, era) as client:
        task = 'CALL deep_search {"query": "slow"}'
        handle = (await call(client, "spawn", task=task))["handle"]
        waiting = asyncio.create_task(call(client, "await", handles=[handle]))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with connected(runtime, era) as client:
        (told,) = (await call(client, "await", handles=[handle]))["results"]
        assert told["state"] == "Completed"


async def test_the_token_is_asked_for(runtime: RuntimeProcess) -> None:
    async with aiohttp.ClientSession() as http:
        for path in ("/mcp", "/status"):
            async with http.get(runtime.url + path) as answer:
                assert answer.status == 401
                assert "Bearer" in (await answer.json())["error"]["message"]
        async with http.get(runtime.url + "/health") as answer:
            assert answer.status == 200
        headers = {"Authorization": f"Bearer {runtime.token}"}
        async with http.get(runtime.url + "/status", headers=headers) as answer:
            status = await answer.json()
    assert set(status["states"]) >= {"Running", "Sleeping", "BudgetExceeded"}
    assert status["servers"][0]["tools"] == ["lookup", "deep_search", "add_note", "set_note", "delete_note"]


async def test_an_approval_by_form_survives_a_restart(tmp_path: pathlib.Path) -> None:
    """The form was shown by one process and its answer comes to the next."""
    with running_runtime(tmp_path) as runtime:

        async def answer(_context: Any, _params: ElicitRequestParams) -> ElicitResult:
            runtime.kill()
            runtime.start()
            return ElicitResult(action="accept", content={"allow": True})

        async with connected(runtime, elicitation_callback=answer) as client:
            told = await call(client, "run", task=LOOKUP, approveTools=["lookup"])
            assert (told["state"], told["failedToolCalls"]) == ("Completed", 0)


async def test_sigterm_with_open_streams_ends_within_5_s_and_the_runs_go_on(tmp_path: pathlib.Path) -> None:
    with running_runtime(tmp_path, {"LUFTPAUSE_TOOLS_LOOKUP_S": "30"}) as runtime:
        async with connected(runtime, "legacy") as client:
            handle = (await call(client, "spawn", task=LOOKUP))["handle"]
            waiting = asyncio.create_task(call(client, "await", handles=[handle]))
            async with aiohttp.ClientSession() as http:

                async def calling() -> bool:
                    async with http.get(runtime.tools_url + "/effects") as told:
                        return bool((await told.json())["calls"])

                await wait_until(calling, 10)
            assert runtime.service is not None
            began = time.monotonic()
            assert await asyncio.to_thread(runtime.service.stop) == 0
            assert time.monotonic() - began < 5
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        runtime.start()
        async with connected(runtime) as client:
            (shown,) = (await call(client, "status", handle=handle))["runs"]
            assert shown["state"] == "Running"


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory as Linux tells of it")
async def test_an_idle_session_takes_at_most_150_kib(runtime: RuntimeProcess) -> None:
    assert runtime.service is not None
    pid = runtime.service.process.pid
    headers = {"Authorization": f"Bearer {runtime.token}"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as http,
        contextlib.AsyncExitStack() as opened,
    ):
        for _ in range(20):  # what the first ones need once is not theirs
            await idle_session(opened, http, runtime.mcp_url)
        before_kib = resident_kib(pid)
        for _ in range(100):
            await idle_session(opened, http, runtime.mcp_url)
        assert (resident_kib(pid) - before_kib) / 100 <= 150


async def idle_session(opened: contextlib.AsyncExitStack, http: aiohttp.ClientSession, url: str) -> None:
    """Opens a session with its stream of messages, which stays open as long as `opened` does."""
    headers = {"Accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "idle", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    async with http.post(url, json=message, headers=headers) as answer:
        headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        await answer.read()
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    async with http.post(url, json=initialized, headers=headers) as answer:
        assert answer.status == 202
    stream = await opened.enter_async_context(http.get(url, headers=headers))
    assert stream.status == 200
