"""When a request on a kept connection may be sent again: only if TCP proves that it never came."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Iterator

import pytest

from dataplane import upstream
from dataplane.exchange import Reply
from dataplane.pump import make_pump
from dataplane.upstream import Endpoint, EngineConnection

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere TCP does not tell, and nothing is sent again"
)

REQUEST = b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Exchange:
    """Notes how it ended."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        """Lost: whether it was untouched; None: it was answered."""

    def answered(self, reply: Reply) -> None:
        """The head came."""

    def received(self, _data: bytes, complete: bool) -> None:
        if complete:
            self.ended.set_result(None)

    def lane(self) -> None:
        """No answer here has chunks."""

    def lost(self, _problem: str, untouched: bool) -> None:
        self.ended.set_result(untouched)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        opened.listen()
        yield opened


async def kept(listening: socket.socket) -> tuple[EngineConnection, socket.socket]:
    """A connection that has carried a request, and the engine's end of it."""
    endpoint = Endpoint("engine", f"http://127.0.0.1:{listening.getsockname()[1]}", None, make_pump())
    connection = await endpoint.connect()
    engine, _ = listening.accept()
    first = Exchange()
    connection.send(first, REQUEST, b"{}")
    await asyncio.to_thread(engine.recv, 1000)
    engine.send(ANSWER)
    assert await first.ended is None
    assert endpoint.acquire() is connection
    return connection, engine


async def sent_again(connection: EngineConnection) -> bool | None:
    second = Exchange()
    connection.send(second, REQUEST, b"{}")
    return await asyncio.wait_for(second.ended, 10)


async def test_a_request_that_crosses_the_closing_never_came(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "_FRESH_S", -1.0)
    connection, engine = await kept(listening)
    engine.close()
    assert await sent_again(connection) is True


@pytest.mark.parametrize("resets", [False, True])
async def test_a_request_that_was_read_did_come_however_the_connection_ends(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch, resets: bool
) -> None:
    monkeypatch.setattr(upstream, "_FRESH_S", -1.0)
    connection, engine = await kept(listening)

    def read_and_close() -> None:
        engine.recv(1000)
        if resets:
            engine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        engine.close()

    closing = asyncio.create_task(asyncio.to_thread(read_and_close))
    assert await sent_again(connection) is False
    await closing


async def test_a_connection_that_was_used_a_moment_ago_is_not_closed_for_being_idle(listening: socket.socket) -> None:
    connection, engine = await kept(listening)
    engine.close()
    assert await sent_again(connection) is False
