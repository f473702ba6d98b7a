"""Tool servers that are not there, die, hang, or answer nonsense, and what a call then came to."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import re
import sys
import time
from typing import Any

import pytest
from aiohttp import web

from loadgen.ports import free_ports
from runtime.tool_config import Server
from runtime.tool_specs import Done, NotStarted, Outcome, Unknown
from runtime.toolbox import Toolbox
from tests.runtime.tool_servers import (
    STDIO,
    Reaction,
    ScriptedServer,
    call,
    effects,
    fake_tools,
    listening,
    opened,
    reply,
    scripted,
    serving,
)
from tests.stack import ROOT
from tests.waiting import wait_until


def answering(status: int, body: Any = None, **options: Any) -> Reaction:
    """A server that answers every call like this."""

    async def react(_request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if isinstance(body, dict):
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], **body}, status=status)
        return web.Response(status=status, text=body or "", **options)

    return react


async def cut_off(request: web.Request, _message: dict[str, Any]) -> web.StreamResponse:
    """A server whose connection ends instead of an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half_an_answer(request: web.Request, _message: dict[str, Any]) -> web.StreamResponse:
    """A server whose connection ends in the middle of an answer."""
    response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "1000"})
    await response.prepare(request)
    await response.write(b'{"jsonrpc": ')
    return await cut_off(request, {})


async def empty_stream(request: web.Request, _message: dict[str, Any]) -> web.StreamResponse:
    """A server whose stream ends without an answer."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b": hello\n\n")
    return response


async def noisy_stream(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
    """A server that tells of its progress before it answers."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
    result = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": "t"}]}}
    for event in (progress, result):
        await response.write(b": ping\r\n\r\nevent: message\r\ndata: %b\r\n\r\n" % json.dumps(event).encode())
    return response


def error(code: int, message: str = "said") -> dict[str, Any]:
    """A JSON-RPC error."""
    return {"error": {"code": code, "message": message}}


WHATEVER = [
    (answering(200, {"result": {"content": [{"type": "text", "text": "t"}]}}), Done("t", is_error=False)),
    (answering(200, {"result": {"content": [], "isError": True}}), Done("", is_error=True)),
    (answering(200, error(-32602)), Done("said", is_error=True)),
    (answering(200, error(-32603)), Done("said", is_error=True)),
    (answering(500, error(-32603)), Done("said", is_error=True)),
    (answering(200, error(-32600)), NotStarted("said")),
    (answering(200, error(-32000)), Unknown("said")),
    (answering(200, error(-32001)), Unknown("no answer within 5 s", is_late=True)),
    (answering(401), NotStarted("the server answered 401")),
    (answering(403, "no", content_type="text/html"), NotStarted("the server answered 403")),
    (answering(429), NotStarted("the server answered 429")),
    (answering(408), Unknown("the server answered 408", is_late=True)),
    (answering(500), Unknown("the server answered 500")),
    (answering(502, "bad gateway"), Unknown("the server answered 502")),
    (answering(504), Unknown("the server answered 504", is_late=True)),
    (answering(202), Unknown("the server answered 202 and will send no result")),
    (answering(200, "ok", content_type="text/html"), Unknown("the server answered with content type 'text/html'")),
    (cut_off, Unknown("connection lost")),
    (half_an_answer, Unknown("connection lost")),
    (empty_stream, Unknown("SSE stream ended")),
    (answering(200, "nonsense", content_type="application/json"), Unknown("Failed to parse")),
    (answering(200, {"result": {"content": 3}}), Done("the tool ran, but its answer is not valid", is_error=True)),
]
"""How a server may answer, and what that tells."""


@pytest.mark.parametrize(
    ("react", "outcome"),
    [
        *WHATEVER,
        (answering(404), NotStarted("the server no longer knows the session")),
        (answering(404, error(-32001)), NotStarted("the server no longer knows the session")),
    ],
)
async def test_an_answer_tells_whether_the_tool_ran(react: Reaction, outcome: Outcome) -> None:
    await tells(react, outcome, stateless=False)


@pytest.mark.parametrize(
    ("react", "outcome"),
    [
        *WHATEVER,
        (answering(404), NotStarted("the server answered 404")),
        (answering(200, {"result": {"resultType": "input_required"}}), Done("the tool asks for input", is_error=True)),
        (answering(200, {}), Unknown("the answer has no result")),
        (noisy_stream, Done("t", is_error=False)),
    ],
)
async def test_an_answer_without_a_session_tells_whether_the_tool_ran(react: Reaction, outcome: Outcome) -> None:
    await tells(react, outcome, stateless=True)


