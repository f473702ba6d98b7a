"""One connection to a tool server: an MCP client that is made, watched, used for calls, and ended.

`Connection.hold` runs in a task of its own, because the client's end can cancel the task that holds it. Must not
reconnect; that is `toolbox`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self, cast

import anyio
from mcp import Client, MCPError, StdioServerParameters
from mcp.client import stdio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolResult,
    JSONRPCResponse,
    RequestParamsMeta,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from runtime import tool_http
from runtime.results import fit, render
from runtime.tool_call_http import StatelessCalls
from runtime.tool_config import Server
from runtime.tool_specs import Done, NotStarted, Outcome, Unknown
from runtime.tool_stderr import Stderr, reading_stderr

KEY_META = "io.luftpause/idempotencyKey"
"""Key in `_meta` of a call under which its idempotency key is sent."""

_HANDSHAKE_S = 60.0
"""Longest time from the start of a connection to its list of tools; a server may first have to be installed."""
_RELIST_S = 10.0
_RELIST_EVERY_S = 60.0
"""How often a server is looked at that gives no cause: new servers tell of new tools only those who ask."""
_TOOL_PAGES_MAX = 100
_WRITE_S = 5.0
"""Time that handing a call to the server may take on top of the call's own; the client does not limit it."""
_CHILD_STAGE_S_MAX = 2.0
"""The SDK's own."""
_CHILD_END_S = 0.9
"""What the end of a child takes beside: 0.5 s at most to hand over its last messages, 0.2 s to read what it said."""
_UNKNOWN_CODES = {CONNECTION_CLOSED, REQUEST_TIMEOUT, PARSE_ERROR}
"""Errors that tell nothing about the call itself. PARSE_ERROR is the client's own word for a garbled answer."""


