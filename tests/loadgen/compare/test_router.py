"""The plain router: fewest open requests, bytes as they come, and nothing goes on for clients that left."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import aiohttp

from loadgen.ports import free_ports
from tests.loadgen.scripted_engine import ScriptedEngine
from tests.stack import ROOT, environment
from tests.waiting import wait_until

BODY = {"model": "m", "messages": [], "stream": True}
HEADERS = {"x-luftpause-run-id": "r"}


@contextlib.asynccontextmanager
async def running(policy: str, *engines: ScriptedEngine) -> AsyncIterator[str]:
    [port] = free_ports(1)
    urls = [engine.url.removesuffix("/v1") for engine in engines]
    arguments = ("--policy", policy, "--port", str(port), *urls)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen.compare.router", *arguments, cwd=ROOT, env=environment({})
    )
    try:
        await wait_until(lambda: listens(port))
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0


async def listens(port: int) -> bool:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()
    return True


async def test_a_turn_goes_where_the_fewest_are_open() -> None:
    async with (
        ScriptedEngine(script=["stall"]).running() as slow,
        ScriptedEngine().running() as quick,
        running("least-connections", slow, quick) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/chat/completions", json=BODY, headers=HEADERS) as stalled,
    ):
        assert stalled.status == 200
        assert len(slow.bodies) == 1
        for _ in range(3):
            async with session.post(f"{url}/chat/completions", json=BODY, headers=HEADERS) as answer:
                assert b"[DONE]" in await answer.read()
        assert len(quick.bodies) == 3
        assert quick.headers[0]["x-luftpause-run-id"] == "r"
        stalled.close()
        await wait_until(lambda: slow.connections_lost == 1)


async def test_engines_take_turns() -> None:
    async with (
        ScriptedEngine().running() as one,
        ScriptedEngine().running() as other,
        running("round-robin", one, other) as url,
        aiohttp.ClientSession() as session,
    ):
        for _ in range(4):
            async with session.post(f"{url}/chat/completions", json=BODY, headers=HEADERS) as answer:
                await answer.read()
        assert (len(one.bodies), len(other.bodies)) == (2, 2)


async def test_an_engine_that_is_gone_is_a_502() -> None:
    async with ScriptedEngine().running() as engine:
        url_of_none = engine.url
    gone = ScriptedEngine(url=url_of_none)
    async with (
        running("round-robin", gone) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/chat/completions", json=BODY, headers=HEADERS) as answer,
    ):
        assert answer.status == 502
