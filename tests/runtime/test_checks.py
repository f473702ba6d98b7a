"""Arguments are checked outside of the event loop, whatever the schema costs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import pytest
from aiohttp import web

from runtime.arguments import Bad, Good
from runtime.check_process import framed
from runtime.checks import Checks
from runtime.tool_config import Server
from runtime.tool_specs import Done, EffectKind, ToolSpec
from tests.runtime.rig import Rig, results
from tests.runtime.tool_servers import WHOLE, call, opened, reply, scripted
from tests.waiting import wait_until

T = TypeVar("T")

HELD_S_MAX = 1.0
"""Longest time that the event loop may be held up on a loaded machine; most of these checks take minutes or more."""
SLOW_PATTERN = {"properties": {"mail": {"type": "string", "pattern": r"^([a-zA-Z0-9]+)+@x\.com$"}}}
SLOW_MAIL = json.dumps({"mail": "a" * 40 + "!"})


def tool(schema: dict[str, Any], server: str = "strange") -> ToolSpec:
    return ToolSpec(server, "act", "", schema, EffectKind.READ_ONLY, destructive=False)


@pytest.fixture
async def checks() -> AsyncIterator[Checks]:
    made = Checks()
    yield made
    await made.close()


async def unheld(work: Awaitable[T]) -> T:
    """What `work` comes to; the event loop goes on meanwhile."""
    doing = asyncio.ensure_future(work)
    longest_s = 0.0
    while not doing.done():
        began = time.monotonic()
        await asyncio.wait([doing], timeout=0.01)
        longest_s = max(longest_s, time.monotonic() - began)
    assert longest_s < HELD_S_MAX
    return doing.result()


def _doubling(levels: int) -> dict[str, Any]:
    defs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{levels}": {"type": "object", "required": ["x"]}}}


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        (SLOW_PATTERN, SLOW_MAIL),
        ({"patternProperties": {r"^(a+)+$": {}}}, json.dumps({"a" * 40 + "!": 1})),
        ({"additionalProperties": False, "patternProperties": {r"^(a|a)+$": {}}}, json.dumps({"a" * 40 + "!": 1})),
        (
            {"properties": {"a": {"uniqueItems": True}}},
            json.dumps({"a": [{"n": n} if n % 2 else n for n in range(60_000)]}),
        ),
        (
            {"properties": {"a": {"items": {"anyOf": [{"required": [f"k{n}"]} for n in range(3000)]}}}},
            json.dumps({"a": [{}] * 20_000}),
        ),
        (
            {"properties": {"a": {"oneOf": [{"maxLength": 1}] * 3000}}, "required": ["b"]},
            json.dumps({"a": "x" * 1_000_000}),
        ),
        (_doubling(64), "{}"),
        ({"properties": {"a": {"pattern": "(" * 5000 + "a" + ")" * 5000}}}, '{"a": "a"}'),
    ],
    ids=["pattern", "patternProperties", "additionalProperties", "uniqueItems", "items", "quotes", "shape", "compile"],
)
async def test_no_schema_holds_the_event_loop(checks: Checks, schema: dict[str, Any], raw: str) -> None:
    prepared = await unheld(checks.prepare(tool(schema), raw))
    assert isinstance(prepared, Bad | Good)
    assert isinstance(prepared, Good) or prepared.text.startswith("Error: ")


async def test_what_cannot_be_checked_in_time_is_refused_and_the_next_is_checked(checks: Checks) -> None:
    prepared = await checks.prepare(tool(SLOW_PATTERN), SLOW_MAIL)
    assert isinstance(prepared, Bad)
    assert prepared.text.startswith("Error: the arguments of act could not be checked against its schema within 2 s ")
    assert await checks.prepare(tool(SLOW_PATTERN), '{"mail": "me@x.com"}') == Good({"mail": "me@x.com"})


async def test_nobody_waits_behind_a_server_that_was_slow(checks: Checks) -> None:
    await checks.prepare(tool(SLOW_PATTERN), SLOW_MAIL)
    slow = [asyncio.create_task(checks.prepare(tool(SLOW_PATTERN), SLOW_MAIL)) for _ in range(3)]
    await asyncio.sleep(0)
    for _ in range(3):
        assert await checks.prepare(tool({}, "plain"), "{}") == Good({})
    assert not slow[-1].done()
    for each in slow:
        each.cancel()
    await asyncio.wait(slow)


async def test_nobody_waits_behind_checks_that_waited_when_the_first_was_found_to_be_slow(checks: Checks) -> None:
    slow = [asyncio.create_task(checks.prepare(tool(SLOW_PATTERN), SLOW_MAIL)) for _ in range(5)]
    await asyncio.sleep(0)
    assert await checks.prepare(tool({}, "plain"), "{}") == Good({})
    assert sum(each.done() for each in slow) <= 1
    await checks.close()
    assert all(isinstance(each, Bad) for each in await asyncio.gather(*slow))
    assert all(checker._process is None for checker in checks._processes.values())


async def test_a_check_that_waits_too_long_is_told_so(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.checks.ANSWER_S_MAX", 1.0)
    slow = asyncio.create_task(checks.prepare(tool(SLOW_PATTERN), SLOW_MAIL))
    await asyncio.sleep(0)
    prepared = await checks.prepare(tool(SLOW_PATTERN), '{"mail": "me@x.com"}')
    assert isinstance(prepared, Bad)
    assert prepared.text.endswith("and the call was not made. It may be made again.")
    await slow


async def test_a_check_that_ends_its_process_is_not_made_twice(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = "import os, signal, time; os.close(1); time.sleep(0.3); os.kill(os.getpid(), signal.SIGPROF)"
    monkeypatch.setattr("runtime.checks._COMMAND", (sys.executable, "-c", dying))
    prepared = await checks.prepare(tool({}), "{}")
    assert isinstance(prepared, Bad)
    assert "could not be checked against its schema within 2 s" in prepared.text


async def test_a_question_that_nobody_waits_for_is_answered_to_nobody_else(checks: Checks) -> None:
    asking = asyncio.create_task(checks.prepare(tool({}), '{"a": 1}'))
    await asyncio.sleep(0.01)
    asking.cancel()
    assert await checks.prepare(tool({}), '{"b": 2}') == Good({"b": 2})


async def test_a_process_that_died_is_started_anew(checks: Checks) -> None:
    assert await checks.prepare(tool({}), "{}") == Good({})
    (checker,) = checks._processes.values()
    process = checker._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    assert await checks.prepare(tool({}), '{"a": 1}') == Good({"a": 1})


async def test_a_check_whose_process_something_else_ends_is_made_again(checks: Checks) -> None:
    asking = asyncio.create_task(checks.prepare(tool({}), '{"a": 1}'))
    started = await wait_until(lambda: [each._process for each in checks._processes.values() if each._process])
    os.kill(started[0].pid, signal.SIGKILL)  # it is still starting
    assert await asking == Good({"a": 1})


async def test_what_the_model_reads_when_the_process_is_ended_again_is_true(checks: Checks) -> None:
    def running() -> list[Process]:
        found = (checker._process for checker in checks._processes.values())
        return [process for process in found if process is not None and process.pid not in ended]

    ended: set[int] = set()
    asking = asyncio.create_task(checks.prepare(tool({}), '{"a": 1}'))
    for _ in range(2):
        (process,) = await wait_until(running)
        os.kill(process.pid, signal.SIGKILL)
        ended.add(process.pid)
    prepared = await asking
    assert isinstance(prepared, Bad)
    assert prepared.text.endswith("has ended or does not answer, and the call was not made. It may be made again.")


async def test_nobody_waits_behind_a_server_whose_checks_take_long(checks: Checks) -> None:
    slow = tool(SLOW_PATTERN)
    for length in range(18, 40):
        await checks.prepare(slow, json.dumps({"mail": "a" * length + "!"}))
        if checks._slow:
            break
    assert checks._slow == {"strange"}
    asking = asyncio.create_task(checks.prepare(slow, SLOW_MAIL))
    await asyncio.sleep(0)
    assert await checks.prepare(tool({}, "plain"), "{}") == Good({})
    assert not asking.done()
    asking.cancel()


async def test_a_question_that_is_open_at_the_end_gets_no_answer_and_no_new_process(checks: Checks) -> None:
    asking = asyncio.create_task(checks.prepare(tool(SLOW_PATTERN), SLOW_MAIL))
    await asyncio.sleep(0.2)
    await checks.close()
    assert isinstance(await asking, Bad)
    assert all(checker._process is None for checker in checks._processes.values())


async def test_what_json_can_say_comes_through(checks: Checks) -> None:
    made = {"big": 2**80, "half": "\ud83d", "text": "…\0", "n": 1.5}
    assert await checks.prepare(tool({}), json.dumps(made)) == Good(made | {"half": "?"})


async def test_a_run_goes_on_after_a_call_that_could_not_be_checked(r: Rig) -> None:
    r.tools.specs.append(tool(SLOW_PATTERN))
    handle = await r.spawn(f"CALL act {SLOW_MAIL}\nCALL lookup {{}}\nthen answer")
    run = await unheld(r.settled(handle, 30.0))
    assert run.state == "Completed"
    refused, looked_up = results(run)
    assert "could not be checked" in refused
    assert looked_up.startswith("lookup did")
    assert (r.times("act"), r.times("lookup")) == (0, 1)


@pytest.mark.parametrize("stateless", [False, True])
async def test_what_a_tool_returns_is_not_judged_by_its_own_schema(stateless: bool) -> None:
    async def react(_request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        result = {"content": [{"type": "text", "text": "done"}], "structuredContent": json.loads(SLOW_MAIL), **WHOLE}
        return reply(message, result)

    async with scripted(react, stateless=stateless) as (server, url):
        server.tools = [{"name": "act", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}}]
        server.tools[0]["outputSchema"] |= SLOW_PATTERN
        async with opened(Server("a", url=url)) as toolbox:
            assert await unheld(call(toolbox, "act")) == Done("done", is_error=False)


def test_a_check_whose_runtime_was_killed_ends_without_a_word() -> None:
    command = [sys.executable, "-m", "runtime.check_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(framed({"tool": "t", "schema": {}, "raw": "{}"}))
        process.stdin.close()
        assert process.stderr.read() == b""
