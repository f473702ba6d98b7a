"""The fake tool server: its tools, its count of effects, its process."""

from __future__ import annotations

import asyncio
import json
import pathlib
import socket
import sys
from typing import Any, cast

import aiohttp
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import RequestParamsMeta, TextContent

from fakes.tool_effects import DELAY_S_MAX, Call, Effects, delay_s, found
from fakes.toolserver import ToolServerConfig, serve
from loadgen.ports import free_ports
from tests.stack import environment, started, wait_healthy


def call(tool: str, key: str = "k", **arguments: Any) -> Call:
    """A call as the server sees it."""
    return Call(tool, key, arguments, None, None)


def test_every_effect_is_counted_under_its_key() -> None:
    effects = Effects()
    for made in (
        call("add_note", "one", text="a"),
        call("add_note", "one", text="a"),
        call("set_note", "two", name="n", text="b"),
        call("delete_note", "three", name="note-1"),
        call("lookup", "four", query="x"),
    ):
        effects.do(made)
    assert effects.counts == {"one": 2, "two": 1, "three": 1}
    assert effects.notes == {"note-2": "a", "n": "b"}


def test_what_cannot_be_deleted_has_no_effect() -> None:
    effects = Effects()
    with pytest.raises(KeyError):
        effects.do(call("delete_note", name="none"))
    assert effects.counts == {}


def test_delays_are_seeded_and_deep_searches_are_slower() -> None:
    lookups = [delay_s(1, "lookup", f"{n}", "x") for n in range(500)]
    searches = [delay_s(1, "deep_search", f"{n}", "x") for n in range(500)]
    assert lookups == [delay_s(1, "lookup", f"{n}", "x") for n in range(500)]
    assert lookups != [delay_s(2, "lookup", f"{n}", "x") for n in range(500)]
    assert 0.9 < sorted(lookups)[250] < 1.1
    assert 3.6 < sorted(searches)[250] < 4.4
    assert max(searches) <= DELAY_S_MAX


def test_a_search_finds_the_same_again() -> None:
    assert found("lookup", "x") == found("lookup", "x")
    assert found("lookup", "x") != found("lookup", "y")
    assert len(found("deep_search", "x")) > 2 * len(found("lookup", "x"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "x"), ("PORT", "70000"), ("LOOKUP_S", "-1"), ("FAULT", "melt"), ("FAULT_AT", "0"), ("COLOUR", "red")],
)
def test_a_wrong_setting_is_told(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"LUFTPAUSE_TOOLS_{name}", value)
    with pytest.raises(SystemExit) as caught:
        ToolServerConfig.read()
    assert name.lower() in str(caught.value.code).lower()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_both_eras_are_served_and_effects_are_told(mode: str, tmp_path: pathlib.Path) -> None:
    (port,) = free_ports(1)
    origin = f"http://127.0.0.1:{port}"
    settings = {"LUFTPAUSE_TOOLS_PORT": str(port), "LUFTPAUSE_TOOLS_LOOKUP_S": "0"}
    with started("fakes.toolserver", settings, tmp_path / "log") as service:
        wait_healthy(service, (f"{origin}/health",))
        async with Client(f"{origin}/mcp", mode=mode) as client:
            listed = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
            assert sorted(listed) == ["add_note", "deep_search", "delete_note", "lookup", "set_note"]
            assert listed["add_note"] is None
            meta = cast(RequestParamsMeta, {"io.luftpause/idempotencyKey": "one"})
            result = await client.call_tool("add_note", {"text": "a"}, meta=meta)
            assert result.content == [TextContent(text="Added note-1.")]
            await client.call_tool("lookup", {"query": "x"})
        async with aiohttp.ClientSession() as http, http.get(f"{origin}/effects") as response:
            told = await response.json()
    assert told["effects"] == {"one": 1}
    assert told["calls_by_tool"] == {"add_note": 1, "lookup": 1}
    assert told["notes"] == {"note-1": "a"}
    assert service.text() == f"event=listening service=tools host=127.0.0.1 port={port}\n"


async def test_it_serves_over_standard_input_and_output(tmp_path: pathlib.Path) -> None:
    ledger = tmp_path / "ledger"
    env = environment({"LUFTPAUSE_TOOLS_LEDGER": str(ledger)})
    child = StdioServerParameters(command=sys.executable, args=["-m", "fakes.toolserver", "--stdio"], env=env)
    async with Client(child) as client:
        await client.call_tool("set_note", {"name": "n", "text": "a"})
    [line] = ledger.read_text().splitlines()
    assert json.loads(line)["tool"] == "set_note"


def test_a_taken_port_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("LUFTPAUSE_TOOLS_PORT", str(port))
        assert asyncio.run(serve(ToolServerConfig.read(), asyncio.Event())) == 1
    assert capfd.readouterr().err == f"LUFTPAUSE_TOOLS_PORT={port}: Address already in use\n"
