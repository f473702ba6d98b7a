"""What tools a run has does not change because a tool server is away for a while."""

from __future__ import annotations

import asyncio
import pathlib
import time
from typing import Any

import pytest

from loadgen.ports import free_ports
from protos import runtime_pb2 as pb
from runtime import reports
from runtime.run import Usage
from runtime.tool_config import Server
from runtime.tool_specs import EffectKind, NotStarted, Unknown
from tests.runtime.kills import client
from tests.runtime.rig import Rig, results, spec
from tests.runtime.service_process import running_runtime
from tests.runtime.tool_servers import fake_tools, opened
from tests.waiting import wait_until_sync

CALLS = 'CALL lookup {"query": "q0"}\nCALL lookup {"query": "q1"}\nCALL lookup {"query": "q2"}'


async def away(r: Rig, *, is_known: bool, wait_s: float = 60.0) -> None:
    r.tools.goes_away(is_known=is_known)
    r.tools_wait_s = wait_s
    await r.restart()


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_run_sleeps_until_its_tool_server_is_connected(r: Rig, is_known: bool) -> None:
    there = r.tools.specs
    await away(r, is_known=is_known)
    handle = await r.spawn(CALLS, tools=("lookup",))
    await r.rests(handle, "Sleeping")
    journal = r.journal(handle)
    assert reports.listing(journal.run, Usage(), time.time())["waitsFor"] == ["scripted"]
    assert reports.result(journal.run, Usage(), time.time())["waitsFor"] == ["scripted"]
    r.tools.comes_back(there)
    run = await r.settled(handle)
    assert (run.usage.tool_calls, run.usage.failed_tool_calls) == (3, 0)
    assert "waitsFor" not in reports.result(run, Usage(), time.time())
    assert run.missing_servers == ()


async def test_a_run_that_went_on_without_a_server_says_so_and_says_so_after_a_restart(r: Rig) -> None:
    await away(r, is_known=False, wait_s=0.1)
    handle = await r.spawn(CALLS)
    run = await r.settled(handle)
    assert (run.state, run.usage.tool_calls) == ("Completed", 0)
    await r.restart()
    assert reports.result(r.journal(handle).run, Usage(), time.time())["missingServers"] == ["scripted"]


