"""Tool servers for tests: the fake one in the test's own loop, and one whose answers to calls are scripted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import uvicorn
from aiohttp import web

from fakes.toolserver import ToolServerConfig, build
from runtime.tool_config import Server
from runtime.toolbox import Toolbox
from tests.servers import web_server
from tests.waiting import wait_until

Reaction = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
STDIO = (sys.executable, "-m", "fakes.toolserver", "--stdio")


def listening(port: int = 0) -> socket.socket:
    """A socket that listens on the loopback interface."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    made.listen(128)
    return made


@contextlib.asynccontextmanager
async def fake_tools(port: int = 0, **settings: Any) -> AsyncIterator[str]:
    """The fake tool server: its origin."""
    own = listening(port)
    app = build(ToolServerConfig(**{"lookup_s": 0.0, **settings})).streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve(sockets=[own]))
    try:
        await wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{own.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def effects(origin: str) -> dict[str, Any]:
    """What the fake tool server counted."""
    async with aiohttp.ClientSession() as http, http.get(origin + "/effects") as response:
        told: dict[str, Any] = await response.json()
    return told


WHOLE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
"""What the new era asks of every result."""


class ScriptedServer:
    """An MCP server with one tool `act`, whose calls `react` answers. With sessions, or `stateless` of the new era."""

    def __init__(self, react: Reaction, *, stateless: bool) -> None:
        self.react = react
        self.stateless = stateless
        self.tools: list[dict[str, Any]] = [{"name": "act", "inputSchema": {"type": "object"}}]
        self.initialized = 0
        self.calls = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answers one request."""
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        match message["method"]:
            case "server/discover" if self.stateless:
                return reply(message, {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **WHOLE})
            case "initialize":
                self.initialized += 1
                result: dict[str, Any] = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "scripted", "version": "1"},
                }
                return reply(message, result, headers={"mcp-session-id": f"s{self.initialized}"})
            case "tools/list":
                return reply(message, {"tools": self.tools, **WHOLE})
            case "tools/call":
                self.calls += 1
                return await self.react(request, message)
            case method if method.startswith("notifications/"):
                return web.Response(status=202)
            case _:
                return web.Response(status=404)


def reply(message: dict[str, Any], result: dict[str, Any], **options: Any) -> web.Response:
    """A JSON-RPC result."""
    return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result}, **options)


@contextlib.asynccontextmanager
async def scripted(react: Reaction, *, stateless: bool = False) -> AsyncIterator[tuple[ScriptedServer, str]]:
    """A scripted server, and its URL."""
    server = ScriptedServer(react, stateless=stateless)
    async with serving(server) as url:
        yield server, url


@contextlib.asynccontextmanager
async def serving(server: ScriptedServer) -> AsyncIterator[str]:
    """The URL of a scripted server."""
    app = web.Application()
    app.router.add_route("*", "/mcp", server.serve)
    async with web_server(app, shutdown_timeout=1) as origin:
        yield f"{origin}/mcp"


@contextlib.asynccontextmanager
async def opened(*servers: Server) -> AsyncIterator[Toolbox]:
    """A started toolbox of these servers."""
    toolbox = Toolbox(servers)
    await toolbox.start()
    try:
        yield toolbox
    finally:
        await toolbox.close()


async def call(toolbox: Toolbox, name: str, /, key: str = "k", timeout_s: float | None = None, **arguments: Any) -> Any:
    """What a call of the tool offered by `name` comes to."""
    tool = toolbox.find(name)
    assert tool is not None, [each.name for each in toolbox.tools()]
    return await toolbox.call(tool, arguments, key=key, traceparent=None, timeout_s=timeout_s)
