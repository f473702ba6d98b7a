"""A dataplane between a scripted scheduler and a scripted engine, all in the test's event loop, which is uvloop's."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from common.pool import Pool
from dataplane.app import App
from dataplane.config import DataplaneConfig
from dataplane.proxy import Turn
from dataplane.request import Request
from dataplane.tickets import Ticket
from dataplane.whole_turn import WholeTurn
from tests.dataplane.raw_client import RawClient, Response
from tests.dataplane.scripted_engine import ScriptedEngine
from tests.dataplane.scripted_scheduler import ScriptedScheduler
from tests.waiting import wait_until


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The dataplane is tested on the loop it runs on."""
    return {"uvloop": uvloop.new_event_loop}


def left_behind() -> dict[str, int]:
    """How many parts of requests there are, by type."""
    parts = (Request, Turn, Ticket, WholeTurn)
    return dict(Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, parts)))


class Rig:
    """The three of them, and clients."""

    def __init__(self, scheduler: ScriptedScheduler, engine: ScriptedEngine) -> None:
        self.scheduler = scheduler
        self.engine = engine
        self.settings: dict[str, Any] = {}
        self.pool = Pool()
        self.app: App | None = None
        self._clients: list[RawClient] = []
        self._ended = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def start(self, **settings: Any) -> None:
        """Starts the dataplane; `settings` are fields of its configuration."""
        config = DataplaneConfig(port=0, scheduler=f"127.0.0.1:{self.scheduler.port}", **settings)
        self.app = app = App(config, self.pool)
        self._serving = asyncio.create_task(app.serve(self._ended))
        await wait_until(lambda: app.address)

    async def connected(self) -> None:
        """Waits until the scheduler has been told everything."""
        await wait_until(lambda: self.app is not None and self.app.snapshot()["gauges"]["scheduler_connected"])

    async def client(self) -> RawClient:
        """A new connection to the dataplane."""
        assert self.app is not None
        assert self.app.address is not None
        client = await RawClient.connect(self.app.address[1])
        self._clients.append(client)
        return client

    async def ask(self, data: bytes) -> Response:
        """One request on a connection of its own."""
        return await (await self.client()).ask(data)

    async def reported(self, *kinds: str) -> None:
        """Waits until the last turn has the given reports, in this order."""
        await wait_until(lambda: self.scheduler.turns)
        turn_id = self.scheduler.turns[-1].turn_id
        await wait_until(lambda: self.scheduler.kinds(turn_id) == list(kinds), what=str(kinds))

    async def reported_any(self, kind: str) -> None:
        """Waits until any turn has a report of this kind."""
        await wait_until(lambda: any(kind in self.scheduler.kinds(turn.turn_id) for turn in self.scheduler.turns))

    async def stop(self) -> None:
        """Ends everything; raises what the dataplane raised."""
        for client in self._clients:
            client.close()
        self._ended.set()
        if self._serving is not None:
            async with asyncio.timeout(10):
                await self._serving


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A scheduler and an engine that listen; the test starts the dataplane. Nothing of its requests may be left behind
    for a look at cycles, which comes seldom (`common.garbage`): bodies are large."""
    gc.disable()
    scheduler, engine = ScriptedScheduler(), ScriptedEngine()
    await scheduler.start()
    await engine.start()
    scheduler.url = f"http://127.0.0.1:{engine.port}"
    made = Rig(scheduler, engine)
    try:
        yield made
    finally:
        await made.stop()
        await made.scheduler.stop()
        await engine.stop()
        try:
            await wait_until(lambda: not left_behind(), what="all requests are gone")
        finally:
            gc.enable()
            gc.collect()
