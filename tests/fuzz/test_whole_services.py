"""Any bytes on connections to a service that works: no fault of ours, nothing left behind, others are answered.

The runtime's front with MCP, the scheduler's, and the dataplane's with a scheduler and a simulated engine behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import pathlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from common.auth import Guard
from common.pool import Pool
from dataplane.app import App
from dataplane.config import DataplaneConfig
from fakes.engine.config import EngineConfig
from fakes.engine.server import EngineServer
from scheduler import http
from scheduler.invariants import check
from tests.fuzz import test_http_front
from tests.fuzz.fuzzing import HANG_S, fuzz
from tests.fuzz.requests import connection, statuses
from tests.runtime.conformance_server import own_tools
from tests.scheduler.running_host import A, B, running_host
from tests.waiting import wait_until

PATIENCE_S = 0.25
"""What has not come until then does not come: a request may not be whole, a stream of events stays open."""
CROWD = 100
"""Connections at a time: the patience then costs all of them as much as one."""

MCP = b"\r\n".join(
    (
        b"POST /mcp HTTP/1.1",
        b"host: 127.0.0.1",
        b"accept: application/json, text/event-stream",
        b"content-type: application/json",
    )
)
SERVED = (
    *(b"GET /%b HTTP/1.1\r\nhost: localhost" % path for path in (b"status", b"health", b"metrics", b"", b"?runtime=x")),
    MCP,
    MCP,
    MCP + b"\r\nmcp-protocol-version: 2025-06-18\r\nmcp-session-id: x",
    MCP + b"\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: tools/list",
    MCP + b"\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\nmcp-name: status",
    b"GET /mcp HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream",
    b"DELETE /mcp HTTP/1.1\r\nhost: localhost\r\nmcp-session-id: x",
    b"GET /status HTTP/1.1\r\nhost: [::1\r\norigin: http://[",
)


def call(method: str, **parameters: Any) -> bytes:
    """A JSON-RPC request of MCP, of either era."""
    era = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "fuzz", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": era, **parameters}}
    return json.dumps(request).encode()


CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "fuzz", "version": "1"}}
BODIES = (
    call("initialize", **CLIENT),
    call("tools/list"),
    call("tools/call", name="status", arguments={}),
    call("tools/call", name="status", arguments={"handle": "\x00"}),
    call("tools/call", name="await", arguments={"handles": ["x"], "timeout": -1}),
    call("tools/call", name="no such", arguments=[]),
    call("tasks/get", taskId=7),
    call("server/discover"),
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    b'{"jsonrpc":"2.0","id":null,"result":{}}',
    b'[{"jsonrpc":"2.0"}]',
    b"[" * 3000,
    b'"\\ud800"',
    b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}',
    b"",
)


HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


TURN = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
    len(test_http_front.CHAT),
    test_http_front.CHAT,
)


async def said_to(port: int, parts: list[bytes], patience_s: float = PATIENCE_S) -> bytes:
    """What a client reads that sends `parts`, and leaves when nothing comes any more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = bytearray()
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(patience_s):
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0)
            while data := await reader.read(1 << 20):
                said += data
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return bytes(said)


@dataclass(frozen=True)
class Front:
    """A service's HTTP front."""

    port: int
    served: Sequence[bytes] = SERVED
    bodies: Sequence[bytes] = BODIES
    honest: bytes = HEALTH
    """A request that is right."""
    left_behind: Callable[[], object] = lambda: None
    """What is left of a crowd that has gone, if anything."""


@contextlib.asynccontextmanager
async def runtime_front(folder: pathlib.Path) -> AsyncIterator[Front]:
    async with own_tools(folder) as url:
        yield Front(int(url.removesuffix("/mcp").rpartition(":")[2]))


@contextlib.asynccontextmanager
async def scheduler_front(_folder: pathlib.Path) -> AsyncIterator[Front]:
    async with running_host((A, B)) as running:
        runner, port = await http.start(running.host, "127.0.0.1", 0, Guard())
        yield Front(port)
        await runner.cleanup()


@contextlib.asynccontextmanager
async def dataplane_front(_folder: pathlib.Path) -> AsyncIterator[Front]:
    """Turns are relayed, four at a time, and others are held."""
    engine = EngineServer(EngineConfig(model="m", speed=50.0, reply_tokens=4), 0)
    await engine.start()
    replica = dataclasses.replace(A, url=f"http://127.0.0.1:{engine.port}", max_in_flight=4)
    ended = asyncio.Event()
    async with running_host((replica,)) as running:
        app = App(DataplaneConfig(port=0, scheduler=f"127.0.0.1:{running.port}"), Pool((replica,)))
        serving = asyncio.create_task(app.serve(ended))
        await wait_until(lambda: app.snapshot()["gauges"]["scheduler_connected"])
        assert app.address is not None

        def left_behind() -> object:
            check(running.host.state)
            gauges = app.snapshot()["gauges"]
            return running.host.state.turns or {name: gauges[name] for name in ("held", "in_flight") if gauges[name]}

        yield Front(app.address[1], test_http_front.SERVED, test_http_front.BODIES, TURN, left_behind)
        ended.set()
        await serving
    await engine.finish()


@pytest.mark.parametrize("front", [runtime_front, scheduler_front, dataplane_front])
def test_any_bytes_are_answered_in_http_without_a_fault_of_ours(
    request: pytest.FixtureRequest,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    front: Callable[[pathlib.Path], contextlib.AbstractAsyncContextManager[Front]],
) -> None:
    with asyncio.Runner() as runner:
        context = front(tmp_path)
        tried = runner.run(context.__aenter__())
        faults: list[dict[str, Any]] = []
        runner.get_loop().set_exception_handler(lambda _loop, fault: faults.append(fault))
        one = functools.partial(connection, served=tried.served, bodies=tried.bodies)

        async def crowd(made: list[list[bytes]]) -> None:
            for said in await asyncio.gather(*(said_to(tried.port, each) for each in made)):
                assert all(100 <= status < 500 for status in statuses(said)), said
            assert not faults
            assert not [each.getMessage() for each in caplog.records if each.exc_info]
            caplog.clear()
            await wait_until(lambda: not tried.left_behind())
            assert statuses(await said_to(tried.port, [tried.honest], HANG_S)) == [200]

        def crowd_of_them(chance: random.Random) -> list[list[bytes]]:
            return [one(chance) for _ in range(CROWD)]

        fuzz(request, crowd_of_them, lambda made: runner.run(crowd(made)), each=CROWD)
        runner.run(context.__aexit__(None, None, None))
