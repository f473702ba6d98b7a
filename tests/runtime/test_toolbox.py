"""Tools of servers that work, and what of them reaches a model."""

from __future__ import annotations

import asyncio
import json
import pathlib
import time
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from loadgen.ports import free_ports
from runtime.tool_config import Server
from runtime.tool_specs import Done, EffectKind, NotStarted, ToolSpec
from tests.runtime.tool_servers import STDIO, WHOLE, call, effects, fake_tools, opened, reply, scripted
from tests.stack import ROOT
from tests.waiting import wait_until

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def stdio(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The fake tool server as a child process; its ledger is the file `ledger`."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LUFTPAUSE_TOOLS_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.setenv("LUFTPAUSE_TOOLS_LOOKUP_S", "0.2")
    env = ("PYTHONPATH", "LUFTPAUSE_TOOLS_LEDGER", "LUFTPAUSE_TOOLS_LOOKUP_S")
    return Server("local", command=STDIO, env=env)


async def test_tools_are_offered_with_their_kinds_by_name() -> None:
    async with fake_tools() as origin, opened(Server("web", url=origin + "/mcp")) as toolbox:
        found = {tool.name: (tool.server, tool.kind, tool.destructive) for tool in toolbox.tools()}
        assert found == {
            "lookup": ("web", EffectKind.READ_ONLY, False),
            "deep_search": ("web", EffectKind.READ_ONLY, False),
            "add_note": ("web", EffectKind.AT_MOST_ONCE, False),
            "set_note": ("web", EffectKind.IDEMPOTENT, False),
            "delete_note": ("web", EffectKind.AT_MOST_ONCE, True),
        }
        lookup = toolbox.find("lookup")
        assert lookup is not None
        assert lookup.input_schema["required"] == ["query"]
        assert "fact" in lookup.description
        assert toolbox.find("nothing") is None


async def test_only_allowed_tools_are_offered(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_tools() as origin:
        server = Server("web", url=origin + "/mcp", tools=("lookup", "unheard"))
        async with opened(server) as toolbox:
            assert [tool.name for tool in toolbox.tools()] == ["lookup"]
    assert "event=tools-missing server=web tools=unheard" in caplog.text


async def test_tools_of_two_servers_that_share_a_name_are_both_qualified() -> None:
    async with fake_tools() as one, fake_tools() as two:
        servers = (Server("a", url=one + "/mcp", tools=("lookup",)), Server("b", url=two + "/mcp", tools=("lookup",)))
        async with opened(*servers) as toolbox:
            assert [tool.name for tool in toolbox.tools()] == ["a__lookup", "b__lookup"]
            assert toolbox.find("lookup") is None
            assert isinstance(await call(toolbox, "b__lookup", query="x"), Done)
        assert (await effects(one))["calls"] == []
        assert len((await effects(two))["calls"]) == 1


async def test_a_tool_found_before_another_took_its_name_is_still_called() -> None:
    async with fake_tools() as one, fake_tools() as two:
        servers = (Server("a", url=one + "/mcp", tools=("lookup",)), Server("b", url=two + "/mcp", tools=("lookup",)))
        async with opened(*servers) as toolbox:
            found = ToolSpec("a", "lookup", "", {}, EffectKind.READ_ONLY, destructive=False)
            outcome = await toolbox.call(found, {"query": "x"}, key="k", traceparent=None, timeout_s=None)
            assert isinstance(outcome, Done)


async def test_key_and_trace_reach_the_server() -> None:
    async with fake_tools() as origin, opened(Server("web", url=origin + "/mcp")) as toolbox:
        tool = toolbox.find("set_note")
        assert tool is not None
        arguments = {"name": "n", "text": "t"}
        outcome = await toolbox.call(tool, arguments, key="run/1/0", traceparent=TRACEPARENT, timeout_s=None)
        assert outcome == Done("n is set.", is_error=False)
        told = await effects(origin)
        assert told["effects"] == {"run/1/0": 1}
        [seen] = told["calls"]
        assert (seen["traceparent"], seen["header"]) == (TRACEPARENT, TRACEPARENT)


async def test_a_tool_that_fails_is_an_error_the_model_reads() -> None:
    async with fake_tools() as origin, opened(Server("web", url=origin + "/mcp")) as toolbox:
        outcome = await call(toolbox, "delete_note", name="none")
        assert outcome == Done("Error executing tool delete_note: there is no note 'none'", is_error=True)


PRINTS_FIRST = r"""
import os, sys
os.write(1, b'npm warn old\n\xff\xfe\n{}\n\n')
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


async def test_what_a_tool_server_prints_before_it_speaks_harms_nothing(stdio: Server) -> None:
    assert stdio.command is not None
    executable, *arguments = stdio.command
    async with opened(replace(stdio, command=(executable, "-c", PRINTS_FIRST, *arguments))) as toolbox:
        await wait_until(lambda: toolbox.find("lookup"), 30)


async def test_a_tool_server_in_a_child_process_serves_parallel_calls(stdio: Server, tmp_path: pathlib.Path) -> None:
    async with opened(stdio) as toolbox:
        began = time.monotonic()
        outcomes = await asyncio.gather(*(call(toolbox, "lookup", key=f"k{n}", query=f"{n}") for n in range(20)))
        # One after another they would take 4 s.
        assert time.monotonic() - began < 3.0
        assert all(isinstance(outcome, Done) and not outcome.is_error for outcome in outcomes)
        assert len({outcome.text for outcome in outcomes}) == 20
        await call(toolbox, "add_note", key="the-key", text="t")
    [line] = (tmp_path / "ledger").read_text().splitlines()
    assert json.loads(line) == {"key": "the-key", "tool": "add_note", "arguments": {"text": "t"}}


async def test_parallel_calls_over_http_run_side_by_side() -> None:
    async with fake_tools(lookup_s=0.3) as origin, opened(Server("web", url=origin + "/mcp")) as toolbox:
        began = time.monotonic()
        outcomes = await asyncio.gather(*(call(toolbox, "lookup", key=f"k{n}", query=f"{n}") for n in range(120)))
        assert time.monotonic() - began < 6.0
        assert all(isinstance(outcome, Done) for outcome in outcomes)


async def test_cancelling_a_call_cancels_it_on_the_server() -> None:
    async with fake_tools(note_s=30.0) as origin, opened(Server("web", url=origin + "/mcp")) as toolbox:
        task = asyncio.create_task(call(toolbox, "add_note", text="t"))
        await wait_until(lambda: _has_call(origin, "running"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_until(lambda: _has_call(origin, "cancelled"))
        assert (await effects(origin))["effects"] == {}
        assert isinstance(await call(toolbox, "lookup", query="x"), Done)


async def _has_call(origin: str, state: str) -> bool:
    return any(seen["state"] == state for seen in (await effects(origin))["calls"])


async def test_a_tool_of_a_server_that_is_not_configured_is_not_started() -> None:
    async with opened() as toolbox:
        lost = ToolSpec("gone", "x", "", {}, EffectKind.READ_ONLY, destructive=False)
        outcome = await toolbox.call(lost, {}, key="k", traceparent=None, timeout_s=None)
        assert outcome == NotStarted("tool server 'gone' is not configured")


async def test_a_server_that_somebody_waits_for_is_tried_at_once_and_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.toolbox._DELAY_S_MIN", 600.0)
    monkeypatch.setattr("runtime.toolbox._DELAY_S_MAX", 600.0)
    (port,) = free_ports(1)
    async with opened(Server("web", url=f"http://127.0.0.1:{port}/mcp")) as toolbox:
        async with fake_tools(port):
            assert not toolbox.status()[0].up
            toolbox.seek({"web": 60.0})
            await wait_until(lambda: toolbox.status()[0].up)
        assert isinstance(await call(toolbox, "add_note", text="t"), NotStarted)
        await wait_until(lambda: toolbox.status()[0].reason.startswith("http://"), what="it was tried in vain")
        async with fake_tools(port):
            await wait_until(lambda: toolbox.status()[0].up)


async def test_a_tool_too_large_for_a_model_to_read_is_not_offered(caplog: pytest.LogCaptureFixture) -> None:
    async def react(_request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        return reply(message, {"content": [{"type": "text", "text": "done"}], **WHOLE})

    sizes = {"huge": 300_000, "wordy": 10, "act": 200_000}
    async with scripted(react) as (server, url):
        server.tools = [
            {"name": name, "inputSchema": {"type": "object", "$comment": "x" * size}} for name, size in sizes.items()
        ]
        server.tools[1]["description"] = "word " * 60_000
        async with opened(Server("a", url=url)) as toolbox:
            assert [tool.name for tool in toolbox.tools()] == ["act"]
            assert await call(toolbox, "act") == Done("done", is_error=False)
    assert "event=tools-too-large server=a tools=huge,wordy" in caplog.text
