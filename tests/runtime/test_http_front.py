"""What a client without a token can make the runtime's HTTP front keep: little, whatever it sends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from tests.runtime.memory_of_runs import resident_kib
from tests.runtime.service_process import RuntimeProcess, running_runtime

POST = b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n"
LINES = b"a: b\r\n" * 10_000
FLOODS = {
    "many headers": (POST, LINES),
    "one header": (POST + b"x: ", b"a" * 65536),
    "a path": (b"GET /", b"a" * 65536),
    "trailers": (POST + b"transfer-encoding: chunked\r\n\r\n0\r\n", LINES),
    "a body": (POST + b"content-length: 9999999999\r\n\r\n", b"a" * 65536),
    "requests ahead of their answers": (b"", b"GET /status HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 1000),
}
SENT_BYTES = 20 << 20
KEPT_KIB_MAX = 8 << 10
"""Of SENT_BYTES; what a process keeps free for later among them."""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    with running_runtime(tmp_path_factory.mktemp("front"), {"LUFTPAUSE_TOKEN": "secret"}) as made:
        yield made


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_without_a_token_takes_no_memory(runtime: RuntimeProcess, flood: str) -> None:
    assert runtime.service is not None
    before = resident_kib(runtime.service.process.pid)
    begin, block = FLOODS[flood]
    _, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
    writer.write(begin)
    with contextlib.suppress(ConnectionError, TimeoutError):
        # What is not read is not taken: then sending comes to a halt, and it is over.
        async with asyncio.timeout(3):
            for _ in range(SENT_BYTES // len(block)):
                writer.write(block)
                await writer.drain()
    kept = resident_kib(runtime.service.process.pid) - before
    writer.transport.abort()
    assert kept < KEPT_KIB_MAX


@pytest.mark.parametrize("broken", [b"no size\r\n", b"5\r\nhello\r\n0\r\nno colon\r\n\r\n"])
async def test_a_body_that_is_no_http_is_refused_and_no_fault_of_ours(runtime: RuntimeProcess, broken: bytes) -> None:
    """The fixture looks for tracebacks: of the request that is at work, and of the refusal after its answer."""
    request = POST + b"transfer-encoding: chunked\r\n\r\n"
    for is_answered in (False, True):
        reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
        writer.write(request if is_answered else request + broken)
        if is_answered:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(broken)
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert is_answered or answer.startswith(b"HTTP/1.1 400 ")
        writer.close()


@pytest.mark.parametrize("lines", [b"mcp-protocol-version: 2025-06-18\r\n", b"mcp-session-id: x\r\n"])
async def test_a_header_of_mcp_that_is_there_twice_is_refused(runtime: RuntimeProcess, lines: bytes) -> None:
    """Else the limit on sessions could read one of them and MCP the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
    head = POST + b"authorization: Bearer secret\r\ncontent-length: 0\r\nconnection: close\r\n"
    writer.write(head + lines * 2 + b"\r\n")
    async with asyncio.timeout(10):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_two_lengths_of_a_body_are_refused(runtime: RuntimeProcess) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", runtime.port)
    writer.write(
        POST + b"authorization: Bearer secret\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    async with asyncio.timeout(10):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
