"""An engine on a real socket that does what a script says, for tests of the load: no model, no scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.servers import web_server


@dataclass
class ScriptedEngine:
    """Answers turns; the faults of `script` are used up one a turn, first ones first."""

    script: list[str] = field(default_factory=list)
    """`429`, `503`, `404`, `502`, `break` (mid-stream), `cut` (no [DONE]), `stall` (mid-stream), `error`, `ok`."""
    tokens: int = 4
    calls_tools: bool = False
    """Whether replies are tool calls where the request demands one; the arguments are cut."""
    pause_s: float = 0.0
    """Between two tokens."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    ended_runs: list[str] = field(default_factory=list)
    connections_lost: int = 0
    url: str = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedEngine]:
        """Serves while the block runs."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self._turn)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_delete("/v1/runs/{run}", self._end)
        async with web_server(app, handler_cancellation=True, shutdown_timeout=0.1) as origin:
            self.url = f"{origin}/v1"
            yield self

    def turns_by_run(self) -> Counter[str]:
        """Turns seen, by the run id they named."""
        return Counter(headers["x-luftpause-run-id"] for headers in self.headers)

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "first"}, {"id": "second"}]})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _end(self, request: web.Request) -> web.Response:
        self.ended_runs.append(request.match_info["run"])
        return web.Response(status=204)

    async def _turn(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        act = self.script.pop(0) if self.script else "ok"
        if act.isdecimal():
            return web.json_response(
                {"error": {"message": f"no luck with {act}"}}, status=int(act), headers={"retry-after": "0"}
            )
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._stream(response, body, act)
        except (asyncio.CancelledError, ConnectionResetError):
            self.connections_lost += 1
            raise
        if act == "break" and request.transport is not None:
            request.transport.close()
        return response

    async def _stream(self, response: web.StreamResponse, body: dict[str, Any], act: str) -> None:
        async def send(chunk: dict[str, Any]) -> None:
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

        await send({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        calls = self.calls_tools and body.get("tool_choice") == "required"
        for number in range(self.tokens):
            await send(
                {"choices": [{"index": 0, "delta": _delta(number, len(self.bodies), calls), "finish_reason": None}]}
            )
            await asyncio.sleep(self.pause_s)
        if act == "stall":
            await asyncio.sleep(3600)
        if act == "error":
            await send({"error": {"message": "out of memory"}})
        if act != "ok":
            return
        await send({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "length"}]})
        usage = {"prompt_tokens": 100, "completion_tokens": self.tokens, "prompt_tokens_details": {"cached_tokens": 75}}
        await send({"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")


def _delta(number: int, turn: int, calls: bool) -> dict[str, Any]:
    if not calls:
        return {"content": f"word{number} "}
    first = {"id": f"call-{turn}", "type": "function"} if number == 0 else {}
    function = {"name": "lookup", "arguments": ""} if number == 0 else {"arguments": '{"topic'[number - 1 : number]}
    return {"tool_calls": [{"index": 0, **first, "function": function}]}
