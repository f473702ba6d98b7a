"""Faults that others had in public, one test each, with real processes. Those of the dataplane alone are in
tests/dataplane/test_public_faults.py; abort counters that leak, in test_aborts.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from loadgen.chaos_link import HOST
from loadgen.chaos_rig import Rig
from tests.e2e.clients import Client, calling, chat, home_of, named, phases, wait_healthy
from tests.servers import raw_server
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

ENGINES = ("engine-0", "engine-1")
MOVED_WITHIN_S = 10.0
"""A dead engine is found by the next probe, which comes each 2 s."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    services = (*ENGINES, "scheduler", "dataplane-0")
    async with Rig(tmp_path_factory.mktemp("faults"), services, max_in_flight=3) as running:
        await wait_healthy(running, *ENGINES)
        yield running
    assert running.bad_ends == []
    assert all("Traceback" not in process.text() for process in running.processes.values())


@pytest_asyncio.fixture(loop_scope="module")
async def client(rig: Rig) -> AsyncIterator[Client]:
    """Afterwards no run is left."""
    async with Client(rig) as made:
        yield made
        for run in ("agent-1", "agent-10", "paused"):
            for caller in ("me", "you"):
                with contextlib.suppress(AssertionError):  # not this caller's
                    await made.end_run(run, caller)
        await counted(rig)


async def pause(rig: Rig, client: Client, run: str) -> str:
    """A run that waits for its tool, and its home."""
    home = await home_of(rig, client, run)
    assert (await client.ask(calling(), named(run))).status == 200
    await counted(rig, paused=1)
    return home


async def counted(rig: Rig, **expected: int) -> None:
    """Waits until the scheduler knows exactly these runs, by phase."""

    async def known() -> bool:
        return {phase: runs for phase, runs in (await phases(rig)).items() if runs} == expected

    await wait_until(known, what=f"the runs are {expected}")


async def test_session_ids_that_begin_alike_are_different_runs(rig: Rig, client: Client) -> None:
    """vllm-router 219 took one for the other."""
    for run, caller in (("agent-1", "me"), ("agent-10", "you")):
        answer = await client.ask(calling(), named(run, caller))
        assert (answer.status, answer.headers["x-luftpause-run-id"]) == (200, run)
    await counted(rig, paused=2)
    await client.end_run("agent-1", "me")
    await counted(rig, paused=1)
    assert (await client.ask(chat(), named("agent-10", "you"))).status == 200
    assert (await client.ask(chat(), named("agent-10", "me"))).status == 409


async def test_affinity_does_not_block_failover(rig: Rig, client: Client) -> None:
    home = await pause(rig, client, "paused")
    rig.kill(home)
    died_at = time.monotonic()
    answer = await client.ask(chat(), named("paused"))
    while answer.status != 200:  # until its probe fails, the engine is asked
        assert answer.status == 502
        assert time.monotonic() - died_at < MOVED_WITHIN_S
        answer = await client.ask(chat(), named("paused"))
    await rig.restart(home)
    await wait_healthy(rig, *ENGINES)
    assert await home_of(rig, client, "paused") != home, "its prefix is at the other one now"


async def test_a_run_is_not_pinned_to_a_replica_that_was_replaced(rig: Rig, client: Client) -> None:
    """Dynamo 12783 went on asking for the worker that was no longer there."""
    home = await pause(rig, client, "paused")
    pool = rig.folder / "pool.toml"
    before = pool.read_text()
    rig.kill("scheduler")
    pool.write_text(before.replace(f'"{home}"', '"new"'))
    await rig.restart("scheduler")
    other = next(engine for engine in ENGINES if engine != home)
    await wait_healthy(rig, "new", other)
    async with asyncio.timeout(MOVED_WITHIN_S):
        answer = await client.ask(chat(), named("paused"))
    assert answer.status == 200
    rig.kill("scheduler")
    pool.write_text(before)
    await rig.restart("scheduler")
    await wait_healthy(rig, *ENGINES)


async def test_behind_two_proxies_that_drop_our_headers_a_run_is_still_one(rig: Rig, client: Client) -> None:
    async with dropping(rig.ports.dataplanes[0]) as inner, dropping(inner) as outer:
        first = await ask(outer, calling(), named("paused"))
        assert first.headers.get("x-luftpause-run-id") is None
        [call] = json.loads(first.body)["choices"][0]["message"]["tool_calls"]
        await counted(rig, paused=1)
        messages = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "found"},
        ]
        second = await ask(outer, {**chat(), "messages": messages}, named("paused"))
        assert second.status == 200
    await counted(rig, idle=1)  # its tool call ids told which run it is
    answer = await client.ask({**chat(), "messages": messages}, {})
    await client.end_run(answer.headers["x-luftpause-run-id"], "")


class Got:
    """An answer behind proxies."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


async def ask(port: int, body: dict[str, Any], headers: dict[str, str]) -> Got:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{HOST}:{port}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        return Got(answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read())


@contextlib.asynccontextmanager
async def dropping(port: int) -> AsyncIterator[int]:
    """The port of a proxy in front of `port` that passes on no header which it does not know, in either direction."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            kept = [line for line in lines if not line.lower().startswith(b"x-luftpause-")]
            writer.write(b"\r\n".join(kept))
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(HOST, port)
        with contextlib.closing(upstream_writer):
            await asyncio.gather(pass_on(reader, upstream_writer), pass_on(upstream_reader, writer))

    async with raw_server(serve) as in_front:
        yield in_front
