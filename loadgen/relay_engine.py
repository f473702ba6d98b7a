"""`python -m loadgen.relay_engine PORT…`: the engine of `bench relay`, as cheap as Python makes it.

It answers at once and knows no queue, so that what is measured is the proxy before it. It is told how to answer by the
request: see `relay_wire`. Its one order waits until hardly any stream is open. Read next: `relay_client`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, cast

import httptools
import msgspec
import uvloop

from loadgen import relay_wire
from loadgen.relay_orders import obey

_BACKLOG = 4096
_OTHER_ANSWERS = {
    b"/v1/models": b'{"object":"list","data":[{"id":"m","object":"model","created":1700000000,"owned_by":"bench"}]}',
    b"/metrics": b'vllm:num_requests_running{model_name="m"} 0\nvllm:num_requests_waiting{model_name="m"} 0\n',
    b"/health": b"{}",
}


class Ask(msgspec.Struct):
    """What a request asks for; the rest of it is passed over."""

    user: str
    max_tokens: int
    stream: bool = False
    metadata: dict[str, str] = {}


_read_ask = msgspec.json.Decoder(Ask).decode


class Streams:
    """The streams that are open now."""

    def __init__(self) -> None:
        self.left_at = time.monotonic()
        """When the last one ended or was given up by its client, on the clock that all processes share."""
        self._open = 0
        self._most = 0
        self._few = asyncio.Event()

    def began(self) -> None:
        """A stream has begun."""
        self._open += 1

    def ended(self) -> None:
        """A stream has ended."""
        self._open -= 1
        self.left_at = time.monotonic()
        if self._open <= self._most:
            self._few.set()

    async def wait(self, order: dict[str, Any]) -> dict[str, Any]:
        """Waits until at most `most` are open (unset: none), for at most `within_s`. How many are left, and when the
        last one went."""
        self._most = order.get("most", 0)
        self._few.clear()
        try:
            if self._open > self._most:
                await asyncio.wait_for(self._few.wait(), order["within_s"])
        except TimeoutError:
            return {"left": self._open, "at": time.monotonic()}
        return {"left": self._open, "at": self.left_at}


class Connection(asyncio.Protocol):
    """A client's connection; its requests come one after another."""

    _transport: asyncio.Transport

    def __init__(self, streams: Streams) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._streams = streams
        self._path = b""
        self._body = b""
        self._pad_bytes: int | None = None
        """Of the stream that is open, if its chunks are stamped."""
        self._next: asyncio.TimerHandle | None = None
        """The next chunk of the stream that is open."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """asyncio's."""
        if self._next is not None:
            self._next.cancel()
            self._streams.ended()

    def on_url(self, url: bytes) -> None:
        """The parser's: a request has begun."""
        self._path = url
        self._body = b""

    def on_body(self, body: bytes) -> None:
        """The parser's."""
        self._body += body

    def on_message_complete(self) -> None:
        """The parser's: the whole request is here."""
        if self._path != b"/v1/chat/completions":
            self._answer(_OTHER_ANSWERS.get(self._path, b""), b"200 OK" if self._path in _OTHER_ANSWERS else b"404 No")
            return
        ask = _read_ask(self._body)
        if not ask.stream:
            self._answer(relay_wire.whole(int(ask.user)), b"200 OK")
            return
        self._streams.began()
        pad_bytes = ask.metadata.get("pad_bytes")
        self._pad_bytes = None if pad_bytes is None else int(pad_bytes)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._send_chunk(int(ask.user), 0, ask.max_tokens, int(ask.metadata["pace_ms"]) / 1000, self._loop.time())

    def _answer(self, body: bytes, status: bytes) -> None:
        kind = b"text/plain" if self._path == b"/metrics" else b"application/json"
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(body))
        self._transport.write(head + body)

    def _send_chunk(self, number: int, position: int, chunks: int, pace_s: float, due_at: float) -> None:
        if self._pad_bytes is None:
            data = _framed(relay_wire.event(number, position))
        else:
            at_us = time.monotonic_ns() // 1000
            data = _framed(relay_wire.stamped(number, position, at_us, self._pad_bytes))
        if position + 1 < chunks:
            self._transport.write(data)
            due_at += pace_s
            self._next = self._loop.call_at(due_at, self._send_chunk, number, position + 1, chunks, pace_s, due_at)
            return
        self._next = None
        self._streams.ended()
        self._transport.write(data + _framed(relay_wire.end(number)) + b"0\r\n\r\n")


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    streams = Streams()
    for port in ports:
        await loop.create_server(lambda: Connection(streams), "127.0.0.1", port, backlog=_BACKLOG)
    await obey(streams.wait)


if __name__ == "__main__":
    uvloop.run(_serve([int(port) for port in sys.argv[1:]]))
