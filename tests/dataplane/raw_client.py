"""A client on a raw socket: sends exactly the bytes it is told to, and reads answers as they are."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Self

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def request(
    body: bytes | dict[str, Any] = CHAT, *lines: str, method: str = "POST", path: str = "/v1/chat/completions"
) -> bytes:
    """The bytes of a request; `lines` are further headers."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", "host: x", *lines))
    return head.encode("latin-1") + b"content-length: %d\r\n\r\n" % len(raw) + raw


@dataclass
class Response:
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    """Whether the body came to the end that its framing promised."""

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of an error body, whose shape is checked."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "code"}, error
        return str(error["message"])


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> Self:
        """Connects to the dataplane."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**26))

    async def send(self, data: bytes) -> None:
        """Sends bytes."""
        self.writer.write(data)
        await self.writer.drain()

    def close(self) -> None:
        """Leaves."""
        self.writer.close()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
        return int(lines[0].split()[1]), headers

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body."""
        size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def response(self, timeout_s: float = 10.0) -> Response:
        """The next answer, whole or broken off."""
        async with asyncio.timeout(timeout_s):
            status, headers = await self.head()
            body = b""
            try:
                if headers.get("transfer-encoding") == "chunked":
                    while part := await self.chunk():
                        body += part
                elif "content-length" in headers:
                    body = await self.reader.readexactly(int(headers["content-length"]))
                else:
                    body = await self.reader.read()
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                return Response(status, headers, body + getattr(error, "partial", b""), whole=False)
            return Response(status, headers, body, whole=True)

    async def ask(self, data: bytes) -> Response:
        """Sends bytes and reads the answer."""
        await self.send(data)
        return await self.response()
