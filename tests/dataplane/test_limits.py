"""Limits on clients that take too much: turns that wait, headers, time to send, answers that they do not read."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dataplane import app
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, RawClient, request
from tests.dataplane.scripted_engine import STREAM, Call, chunk, delta, event
from tests.waiting import wait_until

STREAMED = {**CHAT, "stream": True}


async def test_a_caller_with_too_many_held_turns_is_told_to_come_again(rig: Rig) -> None:
    rig.scheduler.holds = True
    await rig.start(held_max=2)
    mine, theirs = "x-luftpause-caller: me", "x-luftpause-caller: you"
    clients = [await rig.client() for _ in range(3)]
    for client, caller in zip(clients, (mine, mine, theirs), strict=True):
        await client.send(request(CHAT, caller))
    await wait_until(lambda: len(rig.scheduler.turns) == 3)
    response = await rig.ask(request(CHAT, mine))
    assert (response.status, response.json["error"]["type"]) == (429, "rate_limit_error")
    assert response.error == "2 turns of this caller wait for admission already"
    assert int(response.headers["retry-after"]) > 0
    rig.scheduler.holds = False
    rig.scheduler.place(rig.scheduler.turns[0])
    assert (await clients[0].response()).status == 200
    assert (await rig.ask(request(CHAT, mine))).status == 200


async def test_a_place_among_the_held_is_free_again_however_it_was_left(rig: Rig) -> None:
    rig.scheduler.holds = True
    await rig.start(held_max=1)
    assert rig.app is not None
    for _ in range(3):
        client = await rig.client()
        await client.send(request(CHAT))
        await wait_until(lambda: rig.app is not None and rig.app._scheduler.held_of("") == 1)
        client.close()
        await wait_until(lambda: rig.app is not None and rig.app._scheduler.held_of("") == 0)
    assert not rig.app._scheduler._held._by_caller


async def test_more_headers_than_anybody_sends_are_refused(rig: Rig) -> None:
    await rig.start(headers_max=20)
    lines = [f"x-{number}: 1" for number in range(18)]
    assert (await rig.ask(request(CHAT, *lines))).status == 200
    response = await rig.ask(request(CHAT, *lines, "x-more: 1"))
    assert (response.status, response.error) == (431, "there are more than 20 headers")


@pytest.mark.parametrize(
    ("start", "drip"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", b"x-%d: 1\r\n"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n", b"%d"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\n%d\r\n"),
    ],
    ids=["head", "body", "chunks"],
)
async def test_a_client_that_sends_drop_by_drop_gets_no_more_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, start: bytes, drip: bytes
) -> None:
    monkeypatch.setattr(app, "SWEEP_S", 0.05)
    await rig.start(header_s=0.5, body_s=0.5)
    client = await rig.client()
    await client.send(start)

    async def drop_by_drop() -> None:
        for number in range(10_000):
            await client.send(drip % (number % 10))
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drop_by_drop())
    response = await client.response()
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)
    assert response.status == 408


async def not_reading(port: int, window_bytes: int) -> RawClient:
    """A client whose window closes after about so many bytes, and which reads nothing."""
    plug = socket.socket()
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", port))
    client = RawClient(*await asyncio.open_connection(sock=plug))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


@pytest.mark.parametrize("size", [2_000, 60_000], ids=["a little at a time", "much"])
async def test_a_client_that_never_reads_is_cut_off_and_frees_its_slot(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(app, "SWEEP_S", 0.05)
    text = chunk(event(delta(content="x" * size)))

    async def stream_on(call: Call) -> None:
        await call.send(STREAM)
        while True:
            await call.send(text)
            await asyncio.sleep(0.005)

    rig.engine.script = stream_on
    await rig.start(unread_s=0.5)
    assert rig.app is not None
    assert rig.app.address is not None
    stuck, reader = await not_reading(rig.app.address[1], 2048), await rig.client()
    for client in (stuck, reader):
        await client.send(request(STREAMED))
    await reader.head()
    await wait_until(lambda: rig.app is not None and rig.app._scheduler.in_flight == 2)
    async with asyncio.timeout(10):
        while rig.app._scheduler.in_flight == 2:
            await reader.chunk()
        for _ in range(100):  # who reads goes on
            await reader.chunk()
    assert rig.app._scheduler.in_flight == 1
    await rig.reported_any("FAILED")
    stuck.close()


async def test_a_client_that_reads_slowly_is_not_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SWEEP_S", 0.05)
    text = event(delta(content="x" * 4_000))

    async def flood(call: Call) -> None:
        await call.send(STREAM, *([chunk(text)] * 400), b"0\r\n\r\n")

    rig.engine.script = flood
    await rig.start(unread_s=1)
    assert rig.app is not None
    assert rig.app.address is not None
    client = await not_reading(rig.app.address[1], 32_768)
    await client.send(request(STREAMED))
    transport: asyncio.ReadTransport = client.writer.transport  # type: ignore[assignment]
    began_at = asyncio.get_running_loop().time()
    received = 0
    async with asyncio.timeout(20):
        while received < 400 * len(text):
            transport.resume_reading()
            part = await client.reader.read(8192)
            assert part, f"cut off after {received} bytes"
            received += len(part)
            transport.pause_reading()
            if asyncio.get_running_loop().time() - began_at < 3:
                await asyncio.sleep(0.1)
    client.close()
