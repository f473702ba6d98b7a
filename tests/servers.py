"""Servers of tests, of which nothing is left when they end: neither a task nor a connection, however late it came."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.waiting import wait_until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Protocol(asyncio.StreamReaderProtocol):
    """Is known as long as its connection is open; `asyncio.start_server` forgets those that it has accepted."""

    def __init__(self, serve: Serve, limit: int, connected: set[asyncio.BaseTransport]) -> None:
        super().__init__(asyncio.StreamReader(limit=limit), serve)
        self._connected = connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._mine = transport
        self._connected.add(transport)
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._connected.discard(self._mine)


async def _accepted() -> None:
    """Returns when what was accepted before is connected, and its service begun: no part of asyncio waits for that."""
    for _ in range(5):  # a task, two callbacks of the transport, and the service's own task
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def web_server(app: web.Application, **options: Any) -> AsyncIterator[str]:
    """The origin of `app`, served while the block runs; `options`: as of `web.AppRunner`."""
    runner = web.AppRunner(app, **options)
    await runner.setup()
    server = runner.server
    assert server is not None
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await _accepted()
        await server.shutdown(0)


@contextlib.asynccontextmanager
async def raw_server(serve: Serve, *, tls: ssl.SSLContext | None = None, limit: int = 2**16) -> AsyncIterator[int]:
    """The port of a server that calls `serve` with each connection, and closes it after that; what is still open at
    the end is cut. `limit`: as of `asyncio.StreamReader`, in bytes."""
    connected: set[asyncio.BaseTransport] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass  # the other side's doing
        finally:
            tasks.discard(task)
            writer.close()

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Protocol(handle, limit, connected), "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await _accepted()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in list(connected):
            each.abort() if isinstance(each, asyncio.Transport) else each.close()
        await wait_until(lambda: not connected)
