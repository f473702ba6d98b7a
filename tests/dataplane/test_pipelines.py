"""Clients that send many requests at once: one that reads gets all its answers, one that does not is held back, then
cut off."""

from __future__ import annotations

import asyncio
import socket

import pytest

from dataplane import server
from dataplane.server import ClientConnection
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import RawClient, request
from tests.waiting import wait_until

HEALTH = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
UNKNOWN = b"GET /v1/xyz HTTP/1.1\r\nhost:a\r\n\r\n"
READ_BYTES_MAX = 256_000
"""The event loop reads no more at once."""


def only_connection(rig: Rig) -> ClientConnection:
    """The one that is open."""
    assert rig.app is not None
    [connection] = rig.app._server.connections
    return connection


def open_connections(rig: Rig) -> int:
    """How many there are."""
    assert rig.app is not None
    return len(rig.app._server.connections)


async def deaf_client(rig: Rig) -> RawClient:
    """A client that reads nothing; little of what waits for it is kept by the system."""
    assert rig.app is not None
    assert rig.app.address is not None
    plug = socket.socket()
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, rig.app.address[:2])
    client = RawClient(*await asyncio.open_connection(sock=plug, limit=2**26))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return client


@pytest.mark.parametrize(("one", "status"), [(HEALTH, 200), (UNKNOWN, 404)])
async def test_ten_thousand_requests_in_one_go_are_all_answered(rig: Rig, one: bytes, status: int) -> None:
    await rig.start()
    client = await rig.client()
    client.writer.write(one * 10_000)
    assert [(await client.response(60)).status for _ in range(10_000)] == [status] * 10_000


async def test_a_client_that_reads_late_gets_its_answers_in_order_and_goes_on(rig: Rig) -> None:
    await rig.start()
    client = await deaf_client(rig)
    number = 20_000
    client.writer.write(b"".join(b"GET /v1/n%d HTTP/1.1\r\nhost:a\r\n\r\n" % n for n in range(number)))
    await wait_until(lambda: open_connections(rig) and only_connection(rig)._held_back, timeout_s=60)
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for n in range(number):
        assert (await client.response(60)).error.startswith(f"nothing is served at /v1/n{n};")
    assert (await client.ask(HEALTH)).status == 200
    client.close()


async def test_little_is_kept_of_what_a_client_sends_that_does_not_read(rig: Rig) -> None:
    await rig.start()
    client = await deaf_client(rig)
    client.writer.write(UNKNOWN * 200_000)
    await wait_until(lambda: open_connections(rig) and only_connection(rig)._held_back, timeout_s=60)
    connection = only_connection(rig)
    assert len(connection._ahead) <= server.AHEAD_BYTES_MAX + READ_BYTES_MAX
    assert len(connection._waiting) <= server.PARSED_BYTES_MAX // len(UNKNOWN)
    client.writer.transport.abort()


@pytest.mark.parametrize("behind", [b"", b"\0\0"], ids=["requests", "what is no HTTP"])
async def test_a_client_that_reads_no_answer_is_cut_off(rig: Rig, behind: bytes) -> None:
    await rig.start(unread_s=1)
    client = await deaf_client(rig)
    client.writer.write(UNKNOWN * 20_000 + behind)
    await wait_until(lambda: open_connections(rig) == 1)
    await wait_until(lambda: open_connections(rig) == 0, timeout_s=30)
    client.close()


async def test_a_head_that_is_cut_by_a_read_counts_from_the_next_one(rig: Rig) -> None:
    await rig.start(header_bytes_max=1024)
    client = await rig.client()
    await client.send(HEALTH * 100 + HEALTH[:10])
    assert [(await client.response()).status for _ in range(100)] == [200] * 100
    assert (await client.ask(HEALTH[10:])).status == 200


async def test_a_head_without_an_end_is_refused_behind_others_too(rig: Rig) -> None:
    await rig.start(header_bytes_max=1024)
    client = await rig.client()
    await client.send(HEALTH * 100 + b"GET /health HTTP/1.1\r\nx: ")
    assert [(await client.response()).status for _ in range(100)] == [200] * 100
    assert (await client.ask(b"x" * 2000)).status == 431


async def test_a_large_body_behind_many_requests_is_whole(rig: Rig) -> None:
    await rig.start()
    client = await rig.client()
    text = "x" * 3_000_000
    await client.send(HEALTH * 3000 + request({"model": "m", "messages": [{"role": "user", "content": text}]}) + HEALTH)
    assert [(await client.response(30)).status for _ in range(3002)] == [200] * 3002
    assert text.encode() in rig.engine.calls[0].body