class Connection:
    """An MCP client of one server. `hold` first, then `call` from any task while `is_up`."""

    def __init__(self, server: Server, on_tools: Callable[[list[Tool]], None]) -> None:
        self._server = server
        self._on_tools = on_tools
        self._client: Client | None = None
        self._stateless: StatelessCalls | None = None
        """What makes the calls, where the server speaks HTTP by a version of the protocol that allows it."""
        self._schemas: dict[str, dict[str, Any]] = {}
        """Of the arguments of each tool that was last listed, by its name on the server."""
        self._scope = anyio.CancelScope()
        self._wake = asyncio.Event()
        self._ended = False
        self._leaving = False
        self._calls = 0
        self._idle = asyncio.Event()
        self.over = asyncio.Event()
        """Set when no further call is taken; calls in flight may still be answered."""
        self.reason = "connecting"
        """Why it is not up."""
        self._stderr: Stderr | None = None

    @property
    def is_up(self) -> bool:
        """Whether calls are taken."""
        return self._client is not None

    @property
    def last_words(self) -> str:
        """The last line that the server's process said on its standard error; empty where there is none."""
        return self._stderr.last_line if self._stderr is not None else ""

    async def hold(self) -> None:
        """Connects, tells the tools, and stays until the connection is lost or `leave`; then waits for its calls.

        Raises whatever the client raises, or is cancelled by it; `over` is set in every case.
        """
        try:
            with self._scope:
                async with self._connected() as client:
                    await self._list(client)
                    self._client = client
                    await self._watch(client)
                    self._close("connection lost")
                    while self._calls and not self._leaving and not self._ended:
                        self._idle.clear()
                        await self._idle.wait()
        finally:
            self._close("connection lost")

    def leave(self, at_once: bool = False) -> None:
        """Ends the connection and its calls; `at_once`: without a word to an HTTP server."""
        self._leaving = True
        self._wake.set()
        self._idle.set()
        if at_once or not self.is_up:
            self._scope.cancel()

    def _close(self, reason: str) -> None:
        if not self.over.is_set():
            self._client = None
            self.reason = reason
            self.over.set()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Client]:
        server = self._server
        if server.url is not None:
            async with tool_http.client(server.headers()) as http:
                transport = streamable_http_client(
                    server.url, http_client=http, max_sse_event_size=tool_http.ANSWER_BYTES_MAX
                )
                async with self._handshaken(transport) as client:
                    if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                        self._stateless = StatelessCalls(http, server.url, client.protocol_version)
                    yield client
        else:
            assert server.command is not None
            executable, *arguments = server.command
            # A server may print before it speaks, in whatever encoding; else the client would wait for it in vain.
            child = StdioServerParameters(
                command=executable,
                args=arguments,
                env=server.environment(),
                cwd=server.folder,
                encoding_error_handler="replace",
            )
            async with (
                reading_stderr() as self._stderr,
                self._handshaken(stdio.stdio_client(child, errlog=self._stderr.file)) as client,
            ):
                yield client

    @asynccontextmanager
    async def _handshaken(self, transport: Any) -> AsyncIterator[Client]:
        client = Client(_Watched(transport, self._on_end), cache=None, message_handler=self._on_message)
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(_HANDSHAKE_S):
                await stack.enter_async_context(client)
            yield client

    async def _watch(self, client: Client) -> None:
        """Lists the tools again now and then, and on every doubt; returns when the connection is of no more use."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _RELIST_EVERY_S)
            self._wake.clear()
            if self._leaving or self._ended:
                return
            try:
                async with asyncio.timeout(_RELIST_S):
                    await self._list(client)
            except TimeoutError:
                # A server that does one thing at a time may be at a call, which has a limit of its own.
                if not self._calls:
                    self._close("no answer")
                    return
            except (MCPError, ValidationError) as error:
                self._close(reason_of(error))
                return

    async def _list(self, client: Client) -> None:
        tools = await _list_tools(client)
        self._schemas = {tool.name: tool.input_schema for tool in tools}
        self._on_tools(tools)

    def _on_end(self) -> None:
        self._ended = True
        self._wake.set()
        self._idle.set()

    def _doubt(self) -> None:
        """Has the tools listed again, which shows whether the connection still works."""
        self._wake.set()

    async def _on_message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._doubt()

    async def call(self, tool: str, arguments: dict[str, Any], meta: dict[str, Any], timeout_s: float) -> Outcome:
        """Calls `tool` (its name on the server). Cancelling sends the server the protocol's cancellation."""
        client = self._client
        if client is None:
            return NotStarted(self.reason)
        self._calls += 1
        try:
            result = await self._call(client, tool, arguments, meta, timeout_s)
        except MCPError as error:
            return self._failed(error, timeout_s)
        except TimeoutError:
            return _late(timeout_s)
        except (ValidationError, RuntimeError) as error:
            # An answer came, and it is not one that the protocol or the tool's own output schema allows.
            return Done(f"the tool ran, but its answer is not valid: {str(error).splitlines()[0]}", is_error=True)
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
        if not isinstance(result, CallToolResult):
            return Done("the tool asks for input from a person, which it cannot get here", is_error=True)
        told = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return Done(render(told["content"], result.structured_content), bool(result.is_error))

    async def _call(
        self, client: Client, tool: str, arguments: dict[str, Any], meta: dict[str, Any], timeout_s: float
    ) -> object:
        """What the server answers: a CallToolResult, or something else that asks for input."""
        if self._stateless is None:
            async with asyncio.timeout(timeout_s + _WRITE_S):
                return await client.session.call_tool(
                    tool,
                    arguments,
                    read_timeout_seconds=timeout_s,
                    meta=cast(RequestParamsMeta, meta),
                    allow_input_required=True,
                )
        try:
            async with asyncio.timeout(timeout_s):
                return await self._stateless.call(tool, self._schemas.get(tool, {}), arguments, meta)
        except TimeoutError:
            raise MCPError(REQUEST_TIMEOUT, "no answer in time") from None

    def _failed(self, error: MCPError, timeout_s: float) -> Outcome:
        failure = tool_http.failure_of(error.data)
        # The client tells what is wrong with an answer in many lines.
        said = (error.message.splitlines() or [""])[0]
        if failure != "refused" and error.code in _UNKNOWN_CODES | {INVALID_REQUEST, HEADER_MISMATCH}:
            self._doubt()
        if failure in ("unreachable", "session-gone", "refused"):
            return NotStarted(said)
        if error.code == REQUEST_TIMEOUT:
            return _late(timeout_s)
        if error.code in _UNKNOWN_CODES:
            return Unknown(said, is_late=failure == "late")
        if error.code in (INVALID_REQUEST, HEADER_MISMATCH):
            return NotStarted(said)
        return Done(error.message, is_error=True)


def give_children(time_s: float) -> None:
    """How long child processes that are ended from here on have: half of it after the end of their input, half after
    SIGTERM; then they are killed."""
    stage_s = min(max((time_s - _CHILD_END_S) / 2, 0.0), _CHILD_STAGE_S_MAX)
    stdio.PROCESS_TERMINATION_TIMEOUT = stdio.FORCE_KILL_TIMEOUT = stage_s


def _late(timeout_s: float) -> Unknown:
    return Unknown(f"no answer within {timeout_s:g} s", is_late=True)


def reason_of(error: BaseException) -> str:
    """Why a connection did not come up or is of no more use, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    # Of an event loop's choice, the text of an OSError has its number and file, or the number alone.
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]


async def _list_tools(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(_TOOL_PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        tools.extend(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


class _Watched:
    """A transport that tells when the server's side has ended, which the client itself shows nowhere."""

    def __init__(self, transport: Any, on_end: Callable[[], None]) -> None:
        self._transport = transport
        self._on_end = on_end

    async def __aenter__(self) -> tuple[Any, Any]:
        read, write = await self._transport.__aenter__()
        return _WatchedStream(read, self._on_end), write

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return bool(await self._transport.__aexit__(kind, error, trace))


class _WatchedStream:
    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    @property
    def last_context(self) -> Any:
        """The sender's context, which the client asks for."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        try:
            message: SessionMessage | Exception = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._on_end()
            raise
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            message.message.result = fit(message.message.result)
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