async def tells(react: Reaction, outcome: Outcome, *, stateless: bool) -> None:
    """Fails unless a call that is answered by `react` comes to `outcome`, and the next one works."""
    async with scripted(react, stateless=stateless) as (server, url), opened(Server("a", url=url)) as toolbox:
        came = await call(toolbox, "act", timeout_s=5)
        assert type(came) is type(outcome)
        told, said = (each.text if isinstance(each, Done) else each.reason for each in (came, outcome))
        assert told.startswith(said)
        assert server.calls == 1
        if isinstance(came, Unknown) and isinstance(outcome, Unknown):
            assert came.is_late is outcome.is_late
        if isinstance(came, Done) and isinstance(outcome, Done):
            assert came.is_error is outcome.is_error
        # Whatever it was, the server is there and is called again, at the latest over a new connection.
        server.react = answering(200, {"result": {"content": [{"type": "text", "text": "again"}]}})

        async def works() -> bool:
            return bool(await call(toolbox, "act") == Done("again", is_error=False))

        await wait_until(works)


@pytest.mark.parametrize("stateless", [True, False])
async def test_of_an_answer_of_very_many_parts_some_are_read(stateless: bool) -> None:
    many = [{"type": "text", "text": "a"}] * 200_000

    async def react(_request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return reply(message, {"content": many})

    async with scripted(react, stateless=stateless) as (_, url), opened(Server("a", url=url)) as toolbox:
        await wait_until(lambda: toolbox.find("act"))
        outcome = await call(toolbox, "act", timeout_s=60)
    assert isinstance(outcome, Done), outcome
    assert outcome.text.endswith("[… 199000 parts are missing here …]")


async def test_what_is_wrong_with_an_answer_is_told_in_one_line() -> None:
    async def react(_request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": 7})

    async with scripted(react) as (_, url), opened(Server("a", url=url)) as toolbox:
        await wait_until(lambda: toolbox.find("act"))
        outcome = await call(toolbox, "act", timeout_s=5)
    assert isinstance(outcome, Unknown), outcome
    assert "\n" not in outcome.reason


async def test_a_call_in_flight_outlives_the_failure_of_another() -> None:
    answer = asyncio.Event()

    async def react(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if message["params"]["arguments"].get("fails"):
            return await cut_off(request, message)
        await answer.wait()
        return reply(message, {"content": [{"type": "text", "text": "late"}]})

    async with scripted(react) as (server, url), opened(Server("a", url=url)) as toolbox:
        slow = asyncio.create_task(call(toolbox, "act"))
        await wait_until(lambda: server.calls == 1)
        assert isinstance(await call(toolbox, "act", fails=True), Unknown)
        answer.set()
        assert await slow == Done("late", is_error=False)


async def test_a_call_in_flight_outlives_the_session() -> None:
    answer = asyncio.Event()

    async def react(request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        if server.calls == 1:
            await answer.wait()
        elif request.headers["mcp-session-id"] == "s1":
            return web.Response(status=404)
        return reply(message, {"content": [{"type": "text", "text": request.headers["mcp-session-id"]}]})

    async with scripted(react) as (server, url), opened(Server("a", url=url)) as toolbox:
        slow = asyncio.create_task(call(toolbox, "act"))
        await wait_until(lambda: server.calls == 1)
        assert isinstance(await call(toolbox, "act"), NotStarted)
        answer.set()
        assert await slow == Done("s1", is_error=False)


async def test_a_server_that_does_not_answer_in_time_is_unknown_and_told_to_stop() -> None:
    hangs = fake_tools(fault="hang-before", fault_tool="add_note")
    async with hangs as origin, opened(Server("web", url=origin + "/mcp", timeout_s=0.3)) as toolbox:
        assert await call(toolbox, "add_note", text="t") == Unknown("no answer within 0.3 s", is_late=True)

        async def cancelled() -> bool:
            return bool((await effects(origin))["calls"][0]["state"] == "cancelled")

        await wait_until(cancelled)
        assert isinstance(await call(toolbox, "lookup", query="x"), Done)


async def test_a_server_that_is_down_at_the_start_is_used_when_it_comes() -> None:
    (port,) = free_ports(1)
    began = time.monotonic()
    async with fake_tools() as other:
        servers = (
            Server("late", url=f"http://127.0.0.1:{port}/mcp"),
            Server("web", url=other + "/mcp", tools=("lookup",)),
        )
        async with opened(*servers) as toolbox:
            assert time.monotonic() - began < 5.0
            late, there = toolbox.status()
            assert (late.up, there.up) == (False, True)
            assert late.reason.startswith(f"{servers[0].url}: cannot connect")
            assert [tool.name for tool in toolbox.tools()] == ["lookup"]
            async with fake_tools(port):
                await wait_until(lambda: toolbox.status()[0].up, 15)
                assert toolbox.status()[0].reason == ""
                assert isinstance(await call(toolbox, "late__lookup", query="x"), Done)
                assert isinstance(await call(toolbox, "web__lookup", query="x"), Done)


async def test_a_call_of_a_server_that_went_away_is_not_started() -> None:
    async with fake_tools() as origin:
        port = int(origin.rpartition(":")[2])
        toolbox = Toolbox((Server("web", url=origin + "/mcp"),))
        await toolbox.start()
    try:
        assert isinstance(await call(toolbox, "add_note", text="t"), NotStarted)
        await wait_until(lambda: not toolbox.status()[0].up)
        assert {tool.name for tool in toolbox.tools()} >= {"add_note", "lookup"}
        assert [server.name for server in toolbox.absent(("add_note",))] == ["web"]
        outcome = await call(toolbox, "add_note", text="t")
        assert isinstance(outcome, NotStarted)
        # Of a connection that did not come up the reason names the address too.
        said = rf"tool server 'web' is down: ({origin}/mcp: )?cannot connect"
        assert re.match(said, outcome.reason)
        async with fake_tools(port):
            await wait_until(lambda: toolbox.status()[0].up, 15)
            assert isinstance(await call(toolbox, "add_note", text="t"), Done)
    finally:
        await toolbox.close()


@pytest.mark.parametrize(("fault", "happened"), [("die-before", 0), ("die-after", 1)])
async def test_a_server_that_dies_in_a_call_is_unknown_and_started_again(
    fault: str, happened: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "ledger"
    settings = {
        "PYTHONPATH": str(ROOT),
        "LUFTPAUSE_TOOLS_LEDGER": str(ledger),
        "LUFTPAUSE_TOOLS_FAULT": fault,
        "LUFTPAUSE_TOOLS_FAULT_TOOL": "add_note",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    async with fake_tools(lookup_s=1.0) as origin:
        servers = (
            Server("mortal", command=STDIO, env=tuple(settings), tools=("add_note", "set_note")),
            Server("web", url=origin + "/mcp", tools=("lookup",)),
        )
        async with opened(*servers) as toolbox:
            await wait_until(lambda: toolbox.find("lookup") and toolbox.find("add_note"), 30)
            other = asyncio.create_task(call(toolbox, "lookup", query="x"))
            outcome = await call(toolbox, "add_note", key="once", text="t")
            assert isinstance(outcome, Unknown), outcome
            told = await other
            assert isinstance(told, Done), told
            await wait_until(lambda: toolbox.status()[0].up, 20)
            assert isinstance(await call(toolbox, "set_note", key="other", name="n", text="t"), Done)
    keys = [json.loads(line)["key"] for line in ledger.read_text().splitlines()]
    assert keys.count("once") == happened


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (Server("a", command=("no-such-executable",)), "no-such-executable: No such file"),
        (Server("a", command=(sys.executable, "-c", "")), "onnection"),
        (
            Server("a", command=(sys.executable, "-c", "print('hello', flush=True); import nowhere")),
            "it said: ModuleNotFoundError: No module named 'nowhere'",
        ),
        (Server("a", command=(sys.executable,), env=("NO_SUCH_VARIABLE",)), "env names NO_SUCH_VARIABLE"),
    ],
)
async def test_why_a_server_does_not_start_is_told(server: Server, reason: str) -> None:
    async with opened(server) as toolbox:
        [status] = toolbox.status()
        assert not status.up
        assert reason in status.reason
        assert status.since <= time.time()


async def test_a_tool_that_the_protocol_does_not_allow_is_told_with_its_place() -> None:
    server = ScriptedServer(cut_off, stateless=True)
    server.tools = [*server.tools, {"name": "bad", "inputSchema": {}}]
    async with serving(server) as url, opened(Server("a", url=url)) as toolbox:
        [status] = toolbox.status()
    assert status.reason == f"{url}: tools.1.inputSchema.type: Field required"


STUBBORN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(60)
"""


async def test_closing_ends_even_a_child_that_listens_to_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.toolbox._START_S", 0.1)
    told = tmp_path / "pid"
    async with fake_tools() as origin:
        stubborn = Server("stubborn", command=(sys.executable, "-c", STUBBORN, str(told)))
        toolbox = Toolbox((Server("web", url=origin + "/mcp"), stubborn))
        await toolbox.start()
        pid = int(await wait_until(told.read_text))
        await wait_until(lambda: toolbox.find("lookup"))
        began = time.monotonic()
        await toolbox.close()
        assert time.monotonic() - began < 5.0
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert isinstance(await call(toolbox, "lookup", query="x"), NotStarted)


async def test_a_server_that_accepts_and_says_nothing_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.toolbox._START_S", 0.5)
    silent = listening()
    try:
        port = silent.getsockname()[1]
        async with fake_tools() as origin:
            servers = (Server("silent", url=f"http://127.0.0.1:{port}/mcp"), Server("web", url=origin + "/mcp"))
            async with opened(*servers) as toolbox:
                assert isinstance(await call(toolbox, "lookup", query="x"), Done)
                assert toolbox.status()[0].reason == "not started"
    finally:
        silent.close()


async def test_closing_with_calls_in_flight_makes_them_unknown() -> None:
    async with fake_tools(note_s=30.0) as origin, opened(Server("web", url=origin + "/mcp")) as toolbox:
        task = asyncio.create_task(call(toolbox, "add_note", text="t"))

        async def runs() -> bool:
            return bool((await effects(origin))["calls"])

        await wait_until(runs)
        await toolbox.close()
        assert isinstance(await task, Unknown)