async def test_tools_of_a_server_that_was_lost_stay_offered_and_their_calls_say_why_they_fail(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.executor.TOOL_PAUSE_S", 0.0)
    await away(r, is_known=True, wait_s=0.1)

    async def is_down(_arguments: dict[str, Any], _key: str) -> NotStarted:
        return NotStarted("tool server 'scripted' is down: away")

    r.tools.behaves["lookup"] = is_down
    run = await r.settled(await r.spawn('CALL lookup {"query": "q0"}'))
    assert results(run) == ["Error: tool server 'scripted' is down: away"]
    assert run.missing_servers == ()


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_call_whose_server_stays_away_tells_the_worst_of_its_tries(
    r: Rig, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    monkeypatch.setattr("runtime.executor.TOOL_PAUSE_S", 0.0)
    r.tools_wait_s = 60.0 if is_restarted else 0.5
    await r.restart()

    async def dies(_arguments: dict[str, Any], _key: str) -> NotStarted | Unknown:
        if r.tools.status()[0].up:
            r.tools.goes_away(is_known=True)
            return Unknown("connection lost")
        return NotStarted("it is down")

    r.tools.behaves["save"] = dies
    handle = await r.spawn("CALL save {}")
    await r.rests(handle, "Sleeping")
    if is_restarted:
        r.tools_wait_s = 0.1
        await r.restart()
    assert results(await r.settled(handle)) == ["Error: it is down; it is unknown whether this tool call took effect"]
    assert len(r.tools.effects) == 1


async def test_calls_that_a_restart_found_wait_for_their_server(r: Rig) -> None:
    there = r.tools.specs
    handle = await r.spawn("CALL delete {}")
    await r.until(handle, "AwaitingApproval")
    await away(r, is_known=False)
    await r.runtime.approve(handle, True)
    await r.until(handle, "Sleeping")
    r.tools.comes_back(there)
    assert results(await r.settled(handle)) == ["delete did something"]


async def test_a_run_that_sleeps_can_be_cancelled(r: Rig) -> None:
    await away(r, is_known=False)
    handle = await r.spawn(CALLS)
    await r.until(handle, "Sleeping")
    await r.runtime.cancel(handle)
    r.tools.comes_back([spec("lookup", EffectKind.READ_ONLY)])
    assert (await r.settled(handle)).state == "Cancelled"
    assert r.times("lookup") == 0


async def test_servers_of_other_tools_are_not_waited_for(r: Rig) -> None:
    await away(r, is_known=True)
    run = await r.settled(await r.spawn("x", max_tool_calls=0))
    assert (run.state, run.missing_servers) == ("Completed", ())


async def test_only_a_run_that_names_its_tools_waits_for_a_server_that_was_lost_long_ago(r: Rig) -> None:
    await away(r, is_known=True, wait_s=2.0)
    await asyncio.sleep(2.1)
    named = await r.spawn("x", tools=("lookup",))
    assert (await r.settled(await r.spawn("x"))).state == "Completed"
    await r.until(named, "Sleeping")
    assert (await r.settled(named)).state == "Completed"


async def test_a_tool_that_its_server_turns_out_not_to_have_fails_the_run(r: Rig) -> None:
    await away(r, is_known=False)
    handle = await r.spawn("x", tools=("lookop",))
    await r.until(handle, "Sleeping")
    r.tools.comes_back([spec("lookup", EffectKind.READ_ONLY)])
    run = await r.settled(handle)
    assert run.state == "Failed"
    assert run.end is not None
    assert run.end.text == "there is no tool 'lookop'; there are: lookup"


async def test_a_run_that_waits_has_its_server_tried_at_once(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.toolbox._DELAY_S_MIN", 600.0)
    monkeypatch.setattr("runtime.toolbox._DELAY_S_MAX", 600.0)
    (port,) = free_ports(1)
    async with opened(Server("web", url=f"http://127.0.0.1:{port}/mcp")) as toolbox:
        r.toolbox = toolbox
        await r.restart()
        handle = await r.spawn('CALL lookup {"query": "q"}')
        await r.until(handle, "Sleeping")
        async with fake_tools(port):
            run = await r.settled(handle)
            assert (run.usage.tool_calls, run.usage.failed_tool_calls) == (1, 0)
        await r.runtime.close()


def test_runs_keep_their_tools_when_runtime_and_tool_server_die_together(tmp_path: pathlib.Path) -> None:
    with running_runtime(tmp_path, {"LUFTPAUSE_TOOLS_LOOKUP_S": "0.3", "LUFTPAUSE_ENGINE_SPEED": "10"}) as runtime:
        named = pb.SpawnRequest(task=CALLS, tools=pb.ToolNames(names=["lookup"]))
        with client(runtime) as runs:
            handles = [runs.Spawn(request).handle for request in (pb.SpawnRequest(task=CALLS), named)]
            wait_until_sync(lambda: all(runs.Get(pb.GetRequest(handle=each)).run.own.turns for each in handles))
        assert runtime.tools is not None
        runtime.kill()
        runtime.tools.kill()
        runtime.start()
        with client(runtime) as runs:
            handles += [runs.Spawn(request).handle for request in (pb.SpawnRequest(task=CALLS), named)]

            def are_asleep() -> bool:
                told = runs.List(pb.ListRequest()).runs
                return {(each.state, tuple(each.waits_for)) for each in told} == {(pb.RUN_STATE_SLEEPING, ("fake",))}

            wait_until_sync(are_asleep)
            runtime.start_tools()
            ended = runs.Await(pb.AwaitRequest(handles=handles, timeout_s=90)).runs
    assert [(each.state, each.own.tool_calls, each.own.failed_tool_calls) for each in ended] == [
        (pb.RUN_STATE_COMPLETED, 3, 0)
    ] * 4
