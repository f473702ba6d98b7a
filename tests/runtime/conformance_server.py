"""What the official conformance tests call: the runtime's own tools, or those that they ask of the Tasks extension.

In the latter the extension, the journal and the runs are ours as they are, and each call is a run of a real runtime;
only the names of the tools and what they ask for are not ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.server import require_client_extension
from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    TextContent,
)

from common.auth import Guard
from runtime import http, mcp_server, tasks
from runtime.journal import Journal
from runtime.mcp_server import Surface
from runtime.orders import SpawnRequest
from runtime.origins import Served
from runtime.records import State
from runtime.sessions import Sessions
from runtime.tool_specs import Done, EffectKind, Outcome
from tests.runtime.rig import Rig, rig, spec
from tests.runtime.tool_servers import listening
from tests.waiting import wait_until

NAME_FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def pause(arguments: dict[str, Any], _key: str) -> Outcome:
    """The tool that takes as many seconds as its query says."""
    await asyncio.sleep(float(arguments["query"]))
    return Done("slept", False)


class Fixture:
    """The tools."""

    def __init__(self, made: Rig) -> None:
        self._rig = made
        made.tools.specs.append(spec("pause", EffectKind.READ_ONLY))
        made.tools.behaves["pause"] = pause
        self.surface = Surface(made.runtime, Guard())

    def result(self, journal: Journal) -> CallToolResult:
        """What a tool tells whose run has ended: its task, and the result; a run that failed is a tool that failed."""
        told = self.surface.result(journal)
        content = [TextContent(type="text", text=journal.run.order.task), *told.content]
        return CallToolResult(content=content, is_error=journal.run.state is State.FAILED)

    async def greet(self, name: str) -> str:
        """Greets at once, never as a task."""
        return f"Hello, {name}!"

    async def slow_compute(self, ctx: Context, seconds: float, label: str) -> CallToolResult:
        """Takes a time."""
        return await self._as_run(ctx, f'CALL pause {{"query": "{seconds}"}}\n{label}')

    async def failing_job(self, ctx: Context) -> CallToolResult:
        """Fails, and is of use only as a task."""
        require_client_extension(ctx.request_context, tasks.IDENTIFIER)
        return await self._as_run(ctx, "fail", model="missing")

    async def protocol_error_job(self, ctx: Context) -> CallToolResult:
        """Its run moves away: there is no result here, nor will there be."""
        handle = await self._rig.spawn("move", model="fake-1b")
        await self._rig.runtime.export(handle, 1 << 20)
        return await self._as_task(ctx, handle)

    async def confirm_delete(self, ctx: Context, filename: str) -> CallToolResult:
        """Asks a person."""
        return await self._as_run(ctx, f'CALL delete {{"query": "{filename}"}}')

    async def multi_input(self, ctx: Context) -> CallToolResult:
        """Asks a person two things at the same time."""
        return await self._as_run(ctx, "CALL delete {}\nCALL delete {}", parallel_tool_calls=True)

    async def test_tool_with_task(self, ctx: Context) -> CallToolResult | InputRequiredResult:
        """Asks for a name before it is a task."""
        answer = (ctx.input_responses or {}).get("name")
        if not isinstance(answer, ElicitResult):
            form = ElicitRequestFormParams(message="Your name?", requested_schema=NAME_FORM)
            return InputRequiredResult(input_requests={"name": ElicitRequest(params=form)}, request_state="asked")
        name = (answer.content or {})["name"]
        return await self._as_run(ctx, f"greet {name}")

    async def _as_run(self, ctx: Context, task: str, **arguments: Any) -> CallToolResult:
        spawned = await self._rig.runtime.spawn(SpawnRequest(task, **arguments), "conformance")
        return await self._as_task(ctx, spawned.run.run_id)

    async def _as_task(self, ctx: Context, handle: str) -> CallToolResult:
        if tasks.are_declared(ctx.request_context):
            return tasks.started(handle)
        (journal,) = await self._rig.runtime.await_([handle])
        return self.result(journal)


@contextlib.asynccontextmanager
async def task_tools(folder: pathlib.Path) -> AsyncIterator[str]:
    """A server of these tools while the block runs: its URL."""
    async with rig(folder) as made:
        fixture = Fixture(made)
        extension = tasks.Tasks(made.runtime, fixture.surface.access, fixture.result, keep_s=60.0)
        mcp = MCPServer("conformance", log_level="ERROR", extensions=[extension])
        mcp.add_tool(fixture.greet)
        for tool in (
            fixture.slow_compute,
            fixture.failing_job,
            fixture.protocol_error_job,
            fixture.confirm_delete,
            fixture.multi_input,
            fixture.test_tool_with_task,
        ):
            mcp.add_tool(tool, structured_output=False)
        async with _serving(made, mcp) as url:
            yield url


@contextlib.asynccontextmanager
async def own_tools(folder: pathlib.Path) -> AsyncIterator[str]:
    """The runtime's own server while the block runs: its URL."""
    async with (
        rig(folder) as made,
        _serving(made, mcp_server.build(made.runtime, Guard(), bytes(32), keep_s=60.0)) as url,
    ):
        yield url


@contextlib.asynccontextmanager
async def _serving(made: Rig, mcp: MCPServer) -> AsyncIterator[str]:
    served = Served.of((), (), listens_on="127.0.0.1", has_token=False)
    app = http.build(made.runtime, mcp, "127.0.0.1", Guard(), served, sessions=Sessions(100), session_idle_s=600.0)
    own = listening()
    server = http.Server(http.settings(app))
    serving = asyncio.create_task(server.serve(sockets=[own]))
    try:
        await wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{own.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        await serving
