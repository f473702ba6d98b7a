"""Streams in mid-pump: ordinary chunks on their short way, and everything that takes them off it."""

from __future__ import annotations

import asyncio
import random

import pytest

from dataplane import proxy, pump
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, Response, request
from tests.dataplane.scripted_engine import DONE, LAST_CHUNK, STREAM, USAGE_CHUNK, Call, chunk, delta, event
from tests.dataplane.test_relay import wait_until_still

STREAMED = {**CHAT, "stream": True}


def text(content: str) -> bytes:
    """An ordinary chunk, framed."""
    return chunk(event(delta(content=content)))


ORDINARY = [text(f"t{number}") for number in range(40)]
END = [chunk(event(delta(finish_reason="stop"))), chunk(event(USAGE_CHUNK)), chunk(DONE), LAST_CHUNK]
BODY = b"".join(event(delta(content=f"t{number}")) for number in range(40)) + event(delta(finish_reason="stop")) + DONE


@pytest.fixture(params=["pump", "transports"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How engines are read: by the pump, and as on systems that have no epoll."""
    if request.param == "transports":
        monkeypatch.setattr(proxy, "make_pump", lambda: None)
    elif pump.make_pump() is None:
        pytest.skip("no epoll here")


async def read(rig: Rig) -> Response:
    return await rig.ask(request(STREAMED))


@pytest.mark.parametrize("seed", range(6))
async def test_a_stream_cut_anywhere_arrives_unchanged(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    data = b"".join(ORDINARY + END)
    places = sorted(chance.sample(range(1, len(data)), seed * 20 + 1)) if seed else []
    parts = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    if not seed:
        parts = [*ORDINARY, *END]

    async def in_parts(call: Call) -> None:
        await call.send(STREAM)
        for part in parts:
            await call.send(part)
            await asyncio.sleep(0)

    rig.engine.script = in_parts
    await rig.start()
    response = await read(rig)
    assert (response.body, response.whole) == (BODY, True)
    await rig.reported("STARTED", "FIRST_TOKEN", "ENDED")


async def test_what_comes_between_ordinary_chunks_is_read(rig: Rig) -> None:
    call_delta = delta(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}])
    between = [text('a "quoted" one'), text("long" * 3000), chunk(event(call_delta)), chunk(b": a comment\n\n")]

    async def mixed(call: Call) -> None:
        for part in [STREAM, *ORDINARY[:5], *between, *ORDINARY[5:], *END]:
            await call.send(part)
            await asyncio.sleep(0.001)  # each in a packet of its own

    rig.engine.script = mixed
    await rig.start()
    response = await read(rig)
    assert event(call_delta) in response.body
    assert event(delta(content='a "quoted" one')) + event(delta(content="long" * 3000)) in response.body
    await rig.reported("STARTED", "FIRST_TOKEN", "ENDED")
    (ended,) = [report for report in rig.scheduler.reports if report.finish_reason]
    assert (ended.has_tool_calls, list(ended.tool_call_ids), ended.prompt_tokens) == (True, ["call_1"], 12)


async def test_a_client_that_does_not_read_stops_a_stream_of_small_chunks(rig: Rig) -> None:
    chunks, sent = 27_000, 0
    part = text("x" * 1_000)

    async def flood(call: Call) -> None:
        nonlocal sent
        await call.send(STREAM)
        for _ in range(chunks):
            await call.send(part)
            sent += 1
        await call.send(*END)

    rig.engine.script = flood
    await rig.start()
    client = await rig.client()
    await client.send(request(STREAMED))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await wait_until_still(lambda: sent)
    assert sent < chunks * 0.9, "what is not read is not taken from the engine"
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    response = await client.response(timeout_s=30)
    assert response.whole
    assert response.body == event(delta(content="x" * 1_000)) * chunks + event(delta(finish_reason="stop")) + DONE


@pytest.mark.parametrize("resets", [False, True])
async def test_an_engine_that_dies_breaks_the_stream_off(rig: Rig, resets: bool) -> None:
    async def die(call: Call) -> None:
        for part in [STREAM, *ORDINARY]:
            await call.send(part)
            await asyncio.sleep(0.001)
        if resets:
            call.writer.transport.abort()
        else:
            call.writer.close()

    rig.engine.script = die
    await rig.start()
    response = await read(rig)
    assert not response.whole
    assert response.body == BODY[: len(response.body)]
    assert len(response.body) > len(event(delta(content="t1"))) * 30
    await rig.reported("STARTED", "FIRST_TOKEN", "FAILED")


async def test_a_client_that_leaves_closes_the_request_at_once(rig: Rig) -> None:
    left = asyncio.Event()

    async def endless(call: Call) -> None:
        leaving = asyncio.create_task(call.left())
        await call.send(STREAM)
        while not leaving.done():
            await call.send(text("on and on"))
            await asyncio.sleep(0.001)
        left.set()

    rig.engine.script = endless
    await rig.start()
    client = await rig.client()
    await client.send(request(STREAMED))
    await client.head()
    for _ in range(20):
        await client.chunk()
    client.close()
    async with asyncio.timeout(1):
        await left.wait()
    await rig.reported("STARTED", "FIRST_TOKEN", "FAILED")


async def test_many_streams_at_once_keep_their_bytes_apart(rig: Rig) -> None:
    count = 40

    async def told(call: Call) -> None:
        name = call.headers["x-request-id"]
        await call.send(STREAM)
        for number in range(100):
            await call.send(text(f"{name} {number}"))
            await asyncio.sleep(0.002)
        await call.send(*END)

    rig.engine.script = told
    await rig.start()
    responses = await asyncio.gather(*(read(rig) for _ in range(count)))
    names = set()
    for response in responses:
        name = response.body.split(b'"content": "')[1].split(b" ")[0].decode()
        names.add(name)
        expected = b"".join(event(delta(content=f"{name} {number}")) for number in range(100))
        assert response.body == expected + event(delta(finish_reason="stop")) + DONE
    assert len(names) == count
