"""An engine whose every reply calls the tool that the task names, and that counts requests from outside."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
from collections.abc import AsyncIterator

from aiohttp import web

from tests.servers import web_server


class CountingEngine:
    """Of one test."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: collections.Counter[str] = collections.Counter()
        """By run."""

    async def reply(self, request: web.Request) -> web.Response:
        """A reply after a moment, with a call of what the task says: a tool's name and its arguments."""
        self.requests[request.headers["x-luftpause-run-id"]] += 1
        asked = await request.json()
        await asyncio.sleep(0.05)
        name, _, arguments = asked["messages"][0]["content"].partition(" ")
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return web.Response(text=json.dumps({"choices": [choice], "usage": {}}), content_type="application/json")

    async def models(self, _request: web.Request) -> web.Response:
        """The model."""
        return web.json_response({"data": [{"id": "m"}]})

    async def end(self, _request: web.Request) -> web.Response:
        """Nothing is remembered of runs."""
        return web.Response(status=204)


@contextlib.asynccontextmanager
async def counting_engine() -> AsyncIterator[CountingEngine]:
    """A served one."""
    made = CountingEngine()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.reply)
    app.router.add_get("/v1/models", made.models)
    app.router.add_delete("/v1/runs/{run}", made.end)
    async with web_server(app, shutdown_timeout=1) as made.url:
        yield made
