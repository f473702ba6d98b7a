"""A dataplane between a scripted scheduler and a scripted engine. It runs as it really does, on uvloop, in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from common.pool import Pool
from dataplane.app import App
from dataplane.config import DataplaneConfig
from tests.dataplane.raw_client import RawClient, Response
from tests.dataplane.scripted_engine import ScriptedEngine
from tests.dataplane.scripted_scheduler import ScriptedScheduler
from tests.waiting import wait_until


class Rig:
    """The three of them, and clients."""

    def __init__(self, scheduler: ScriptedScheduler, engine: ScriptedEngine) -> None:
        self.scheduler = scheduler
        self.engine = engine
        self.settings: dict[str, Any] = {}
        self.pool = Pool()
        self.app: App | None = None
        self._clients: list[RawClient] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._failure: BaseException | None = None

    async def start(self, **settings: Any) -> None:
        """Starts the dataplane; `settings` are fields of its configuration."""
        config = DataplaneConfig(port=0, scheduler=f"127.0.0.1:{self.scheduler.port}", **settings)

        async def main() -> None:
            self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
            self.app = App(config, self.pool)
            await self.app.serve(self._ended)

        def run() -> None:
            try:
                uvloop.run(main())
            except BaseException as error:  # noqa: BLE001 - raised again by `stop`
                self._failure = error

        self._thread = threading.Thread(target=run)
        self._thread.start()
        await wait_until(lambda: self._failure or (self.app and self.app.address))

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

    async def reported(self, *kinds: str) -> list[str]:
        """Waits until the last turn has the given reports, in this order."""
        await wait_until(lambda: self.scheduler.turns)
        turn_id = self.scheduler.turns[-1].turn_id
        return await wait_until(lambda: self.scheduler.kinds(turn_id) == list(kinds) and list(kinds), what=str(kinds))

    async def stop(self) -> None:
        """Ends everything; raises what the dataplane raised."""
        for client in self._clients:
            client.close()
        if self._loop is not None and self._ended is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
            await asyncio.to_thread(self._thread.join, 10)
            assert not self._thread.is_alive(), "the dataplane does not end"
        if self._failure is not None:
            raise self._failure


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A scheduler and an engine that listen; the test starts the dataplane."""
    scheduler, engine = ScriptedScheduler(), ScriptedEngine()
    await scheduler.start()
    await engine.start()
    scheduler.url = f"http://127.0.0.1:{engine.port}"
    made = Rig(scheduler, engine)
    try:
        yield made
    finally:
        await made.stop()
        await scheduler.stop()
        await engine.stop()
