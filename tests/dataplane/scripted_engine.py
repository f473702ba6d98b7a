"""An engine that does what a test says, on a raw socket, so that it can also do what no HTTP server would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.servers import raw_server

OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class Call:
    """One request as the engine got it, and the connection to answer on."""

    line: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    connection: int
    """Number of its connection, from 1."""
    number: int
    """Of the requests of all connections, from 1."""

    async def send(self, *parts: bytes) -> None:
        """Sends each part by itself."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def left(self) -> None:
        """Returns when the other side has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


Script = Callable[[Call], Awaitable[None]]


def event(document: Any) -> bytes:
    """One event."""
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def delta(**fields: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    finish_reason = fields.pop("finish_reason", None)
    return {"id": "c", "choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
USAGE_CHUNK = {"id": "c", "choices": [], "usage": USAGE}
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """`data` in the framing of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, status: str = "200 OK", *lines: str) -> bytes:
    """An answer with a length."""
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", "content-type: application/json", *lines))
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


REPLY = json.dumps(
    {"id": "r", "choices": [{"index": 0, "message": {"content": "hello"}, "finish_reason": "stop"}], "usage": USAGE}
).encode()


async def answer_ok(call: Call) -> None:
    """Streams three chunks and usage where asked to stream, else answers whole."""
    body = json.loads(call.body)
    if not body.get("stream"):
        await call.send(whole(REPLY))
        return
    await call.send(STREAM, *(chunk(event(delta(content=text))) for text in ("a", "b", "c")))
    await call.send(chunk(event(delta(finish_reason="stop"))))
    if (body.get("stream_options") or {}).get("include_usage"):
        await call.send(chunk(event(USAGE_CHUNK)))
    await call.send(chunk(DONE), LAST_CHUNK)


class ScriptedEngine:
    """Answers each request with `script`; keeps connections open unless the script closes them."""

    def __init__(self) -> None:
        self.script: Script = answer_ok
        self.calls: list[Call] = []
        self.connections = 0
        self.open = 0
        self._opened = contextlib.AsyncExitStack()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listens on a free port."""
        self.port = await self._opened.enter_async_context(raw_server(self._serve, tls=tls, limit=2**26))

    async def stop(self) -> None:
        """Ends all connections."""
        await self._opened.aclose()

    def drop_connections(self) -> None:
        """Closes every connection, as an engine does whose keep-alive time is over."""
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        self.open += 1
        number = self.connections
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                call = Call(head[0], headers, body, reader, writer, number, len(self.calls) + 1)
                self.calls.append(call)
                await self.script(call)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            self._writers.discard(writer)
