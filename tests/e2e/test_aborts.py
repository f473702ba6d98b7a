"""A client that leaves at any instant of its turn: within a second nothing of the turn is left, anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from loadgen.chaos_link import HOST
from loadgen.chaos_rig import Rig
from tests.e2e.clients import Client, chat, gauge, in_flight, is_once, is_quiet, named, phases, wait_healthy
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

INSTANTS = 100
TURN_S = 0.25
"""How long a turn takes here, about; instants are drawn from somewhat more."""
GONE_WITHIN_S = 1.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    services = ("engine-0", "engine-1", "scheduler", "dataplane-0")
    async with Rig(tmp_path_factory.mktemp("aborts"), services, max_in_flight=1) as running:
        await wait_healthy(running, "engine-0", "engine-1")
        yield running
    assert running.bad_ends == []


async def leave_after(rig: Rig, seconds: float | None, cut: float, run: str, stream: bool) -> bytes:
    """One turn on a raw connection, whose request is sent in two parts at `cut` of it, left `seconds` after its begin
    (None: not before its end) by a reset or an orderly close; what was received."""
    body = json.dumps(chat("x" * 2000, stream=stream, max_tokens=64, ignore_eos=True)).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in named(run).items())
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body
    )
    received = bytearray()
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(HOST, rig.ports.dataplanes[0])
            at = int(len(request) * cut)
            writer.write(request[:at])
            await asyncio.sleep(0.02)  # part of the turn that is aborted
            writer.write(request[at:])
            while not received.endswith((b"0\r\n\r\n", b"}")) and (data := await reader.read(65536)):
                received += data
    except TimeoutError:
        pass
    finally:
        if writer is not None:
            if cut < 0.5:
                writer.transport.abort()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    return bytes(received)


async def test_abort_counters_do_not_leak_at_any_instant(rig: Rig) -> None:
    """Those of vllm-router 215 did, and its workers seemed to be busy for ever."""
    chance = random.Random(20)
    seen = {"whole": 0, "begun": 0, "nothing": 0}
    tasks_before = await gauge(rig, "tasks")
    async with Client(rig) as client:
        for number in range(INSTANTS):
            others = await _take_both(rig, number, chance) if number % 2 else []
            instant_s = chance.uniform(0.0, 2 * TURN_S)
            received = await leave_after(rig, instant_s, chance.random(), f"run-{number}", chance.random() < 0.5)
            await asyncio.gather(*others)
            left_at = time.monotonic()
            await wait_until(lambda: is_quiet(rig), what=f"nothing is left of turn {number}, left after {instant_s}")
            assert time.monotonic() - left_at < GONE_WITHIN_S, f"turn {number}, left after {instant_s}"
            kind = "whole" if received.endswith((b"0\r\n\r\n", b"}")) else "begun" if received else "nothing"
            seen[kind] += 1
            for run in (f"run-{number}", f"other-{number}-0", f"other-{number}-1"):
                await client.end_run(run)
        assert min(seen.values()) >= INSTANTS / 20, f"the instants were not spread over the turn: {seen}"
        assert is_once(rig)
        await wait_until(lambda: _forgotten(rig))
        await wait_until(lambda: _no_task_more(rig, tasks_before), what="no task is left of any turn")
        assert (await client.ask(chat(), named("after"))).status == 200


async def _take_both(rig: Rig, number: int, chance: random.Random) -> list[asyncio.Task[bytes]]:
    """Turns that have both replicas, so that the next one is held, and placed when they leave."""
    others = [
        asyncio.create_task(leave_after(rig, chance.uniform(0.02, TURN_S), 0.5, f"other-{number}-{n}", True))
        for n in range(2)
    ]

    async def taken() -> bool:
        return sum((await in_flight(rig)).values()) == 2 or all(other.done() for other in others)

    await wait_until(taken)
    return others


async def _forgotten(rig: Rig) -> bool:
    return not any((await phases(rig)).values())


async def _no_task_more(rig: Rig, before: int) -> bool:
    return await gauge(rig, "tasks") <= before
