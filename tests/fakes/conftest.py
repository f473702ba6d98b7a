"""Engines in the test's own event loop, on free ports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import openai
import pytest

from fakes.engine.config import EngineConfig
from fakes.engine.server import EngineServer
from tests.waiting import wait_until

StartEngine = Callable[..., Awaitable["RunningEngine"]]


class RunningEngine:
    """An engine that listens, and clients of it."""

    def __init__(self, server: EngineServer, config: EngineConfig, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.engine = server.engine
        self.http = http
        self.url = f"http://127.0.0.1:{server.port}"
        key = config.key.get_secret_value() if config.key else "none"
        self.client = openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=20)

    async def json(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """Status and decoded body of one request."""
        async with self.http.request(method, self.url + path, json=body, **options) as response:
            return response.status, await response.json()

    async def script(self, *faults: dict[str, Any]) -> None:
        """Scripts faults."""
        status, answer = await self.json("POST", "/fake/faults", list(faults))
        assert status == 200, answer

    async def stats(self) -> dict[str, Any]:
        """The ledger."""
        return dict((await self.json("GET", "/fake/stats"))[1])

    @property
    def blocks_used(self) -> int:
        """Blocks in use."""
        return self.engine.cache.blocks - self.engine.cache.unused


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for an awaitable condition."""
    told: Callable[[], bool | Awaitable[bool]] = condition
    await wait_until(told)


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    """Starts engines with the given settings, twenty times as fast as their profile; ends them after the test."""
    started: list[RunningEngine] = []
    async with aiohttp.ClientSession() as http:

        async def start(**settings: Any) -> RunningEngine:
            config = EngineConfig(**{"speed": 20.0, **settings})
            server = EngineServer(config, 0)
            await server.start()
            started.append(RunningEngine(server, config, http))
            return started[-1]

        yield start
        for running in started:
            await running.client.close()
            await running.server.finish()
            if running.server.driving is not None and not running.server.driving.cancelled():
                running.server.driving.result()


@pytest.fixture
async def engine(start_engine: StartEngine) -> RunningEngine:
    """One engine with its defaults."""
    return await start_engine()
