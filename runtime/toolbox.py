"""The tools of all configured MCP servers, and their calls.

One supervisor task a server connects, and connects again with a growing delay when the connection is lost; a server
that is down takes nothing else down. Must not decide whether a call may be repeated; that is the executor's, by the
tool's `EffectKind` and the call's outcome. Read `tool_connection` next.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp_types import Tool

from runtime.arguments import Bad, Good
from runtime.checks import Checks
from runtime.tool_config import Server
from runtime.tool_connection import KEY_META, Connection, give_children, reason_of
from runtime.tool_http import TRACEPARENT
from runtime.tool_specs import (
    NotStarted,
    Outcome,
    ToolSpec,
    effect_kind,
    is_destructive,
    offered,
    plain_name,
    qualified_name,
)

_LOG = logging.getLogger("runtime.toolbox")

TOOL_CHARS_MAX = 256 * 1024
"""Longest description and schema of a tool together; a larger one is not offered. Each call of it would carry all that
to its check, and each turn to the model."""
_NAME_CHARS_TOLD = 64

_START_S = 10.0
"""How long `start` waits for servers to come up."""
_CLOSE_S = 3.2
"""How long connections and child processes have to end where nobody says otherwise."""
_CLOSE_AT_ONCE_S = 0.2
"""The part of that which is kept for connections that did not end by themselves."""
_DELAY_S_MIN = 0.2
_DELAY_S_MAX = 30.0
_SOUGHT_DELAY_S = 2.0
"""Longest pause between two attempts while somebody waits for the server."""
_STEADY_S = 10.0
"""A connection that lived this long starts the delays anew, so that a server in a crash loop is not started in one."""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """How a tool server is."""

    name: str
    up: bool
    reason: str
    """Why it is not up; empty if it is."""
    since: float
    """When that began, in seconds since 1970."""
    tools: tuple[str, ...]
    """Names its tools are offered by, last known if it is down."""
    down_s: float = 0.0
    """Seconds that it has not been connected, by a clock that nobody sets; 0 if it is up."""


class Toolbox:
    """`start` it, ask it for tools and have them called, `close` it."""

    def __init__(self, servers: Iterable[Server]) -> None:
        self._upstreams = {server.name: _Upstream(server, self._has_come_up) for server in servers}
        self.on_up: Callable[[], None] | None = None
        """Is told whenever a server has been connected."""
        self._listed: tuple[tuple[tuple[str, ToolSpec], ...], ...] = ()
        self._offered_now: tuple[ToolSpec, ...] = ()
        self._checks = Checks()

    async def start(self) -> None:
        """Starts all servers; returns when each is up or has failed once, and after 10 s in any case."""
        for upstream in self._upstreams.values():
            upstream.start()
        tried: list[asyncio.Task[Any]] = [
            asyncio.create_task(upstream.tried.wait()) for upstream in self._upstreams.values()
        ]
        if tried:
            _, late = await asyncio.wait(tried, timeout=_START_S)
            for task in late:
                task.cancel()

    async def close(self, within_s: float = _CLOSE_S) -> None:
        """Ends all connections and child processes; calls in flight become UNKNOWN."""
        await self._checks.close()
        by_themselves_s = max(within_s - _CLOSE_AT_ONCE_S, 0.0)
        give_children(by_themselves_s)
        await asyncio.gather(*(upstream.close(by_themselves_s) for upstream in self._upstreams.values()))

    def tools(self) -> tuple[ToolSpec, ...]:
        """All tools, in the order of the configuration, under names that are unique; of a server that is down, those
        that it told last."""
        listed = tuple(upstream.specs for upstream in self._upstreams.values())
        # Nearly always the very same objects, which compare at once.
        if listed != self._listed:
            self._listed, self._offered_now = listed, offered(item for specs in listed for item in specs)
        return self._offered_now

    def find(self, name: str) -> ToolSpec | None:
        """The tool offered by `name`, also if its server is down now (its call is then `NotStarted`)."""
        return next((spec for spec in self.tools() if spec.name == name), None)

    def absent(self, names: Collection[str] | None) -> tuple[ServerStatus, ...]:
        """The servers that are not connected and that have tools of these names, or may have; None: any tools.

        What a server offers that has not been connected since the start is not known: it may have any.
        """
        down = tuple(server for server in self.status() if not server.up)
        if names is None or not down:
            return down
        found = [self.find(name) for name in names]
        needed = {tool.server for tool in found if tool is not None}
        return tuple(server for server in down if server.name in needed or (None in found and not server.tools))

    def seek(self, servers: Mapping[str, float]) -> None:
        """Somebody waits for these servers, for so many seconds: they are tried at once and often until then."""
        for name, for_s in servers.items():
            self._upstreams[name].seek(for_s)

    def missing(self, name: str) -> str | None:
        """What to answer to who names a tool that is not there; None: it is, or may be once its server is up."""
        if self.find(name) is not None or self.absent((name,)):
            return None
        names = ", ".join(tool.name for tool in self.tools()) or "none"
        down = ", ".join(server.name for server in self.status() if not server.up)
        return f"there is no tool '{name[:128]}'; there are: {names}" + (
            f"; servers that are down: {down}" if down else ""
        )

    def status(self) -> tuple[ServerStatus, ...]:
        """How each server is, in the order of the configuration."""
        offered_now = self.tools()
        return tuple(
            ServerStatus(
                name=upstream.server.name,
                up=upstream.is_up,
                reason="" if upstream.is_up else upstream.reason,
                since=upstream.since,
                tools=tuple(spec.name for spec in offered_now if spec.server == upstream.server.name),
                down_s=upstream.down_s,
            )
            for upstream in self._upstreams.values()
        )

    async def prepare(self, spec: ToolSpec, raw: str) -> Good | Bad:
        """The arguments of a call of a tool as a model made them, fit for it, or what is wrong with them."""
        return await self._checks.prepare(spec, raw)

    async def call(
        self, spec: ToolSpec, arguments: dict[str, Any], *, key: str, traceparent: str | None, timeout_s: float | None
    ) -> Outcome:
        """Calls a tool, and never raises but for cancellation, which is passed on to the server.

        `key` is the idempotency key, `traceparent` the W3C trace context; both go to the server in `_meta`, the trace
        context also as a header. `timeout_s` None: the server's own. Calls of one server run side by side.
        """
        upstream = self._upstreams.get(spec.server)
        if upstream is None:
            return NotStarted(f"tool server '{spec.server}' is not configured")
        tool = upstream.names.get(spec.name)
        if not upstream.is_up:
            return NotStarted(f"tool server '{spec.server}' is down: {upstream.reason}")
        if tool is None:
            return NotStarted(f"tool server '{spec.server}' no longer offers '{spec.name}'")
        meta = {KEY_META: key} | ({"traceparent": traceparent} if traceparent else {})
        token = TRACEPARENT.set(traceparent)
        try:
            limit_s = upstream.server.timeout_s if timeout_s is None else timeout_s
            return await upstream.call(tool, arguments, meta, limit_s)
        finally:
            TRACEPARENT.reset(token)

    def _has_come_up(self) -> None:
        if self.on_up is not None:
            self.on_up()


class _Upstream:
    """One server and the task that keeps it connected."""

    def __init__(self, server: Server, on_up: Callable[[], None]) -> None:
        self.server = server
        self._on_up = on_up
        self.specs: tuple[tuple[str, ToolSpec], ...] = ()
        """Name on the server, and spec, of each tool it last listed."""
        self.names: dict[str, str] = {}
        """Every name a tool may be offered by → its name on the server."""
        self.reason = "not started"
        self.since = time.time()
        self._down_since_s = time.monotonic()
        self.tried = asyncio.Event()
        """Set once the first attempt to connect has ended, well or badly."""
        self._connection: Connection | None = None
        self._holding: dict[asyncio.Task[None], Connection] = {}
        """Connections that are not ended yet, the current one and those that still have calls in flight."""
        self._is_stopping = False
        self._sought_until_s = -math.inf
        self._hurry = asyncio.Event()
        """Set when the pause between two attempts may be over sooner than it was to be."""
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return self._connection is not None and self._connection.is_up

    @property
    def down_s(self) -> float:
        if self.is_up:
            return 0.0
        # A loss that the supervisor has yet to hear of is of this moment.
        return time.monotonic() - self._down_since_s if self.reason else 0.0

    def start(self) -> None:
        self._supervisor = asyncio.create_task(self._supervise(), name=f"tool-server-{self.server.name}")

    def seek(self, for_s: float) -> None:
        self._sought_until_s = max(self._sought_until_s, time.monotonic() + for_s)
        self._hurry.set()

    async def close(self, by_themselves_s: float) -> None:
        self._is_stopping = True
        self._hurry.set()
        for at_once, timeout_s in ((False, by_themselves_s), (True, _CLOSE_AT_ONCE_S)):
            for connection in self._holding.values():
                connection.leave(at_once)
            if self._holding:
                await asyncio.wait(self._holding, timeout=timeout_s)
        if self._supervisor is not None:
            await self._supervisor

    async def call(self, tool: str, arguments: dict[str, Any], meta: dict[str, Any], timeout_s: float) -> Outcome:
        assert self._connection is not None
        return await self._connection.call(tool, arguments, meta, timeout_s)

    async def _supervise(self) -> None:
        failures = 0
        while not self._is_stopping:
            began = time.monotonic()
            connection = Connection(self.server, self._on_tools)
            task = asyncio.create_task(connection.hold(), name=f"tool-connection-{self.server.name}")
            self._connection = connection
            self._holding[task] = connection
            task.add_done_callback(self._on_done)
            await connection.over.wait()
            # A connection that never came up is over at the end of its task, whose error says why.
            error = _error_of(task)
            self._went_down(self._why_it_ended(error, connection.last_words) if error else connection.reason)
            failures = 0 if time.monotonic() - began >= _STEADY_S else failures + 1
            await self._pause(min(_DELAY_S_MAX, _DELAY_S_MIN * 2 ** min(failures, 10)))

    async def _pause(self, delay_s: float) -> None:
        """Waits until the next attempt: for `delay_s`, less by chance, and less where somebody waits for the server."""
        began_s, part = time.monotonic(), random.uniform(0.5, 1.0)
        while not self._is_stopping:
            now_s = time.monotonic()
            longest_s = _SOUGHT_DELAY_S if now_s < self._sought_until_s else _DELAY_S_MAX
            left_s = began_s + part * min(delay_s, longest_s) - now_s
            if left_s <= 0:
                return
            self._hurry.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), left_s)

    def _why_it_ended(self, error: str, last_words: str) -> str:
        return f"{self.server.place}: {error}" + (f"; it said: {last_words}" if last_words else "")

    def _on_tools(self, tools: list[Tool]) -> None:
        wanted = self.server.tools
        looked_at = [(tool, _is_too_large(tool)) for tool in tools if wanted is None or tool.name in wanted]
        specs = tuple((tool.name, _spec(self.server.name, tool)) for tool, too_large in looked_at if not too_large)
        left_out = ",".join(tool.name[:_NAME_CHARS_TOLD] for tool, too_large in looked_at if too_large)
        if left_out:
            _LOG.warning("event=tools-too-large server=%s tools=%s", self.server.name, left_out)
        came_up = bool(self.reason)
        if came_up:
            _LOG.info("event=tool-server-up server=%s tools=%d", self.server.name, len(specs))
            missing = sorted(set(wanted or ()) - {tool.name for tool in tools})
            if missing:
                _LOG.warning("event=tools-missing server=%s tools=%s", self.server.name, ",".join(missing))
            self.reason, self.since = "", time.time()
        if specs != self.specs:
            self.specs = specs
            # In reverse, so that of two tools with one name the first has it, as it is offered.
            self.names = {
                form: name
                for name, _ in reversed(specs)
                for form in (plain_name(name), qualified_name(self.server.name, name))
            }
        self.tried.set()
        if came_up:
            # Only from its next step on does the connection take calls.
            asyncio.get_running_loop().call_soon(self._on_up)

    def _went_down(self, reason: str) -> None:
        if self._is_stopping:
            reason = "closed"
        elif reason != self.reason:
            _LOG.warning("event=tool-server-down server=%s reason=%r", self.server.name, reason)
        if not self.reason:
            self.since = time.time()
            self._down_since_s = time.monotonic()
        self.reason = reason
        self.tried.set()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        del self._holding[task]
        _error_of(task)  # asked for, so that asyncio does not report it as never retrieved


def _is_too_large(tool: Tool) -> bool:
    """Whether its description and schema are more than a model reads, and than each call's check can carry."""
    try:
        schema = json.dumps(tool.input_schema)
    except (ValueError, RecursionError):
        return False  # its calls are refused one by one
    return len(schema) + len(tool.description or "") > TOOL_CHARS_MAX


def _spec(server: str, tool: Tool) -> ToolSpec:
    hints = tool.annotations
    read_only = hints.read_only_hint if hints else None
    return ToolSpec(
        server=server,
        name=tool.name,
        description=tool.description or "",
        input_schema=tool.input_schema,
        kind=effect_kind(read_only, hints.idempotent_hint if hints else None),
        destructive=is_destructive(hints.destructive_hint if hints else None, read_only),
    )


def _error_of(task: asyncio.Task[None]) -> str:
    """Why the task ended, in one line; empty if it has not, or without an error."""
    if not task.done():
        return ""
    if task.cancelled():
        return "connection ended"
    error: BaseException | None = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return "" if error is None else reason_of(error)
