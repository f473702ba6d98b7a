"""Every row of the table of failures, with real processes. After each: no slot is taken, the run is idle, and a retry
goes to the engine that has its prefix."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from loadgen.chaos_link import HOST
from loadgen.chaos_rig import Rig
from tests.e2e.clients import (
    SLOW,
    Client,
    chat,
    gauge,
    held,
    home_of,
    in_flight,
    is_once,
    is_quiet,
    named,
    open_requests,
    phases,
    script,
    wait_healthy,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

ENGINES = ("engine-0", "engine-1")
STALL = {"fault": "stall", "seconds": 60, "match": SLOW}
Failing = Callable[[], Awaitable[None]]


class Case:
    """One run, whose home is known, in a stack whose replicas take one turn each."""

    def __init__(self, rig: Rig, client: Client, run: str, home: str) -> None:
        self.rig, self.client, self.run, self.home = rig, client, run, home
        self.headers = named(run)

    async def settled(self, *, elsewhere: bool = False) -> None:
        """What must hold after every failure; `elsewhere`: the home wants to be left alone."""
        await wait_until(lambda: is_quiet(self.rig), what="no slot is taken")
        # Ends of other runs, which travel with what comes next, may just be on their way.
        await wait_until(self._is_idle, what="its run alone is known, and idle")
        goes_to = await home_of(self.rig, self.client, self.run)
        assert (goes_to != self.home) == elsewhere, f"the retry of a turn at {self.home} went to {goes_to}"
        assert is_once(self.rig)

    async def _is_idle(self) -> bool:
        return await phases(self.rig) == {"generating": 0, "paused": 0, "idle": 1}

    async def fill(self, other: Client) -> list[asyncio.Task[Any]]:
        """Takes every slot, for as long as the tasks live."""
        for engine in ENGINES:
            await script(self.rig, engine, STALL)
        tasks = [asyncio.create_task(other.ask(chat(SLOW), named(f"slow-{number}"))) for number in range(2)]
        await wait_until(lambda: _all_taken(self.rig))
        return tasks


async def _all_taken(rig: Rig) -> bool:
    return set((await in_flight(rig)).values()) == {1}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder: pathlib.Path = tmp_path_factory.mktemp("table")
    services = (*ENGINES, "scheduler", "dataplane-0")
    async with Rig(folder, services, max_in_flight=1) as running:
        await wait_healthy(running, *ENGINES)
        yield running
    assert running.bad_ends == []
    assert all("Traceback" not in process.text() for process in running.processes.values())


@pytest_asyncio.fixture(loop_scope="module")
async def case(rig: Rig, request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    """A run at home on the last engine; afterwards nothing is left of it. Who knows nothing would choose the first."""
    run = f"run-{abs(hash(request.node.name))}"
    async with Client(rig) as client:
        home = await home_of(rig, client, run)
        if home != ENGINES[-1]:
            await client.end_run(run)
            home = await home_of(rig, client, run)  # the engine that got nothing for longest
        assert home == ENGINES[-1]
        yield Case(rig, client, run, home)
        for engine in ENGINES:
            await script(rig, engine)
        await client.end_run(run)
        for number in range(2):
            await client.end_run(f"slow-{number}")
    await wait_until(lambda: _forgotten(rig))


async def _forgotten(rig: Rig) -> bool:
    return not any((await phases(rig)).values()) and await is_quiet(rig)


async def test_a_client_that_leaves_while_held_asks_no_engine(case: Case) -> None:
    rig = case.rig
    async with Client(rig) as other:
        slow = await case.fill(other)
        came = rig.links[">engine-0"].request_ids.total() + rig.links[">engine-1"].request_ids.total()
        waiting = asyncio.create_task(case.client.ask(chat(), case.headers))
        await wait_until(lambda: held(rig))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await wait_until(lambda: _none_held(rig))
        assert came == rig.links[">engine-0"].request_ids.total() + rig.links[">engine-1"].request_ids.total()
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
    await wait_until(lambda: is_quiet(rig))
    for number in range(2):
        await case.client.end_run(f"slow-{number}")
    await case.settled()


async def _none_held(rig: Rig) -> bool:
    return await held(rig) == 0 and await gauge(rig, "turns_held") == 0


async def test_a_client_that_leaves_while_streaming_stops_its_engine(case: Case) -> None:
    await script(case.rig, case.home, {"fault": "stall", "seconds": 60, "after_tokens": 3})
    async with case.client.stream(chat(), case.headers) as answer:
        assert answer.status == 200
        await answer.content.readline()
        assert await open_requests(case.rig, case.home) == 1
        answer.close()
    left_at = time.monotonic()
    await wait_until(lambda: _stopped(case.rig, case.home))
    assert time.monotonic() - left_at < 1
    await script(case.rig, case.home)
    await case.settled()


async def _stopped(rig: Rig, engine: str) -> bool:
    return await open_requests(rig, engine) == 0


async def test_an_engine_that_refuses_connections_is_a_502_at_once(case: Case) -> None:
    link = case.rig.links[f">{case.home}"]
    link.refuse()
    link.reset()
    began_at = time.monotonic()
    answer = await case.client.ask(chat(), case.headers)
    took_s = time.monotonic() - began_at
    await link.start()
    assert (answer.status, answer.error) == (502, f"engine {case.home}: connection refused")
    assert took_s < 1
    assert answer.headers["x-luftpause-run-id"] == case.run
    await wait_healthy(case.rig, *ENGINES)
    await case.settled()


async def test_an_engine_that_lets_nobody_connect_is_a_502_after_two_seconds(case: Case) -> None:
    link = case.rig.links[f">{case.home}"]
    link.refuse()
    link.reset()
    with socket.socket() as full:
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind((HOST, link.port))
        full.listen(0)
        # A queue of waiting connections that is full drops further ones, as a host that does not answer would.
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex((HOST, link.port))
        began_at = time.monotonic()
        answer = await case.client.ask(chat(), case.headers)
        took_s = time.monotonic() - began_at
        for each in waiting:
            each.close()
    await link.start()
    assert (answer.status, answer.error) == (502, f"engine {case.home}: no connection within 2 s")
    assert 1.8 < took_s < 4
    await wait_healthy(case.rig, *ENGINES)
    await case.settled()


async def test_an_engine_that_is_killed_in_mid_stream_breaks_it_off(case: Case) -> None:
    await script(case.rig, case.home, {"fault": "stall", "seconds": 60, "after_tokens": 3})
    async with case.client.stream(chat(), case.headers) as answer:
        assert answer.status == 200
        received = await answer.content.readline()
        case.rig.kill(case.home)
        with contextlib.suppress(aiohttp.ClientPayloadError):
            async for part in answer.content.iter_any():
                received += part
    assert received.startswith(b"data: {")
    assert b"[DONE]" not in received
    await case.rig.restart(case.home)
    await wait_healthy(case.rig, *ENGINES)
    await case.settled()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
async def test_an_engine_that_closes_in_mid_reply_breaks_it_off(case: Case, stream: bool, reset: bool) -> None:
    await script(case.rig, case.home, {"fault": "die", "after_tokens": 3, "reset": reset})
    answer = await case.client.ask(chat(stream=stream), case.headers)
    assert (answer.status, answer.whole) == ((200, False) if stream else (502, True))
    await script(case.rig, case.home)
    await case.settled()


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_what_an_engine_refuses_with_is_passed_on_as_it_is(case: Case, code: int) -> None:
    body = {"error": {"message": "slow down", "code": "busy"}}
    await script(case.rig, case.home, {"fault": "status", "code": code, "retry_after": 2, "body": body})
    answer = await case.client.ask(chat(), case.headers)
    assert (answer.status, json.loads(answer.body), answer.headers["retry-after"]) == (code, body, "2")
    await script(case.rig, case.home)
    await case.settled(elsewhere=code == 429)
    await wait_until(lambda: _is_asked_again(case), what="the engine is asked again")


async def _is_asked_again(case: Case) -> bool:
    """Whether a run without a home goes to the engine of the case."""
    went_to = await home_of(case.rig, case.client, "slow-0")
    await case.client.end_run("slow-0")
    return went_to == case.home


async def test_an_unknown_model_is_a_404_and_nothing_is_recorded(case: Case) -> None:
    await wait_until(lambda: is_quiet(case.rig))
    before = await phases(case.rig)
    answer = await case.client.ask({**chat(), "model": "nope"}, named("of-nobody"))
    assert (answer.status, answer.error) == (404, "no generative replica serves model 'nope'")
    assert await phases(case.rig) == before
    await case.settled()


async def test_a_turn_waits_while_the_scheduler_is_gone(case: Case) -> None:
    case.rig.kill("scheduler")
    waiting = asyncio.create_task(case.client.ask(chat(), case.headers))
    await wait_until(lambda: _held_by_dataplane(case.rig))
    await case.rig.restart("scheduler")
    assert (await waiting).status == 200
    await wait_healthy(case.rig, *ENGINES)
    await case.settled()


async def _held_by_dataplane(rig: Rig) -> bool:
    return await gauge(rig, "turns_held") == 1


async def test_a_stream_goes_on_while_the_scheduler_is_gone(case: Case) -> None:
    await script(case.rig, case.home, {"fault": "stall", "seconds": 1, "after_tokens": 3})
    async with case.client.stream(chat(), case.headers) as answer:
        received = await answer.content.readline()
        case.rig.kill("scheduler")
        received += await answer.read()
    assert received.endswith(b"data: [DONE]\n\n")
    await script(case.rig, case.home)
    await case.rig.restart("scheduler")
    await wait_healthy(case.rig, *ENGINES)
    await case.settled()
