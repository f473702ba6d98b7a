"""An engine whose answers a test scripts: health, metrics and models, each with its own status, body and delay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web

from tests.servers import web_server


@dataclass
class Answer:
    """What a path answers."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    """Never answers."""


@dataclass
class ScriptedEngine:
    """Change `answers` by path at any time; `asked` are the requests so far: path, Authorization."""

    url: str = ""
    answers: dict[str, Answer] = field(default_factory=lambda: {"/health": Answer()})
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        """Answers any request; 404 where nothing is scripted."""
        self.asked.append((request.path, request.headers.get("Authorization")))
        scripted = self.answers.get(request.path, Answer(404))
        if scripted.hangs:
            await asyncio.Event().wait()
        return web.Response(status=scripted.status, body=scripted.body, headers=scripted.headers)


@contextlib.asynccontextmanager
async def scripted_engine() -> AsyncIterator[ScriptedEngine]:
    """A running engine on a free port."""
    engine = ScriptedEngine()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", engine.answer)
    async with web_server(app, access_log=None, shutdown_timeout=0.1) as engine.url:
        yield engine
