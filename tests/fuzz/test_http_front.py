"""Any bytes on a client's connection: answers that are HTTP, none of them a 5xx, and nothing left behind."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any, cast

import pytest
from pydantic import SecretStr

from common.pool import Pool
from dataplane.app import App
from dataplane.config import DataplaneConfig
from dataplane.server import Server
from tests.fuzz.fuzzing import cut, either, fuzz, mutated, some, some_bytes

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
BODIES = [
    b"",
    b"{}",
    CHAT,
    CHAT[:-1] + b',"stream":true,"stream_options":{"include_usage":null}}',
    b'{"model":"m","messages":[{"role":"tool","tool_call_id":"a","content":null}],"max_tokens":1e999}',
    b'{"model":7}',
    b'{"messages":' + b"[" * 300,
    b'{"input":"x","labels":["a","b"]}',
    b'"\\ud800"',
]
LINES = [
    b"host: x",
    b"authorization: Bearer secret",
    b"Authorization: Bearer wrong",
    b"x-luftpause-run-id: r1",
    b"x-luftpause-run-id: a b",
    b"x-luftpause-class: batch",
    b"x-luftpause-class: urgent",
    b"x-luftpause-caller: \xc3\xbcber",
    b"x-luftpause-caller: \xff",
    b"x-luftpause-: ",
    b"content-type: application/json",
    b"content-encoding: gzip",
    b"expect: 100-continue",
    b"connection: close",
    b"connection: keep-alive, x-private",
    b"connection: upgrade\r\nupgrade: h2c",
    b"transfer-encoding: chunked",
    b"transfer-encoding: gzip, chunked",
    b"content-length: 5",
    b"content-length: 99999999999999999999",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    b" folded",
    b"name : value",
    b"no colon",
]
TARGETS = [
    b"/v1/chat/completions", b"/v1/decide", b"/v1/models", b"/v1/runs/r1", b"/v1/runs/../x", b"/health",
    b"/metrics", b"/", b"http://h/v1/models", b"//", b"*", b"/v1/%2e%2e/health", b"/v1/models?x=\xff", b"",
]  # fmt: skip
SERVED = [b"POST /v1/chat/completions", b"POST /v1/decide", b"GET /v1/models", b"DELETE /v1/runs/r1", b"GET /metrics"]
METHODS = [b"GET", b"POST", b"DELETE", b"HEAD", b"OPTIONS", b"CONNECT", b"PRI", b"get", b""]
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 ", b""]


def framed(chance: random.Random, body: bytes) -> tuple[bytes, bytes]:
    """Further lines and the body as it is sent."""
    chunk = b"%x%b\r\n%b\r\n0\r\n"
    match chance.randrange(5):
        case 0:
            return b"content-length: %d\r\n" % len(body), body
        case 1:
            return b"transfer-encoding: chunked\r\n", chunk % (len(body), b"", body) + b"\r\n"
        case 2:
            return b"transfer-encoding: chunked\r\n", chunk % (len(body), b';ext="a"', body) + b"x-trailer: 1\r\n\r\n"
        case 3:
            return b"transfer-encoding: chunked\r\n", b"ffffffffffffffff1\r\n" + body
        case _:
            return b"", body


def one_request(chance: random.Random) -> bytes:
    """A request, right or wrong."""
    line = chance.choice(SERVED) + b" HTTP/1.1"
    if chance.random() < 0.5:
        line = b" ".join((chance.choice(METHODS), either(chance, TARGETS, 12), chance.choice(VERSIONS)))
    lines = some(chance, 5, lambda one: either(one, LINES, 20))
    more, sent = framed(chance, either(chance, BODIES, 40))
    return b"".join(each + b"\r\n" for each in (line, *lines)) + more + b"\r\n" + sent


def connection(chance: random.Random) -> list[bytes]:
    """What a client sends, in parts: some requests with or without bytes that are wrong, or any bytes."""
    if chance.random() < 0.1:
        return cut(chance, some_bytes(chance, 200))
    return cut(chance, mutated(chance, one_request(chance) + b"".join(some(chance, 2, one_request))))


class Transport:
    """Takes what is written, as a client would that reads everything."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing, "nothing is written behind the end"
        self.written += data

    def close(self) -> None:
        self.closing = True

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Asked of a client far ahead of its answers."""

    resume_reading = pause_reading


async def converse(server: Server, parts: list[bytes]) -> bytes:
    """What a client reads that sends `parts` and then leaves."""
    connection, transport = server.connect(), Transport()
    connection.connection_made(cast(Any, transport))
    for part in parts:
        connection.data_received(part)
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    connection.sweep(asyncio.get_running_loop().time() + 1e6)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    return bytes(transport.written)


@pytest.mark.parametrize("token", [None, "secret"])
def test_any_bytes_are_answered_in_http_without_a_fault_of_ours(
    request: pytest.FixtureRequest, token: str | None
) -> None:
    with asyncio.Runner() as runner:

        async def build() -> App:
            return App(DataplaneConfig(port=0, token=SecretStr(token) if token else None, held_max=3), Pool())

        app = runner.run(build())
        proxy = app._proxy

        async def no_replicas(_timeout_s: float) -> list[Any]:
            return []

        setattr(proxy.scheduler, "replicas", no_replicas)  # noqa: B010

        def run(parts: list[bytes]) -> None:
            said = runner.run(converse(app._server, parts))
            assert not said or said.startswith(b"HTTP/1.1 ")
            for status in re.findall(rb"HTTP/1\.1 (\d+) ", said):
                assert 100 <= int(status) < 500, said
            assert proxy.scheduler.held == 0
            assert not app._server.connections

        fuzz(request, connection, run)
