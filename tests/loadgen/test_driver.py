"""The closed loop, against a scripted engine on a real socket."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from loadgen.driver import Load, LoadError, Target, first_model, retry_after_s
from loadgen.ports import free_ports
from loadgen.workload import Group, Workload
from tests.loadgen.scripted_engine import ScriptedEngine
from tests.waiting import wait_until

QUICK = Workload(turns=2, context_chars=100, growth_chars=10, tool_s_min=0.0, tool_s_max=0.01)


def group(agents: int = 1, workload: Workload = QUICK) -> Group:
    return Group(agents, "batch", "me", workload)


async def test_agents_do_whole_runs_one_after_another_and_count_them() -> None:
    async with ScriptedEngine().running() as engine:
        async with Load(Target(engine.url, "first"), [group(3)], 1) as load:
            await wait_until(lambda: load.tallies[0].runs >= 9)
        tally = load.tallies[0]
        assert not tally.errors
        assert tally.turns >= 2 * tally.runs
        assert tally.cached_tokens == 0.75 * tally.prompt_tokens
        assert tally.completion_tokens == 4 * tally.turns
        assert max(engine.turns_by_run().values()) == 2
        headers = engine.headers[0]
        assert (headers["x-luftpause-class"], headers["x-luftpause-caller"]) == ("batch", "me")
        assert "accept-encoding" not in headers


async def test_every_run_is_ended_once_also_those_under_way_at_the_end() -> None:
    async with ScriptedEngine().running() as engine:
        async with Load(Target(engine.url, "first"), [group(2)], 1) as load:
            await wait_until(lambda: load.tallies[0].runs >= 4)
        assert engine.turns_by_run().keys() <= set(engine.ended_runs)
        assert len(engine.ended_runs) == len(set(engine.ended_runs))


async def test_without_headers_and_ends_nothing_of_ours_is_sent() -> None:
    async with ScriptedEngine().running() as engine:
        target = Target(engine.url, "first", send_headers=False, end_runs=False)
        async with Load(target, [group()], 1) as load:
            await wait_until(lambda: load.tallies[0].runs >= 2)
        assert not any(name.startswith("x-luftpause") for headers in engine.headers for name in headers)
        assert not engine.ended_runs


async def test_429_and_503_are_retried_and_are_no_errors() -> None:
    async with ScriptedEngine(script=["429", "503", "ok", "429"]).running() as engine:
        async with Load(Target(engine.url, "first"), [group()], 1) as load:
            await wait_until(lambda: load.tallies[0].runs >= 1)
        assert load.tallies[0].retries == {"429": 2, "503": 1}
        assert not load.tallies[0].errors
        assert engine.bodies[0] == engine.bodies[1] == engine.bodies[2]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("404", "status 404"),
        ("502", "status 502"),
        ("break", "broken off"),
        ("cut", "broken off"),
        ("error", "error in stream"),
    ],
)
async def test_a_failed_turn_is_counted_by_kind_and_the_agent_goes_on(fault: str, kind: str) -> None:
    async with ScriptedEngine(script=[fault]).running() as engine:
        async with Load(Target(engine.url, "first"), [group()], 1) as load:
            await wait_until(lambda: load.tallies[0].runs >= 1)
        assert load.tallies[0].errors == {kind: 1}
        assert load.tallies[0].messages == ({kind: f"no luck with {fault}"} if fault.isdecimal() else {})
        assert load.tallies[0].runs_failed == 1


async def test_an_engine_that_stalls_is_given_up_at_the_time_limit() -> None:
    async with ScriptedEngine(script=["stall"]).running() as engine:
        async with Load(Target(engine.url, "first", turn_timeout_s=0.3), [group()], 1) as load:
            await wait_until(lambda: load.tallies[0].runs >= 1)
        assert load.tallies[0].errors == {"timeout": 1}


async def test_nobody_there_is_counted_as_no_connection() -> None:
    [port] = free_ports(1)
    async with Load(Target(f"http://127.0.0.1:{port}/v1", "m"), [group()], 1) as load:
        await wait_until(lambda: load.tallies[0].errors)
    assert load.tallies[0].errors == {"no connection": 1}


async def test_turns_in_flight_at_the_end_are_cancelled_and_no_errors() -> None:
    async with ScriptedEngine(tokens=1000, pause_s=0.01).running() as engine:
        async with Load(Target(engine.url, "first"), [group(5)], 1) as load:
            await wait_until(lambda: len(engine.bodies) == 5)
            begun_s = time.monotonic()
        assert time.monotonic() - begun_s < 2
        assert load.tallies[0].turns == 0
        assert not load.tallies[0].errors
        await wait_until(lambda: engine.connections_lost == 5)


async def test_groups_run_side_by_side_and_are_counted_apart() -> None:
    async with ScriptedEngine().running() as engine:
        groups = [group(2), Group(1, "interactive", "you", QUICK)]
        async with Load(Target(engine.url, "first"), groups, 1) as load:
            await wait_until(lambda: all(tally.runs >= 2 for tally in load.tallies))
        seen = {(headers["x-luftpause-class"], headers["x-luftpause-caller"]) for headers in engine.headers}
        assert seen == {("batch", "me"), ("interactive", "you")}


async def test_the_warm_up_is_forgotten() -> None:
    async with ScriptedEngine().running() as engine, Load(Target(engine.url, "first"), [group()], 1) as load:
        await wait_until(lambda: load.tallies[0].runs >= 2)
        load.forget_warmup()
        assert load.tallies[0].turns == 0
        await wait_until(lambda: load.tallies[0].runs >= 1)


async def test_tool_calls_of_the_api_are_answered_by_their_ids() -> None:
    workload = Workload(turns=2, context_chars=100, tool_s_min=0.0, tool_s_max=0.01, tools="api")
    async with ScriptedEngine(calls_tools=True).running() as engine:
        async with Load(Target(engine.url, "first"), [group(workload=workload)], 1) as load:
            await wait_until(lambda: load.tallies[0].runs >= 1)
        assert not load.tallies[0].errors
        last = engine.bodies[1]["messages"]
        assert last[-2]["tool_calls"][0]["function"] == {"name": "lookup", "arguments": "{}"}
        assert last[-1]["tool_call_id"] == last[-2]["tool_calls"][0]["id"] == "call-1"


async def test_the_first_listed_model_is_the_default() -> None:
    async with ScriptedEngine().running() as engine:
        assert await first_model(engine.url, None) == "first"
        with pytest.raises(LoadError, match="status 404"):
            await first_model(f"{engine.url}/nowhere", None)


async def test_a_target_that_does_not_answer_is_told_in_one_line() -> None:
    [port] = free_ports(1)
    with pytest.raises(LoadError, match=f"http://127.0.0.1:{port}/v1/models: ") as told:
        await first_model(f"http://127.0.0.1:{port}/v1", None)
    assert "\n" not in str(told.value)


def test_retry_after_is_read_as_seconds_or_a_date_and_is_bounded() -> None:
    assert retry_after_s("2.5") == 2.5
    assert retry_after_s("100000") == 60
    assert retry_after_s("-3") == 0
    assert retry_after_s(None) == retry_after_s("soon") == retry_after_s("nan") == 1
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    assert 17 <= retry_after_s(soon) <= 20
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0


async def test_a_broken_agent_is_not_silent() -> None:
    load = Load(Target("http://127.0.0.1:9/v1", "m"), [], 1)

    async def broken() -> None:
        raise RuntimeError("a fault of the load itself")

    async with load:
        load._tasks.append(asyncio.create_task(broken()))
        await wait_until(load._tasks[0].done)
        with pytest.raises(RuntimeError, match="load itself"):
            load.raise_if_broken()
