"""`python -m fakes.toolserver`: an MCP server with tools to test with, over Streamable HTTP at `/mcp` or `--stdio`.

What is real: the protocol (the official SDK, both eras), the hints of the tools, the time that searches take, the
count of effects. What is not: what the searches find is invented; notes live in memory and are gone with the process;
idempotency keys are counted and not honoured (see `tool_effects`). `GET /effects` tells the counts; where the process
itself may die, `LUFTPAUSE_TOOLS_LEDGER` names a file that gets a line for every effect, right when it happens.
Must not be used for anything but tests and demonstrations.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pathlib
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any, Literal

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field
from pydantic_settings import SettingsConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from common.config import ServiceConfig
from common.signals import serve_until_signal
from fakes.tool_effects import NO_KEY, Call, Effects, delay_s

KEY_META = "io.luftpause/idempotencyKey"
_GRACE_S = 2
"""How long open streams have when the server is told to end."""


class ToolServerConfig(ServiceConfig):
    """The fake tool server's configuration."""

    model_config = SettingsConfigDict(env_prefix="LUFTPAUSE_TOOLS_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: int = Field(default=9100, ge=0, le=65535, description="Port; 0: any that is free")
    seed: int = Field(default=0, description="Seed of the delays")
    lookup_s: float | None = Field(
        default=None, ge=0, description="Time that every `lookup` takes, in seconds; unset: seeded, about 1 s"
    )
    deep_search_s: float | None = Field(
        default=None, ge=0, description="Time that every `deep_search` takes, in seconds; unset: seeded, about 4 s"
    )
    note_s: float = Field(
        default=0.0, ge=0, description="Time that the note tools take before their effect, in seconds"
    )
    ledger: pathlib.Path | None = Field(
        default=None, description="File that gets a JSON line for every effect; unset: counts are only in memory"
    )
    fault: Literal["none", "die-before", "die-after", "hang-before", "hang-after"] = Field(
        default="none", description="What goes wrong: the process dies, or a call hangs, before or after its effect"
    )
    fault_tool: str | None = Field(default=None, description="Tool whose calls count for the fault; unset: every tool")
    fault_at: int = Field(default=1, ge=1, description="The call of a process that has the fault, counted from 1")


class Tools:
    """The tools of one process."""

    def __init__(self, config: ToolServerConfig) -> None:
        self.config = config
        self.effects = Effects()
        self._counted = 0

    async def run(self, tool: str, arguments: dict[str, Any], ctx: Context) -> str:
        """Runs a call: delay, effect, fault. Raises ToolError for what cannot be done."""
        meta: Any = ctx.request_context.meta or {}
        headers = ctx.headers or {}
        key = str(meta.get(KEY_META, NO_KEY))
        call = Call(tool, key, arguments, meta.get("traceparent"), headers.get("traceparent"))
        self.effects.began(call)
        fault = self._fault(tool)
        try:
            await asyncio.sleep(self._delay_s(call))
            await _fail(fault == "die-before", fault == "hang-before")
            try:
                answer = self.effects.do(call)
            except KeyError:
                raise ToolError(f"there is no note '{arguments['name']}'") from None
            if self.config.ledger is not None and tool.endswith("_note"):
                _append(self.config.ledger, {"key": key, "tool": tool, "arguments": arguments})
            await _fail(fault == "die-after", fault == "hang-after")
        except asyncio.CancelledError:
            call.state = "cancelled"
            raise
        call.state = "done"
        return answer

    def _fault(self, tool: str) -> str:
        config = self.config
        if config.fault_tool not in (None, tool):
            return "none"
        self._counted += 1
        return config.fault if self._counted == config.fault_at else "none"

    def _delay_s(self, call: Call) -> float:
        if call.tool.endswith("_note"):
            return self.config.note_s
        fixed = self.config.lookup_s if call.tool == "lookup" else self.config.deep_search_s
        return delay_s(self.config.seed, call.tool, call.key, str(call.arguments["query"])) if fixed is None else fixed


async def _fail(dies: bool, hangs: bool) -> None:
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    if hangs:
        await asyncio.Event().wait()


def _append(path: pathlib.Path, record: dict[str, Any]) -> None:
    # Opened anew for each line: no line may be lost in a buffer when the process is killed.
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def build(config: ToolServerConfig) -> MCPServer:
    """The MCP server, with `/effects` and `/health` beside it."""
    tools = Tools(config)
    server = MCPServer("luftpause-fake-tools", version="1", log_level="WARNING")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    async def lookup(query: str, ctx: Context) -> str:
        """Looks up a short fact about something."""
        return await tools.run("lookup", {"query": query}, ctx)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    async def deep_search(query: str, ctx: Context) -> str:
        """Searches thoroughly and slowly for everything about something."""
        return await tools.run("deep_search", {"query": query}, ctx)

    @server.tool(structured_output=False)
    async def add_note(text: str, ctx: Context) -> str:
        """Adds a new note; called twice, it adds two."""
        return await tools.run("add_note", {"text": text}, ctx)

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True), structured_output=False)
    async def set_note(name: str, text: str, ctx: Context) -> str:
        """Sets the text of the note of that name."""
        return await tools.run("set_note", {"name": name, "text": text}, ctx)

    @server.tool(annotations=ToolAnnotations(destructive_hint=True), structured_output=False)
    async def delete_note(name: str, ctx: Context) -> str:
        """Deletes the note of that name for good."""
        return await tools.run("delete_note", {"name": name}, ctx)

    async def effects(_request: Request) -> Response:
        return JSONResponse(tools.effects.told())

    async def health(_request: Request) -> Response:
        return PlainTextResponse("ok")

    server.custom_route("/effects", methods=["GET"])(effects)
    server.custom_route("/health", methods=["GET"])(health)
    return server


class _Server(uvicorn.Server):
    """uvicorn without its own ideas about signals: a second one would end it in the middle of its end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


async def serve(config: ToolServerConfig, stop: asyncio.Event) -> int:
    """Serves HTTP until `stop`: the process's exit code."""
    listening = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((config.host, config.port))
    except OSError as error:
        listening.close()
        print(f"LUFTPAUSE_TOOLS_PORT={config.port}: {error.strerror or error}", file=sys.stderr)
        return 1
    app = build(config).streamable_http_app(host=config.host)
    settings = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE_S)
    port = listening.getsockname()[1]
    listening.listen(1024)
    print(f"event=listening service=tools host={config.host} port={port}", flush=True)
    server = _Server(settings)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving
    return 0


def main(arguments: list[str]) -> int:
    """Serves over HTTP, or with `--stdio` over standard input and output: the exit code."""
    logging.basicConfig(level=logging.WARNING, format="level=%(levelname)s logger=%(name)s %(message)s")
    parser = ToolServerConfig.arguments("fakes.toolserver", __doc__)
    parser.add_argument("--stdio", action="store_true", help="serve over standard input and output, not HTTP")
    over_stdio = parser.parse_args(arguments).stdio
    config = ToolServerConfig.read()
    if over_stdio:
        asyncio.run(build(config).run_stdio_async())
        return 0
    return asyncio.run(serve_until_signal(lambda stop: serve(config, stop)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
