"""Any bytes on a client's connection: answers that are HTTP, none of them a 5xx, and nothing left behind."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from pydantic import SecretStr

from common.pool import Pool
from dataplane.app import App
from dataplane.config import DataplaneConfig
from dataplane.server import Server
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.requests import connection, statuses

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
BODIES = (
    b"",
    b"{}",
    CHAT,
    CHAT[:-1] + b',"stream":true,"stream_options":{"include_usage":null}}',
    b'{"model":"m","messages":[{"role":"tool","tool_call_id":"a","content":null}],"max_tokens":1e999}',
    b'{"model":7}',
    b'{"messages":' + b"[" * 300,
    b'{"input":"x","labels":["a","b"]}',
    b'"\\ud800"',
)
SERVED = (
    b"POST /v1/chat/completions HTTP/1.1",
    b"POST /v1/decide HTTP/1.1",
    b"GET /v1/models HTTP/1.1",
    b"DELETE /v1/runs/r1 HTTP/1.1",
    b"GET /metrics HTTP/1.1",
)


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
            assert all(100 <= status < 500 for status in statuses(said)), said
            assert proxy.scheduler.held == 0
            assert not app._server.connections

        fuzz(request, lambda chance: connection(chance, SERVED, BODIES), run)
