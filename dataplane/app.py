"""One dataplane process: puts the parts together, listens, and ends cleanly. Workers and their parent are in
`workers`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import sys
from collections.abc import Awaitable, Callable

import uvloop

from common.garbage import collect_seldom
from common.pool import Pool, PoolError, load
from common.signals import serve_until_signal
from common.tracing import open_tracer
from dataplane.config import DataplaneConfig
from dataplane.decide import Decisions
from dataplane.fresh_ids import id_source
from dataplane.held import HeldMax
from dataplane.metrics import Snapshot
from dataplane.proxy import CHECK_S, Proxy
from dataplane.routes import Routes
from dataplane.scheduler_client import SchedulerClient
from dataplane.server import Server

log = logging.getLogger(__name__)

BACKLOG = 4096
"""Connections that may wait to be accepted: a fleet of agents that starts at once."""
SWEEP_S = 1.0
END_S_MAX = 2.0
"""How long turns may go on after the signal to end; the rest is broken off."""
DRAIN_S_MAX = 1.0
"""How long the last reports may take."""

UNSENT_BYTES_MAX = 32 * 1024
"""Most bytes that the kernel keeps for a client beyond what that may receive at the moment."""

Gather = Callable[[Snapshot], Awaitable[Snapshot]]


class PortTakenError(Exception):
    """The address cannot be listened on; the text names the setting."""


class App:
    """The parts of one process, for as long as its event loop runs."""

    def __init__(self, config: DataplaneConfig, pool: Pool, gather: Gather | None = None) -> None:
        self._config = config
        self._gather = gather
        tls = config.tls()
        self._tls = tls.server_context()
        self._scheduler = SchedulerClient(config.scheduler, id_source("dataplane")(), config.token_text, tls)
        self._tracer = open_tracer(config, "dataplane")
        self._proxy = Proxy(self._scheduler, pool, self._tracer)
        self.address: tuple[str, int] | None = None
        """Where it listens, once it does."""
        held_max = HeldMax(config.held_max, config.held_bytes_max)
        routes = Routes(self._scheduler, Decisions(self._proxy), config.guard(), held_max, self._snapshot)
        self._server = Server(self._proxy, routes, config)

    async def serve(self, ended: asyncio.Event, listen_on: socket.socket | None = None) -> None:
        """Listens until `ended` is set, on the configured address or on `listen_on`. Raises PortTakenError."""
        loop = asyncio.get_running_loop()
        try:
            if listen_on is not None:
                listening = await loop.create_server(
                    self._server.connect, sock=listen_on, backlog=BACKLOG, ssl=self._tls
                )
            else:
                listening = await loop.create_server(
                    self._server.connect, self._config.host, self._config.port, backlog=BACKLOG, ssl=self._tls
                )
        except OSError as error:
            raise port_problem(self._config, error) from None
        for each in listening.sockets:
            _keep_little_unsent(each)
        host, port = self.address = listening.sockets[0].getsockname()[:2]
        if listen_on is None:
            log.info("dataplane listening address=%s:%d workers=1", host, port)
        scheduler = asyncio.create_task(self._scheduler.run())
        sweeper = asyncio.create_task(self._sweep())
        try:
            await ended.wait()
        finally:
            listening.close()
            await self._let_go()
            for task in (scheduler, sweeper):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)

    def snapshot(self) -> Snapshot:
        """This process's own numbers."""
        metrics = self._proxy.metrics
        metrics.scheduler_streams = self._scheduler.epoch
        metrics.spans_lost = self._tracer.lost if self._tracer is not None else 0
        return metrics.snapshot(
            held=self._scheduler.held,
            in_flight=self._scheduler.in_flight,
            runs=self._scheduler.runs,
            connections=len(self._server.connections),
            scheduler_connected=int(self._scheduler.connected),
            tasks=len(asyncio.all_tasks()),
        )

    async def _snapshot(self) -> Snapshot:
        own = self.snapshot()
        return await self._gather(own) if self._gather is not None else own

    async def _sweep(self) -> None:
        """Each second and each minute: what has taken too long."""
        loop = asyncio.get_running_loop()
        checked_at = loop.time()
        while True:
            await asyncio.sleep(SWEEP_S)
            now = loop.time()
            self._proxy.sweep(now)
            due = now - checked_at >= CHECK_S
            if due:
                checked_at = now
            for connection in list(self._server.connections):
                connection.sweep(now)
                if due:
                    connection.check()

    async def _let_go(self) -> None:
        """Turns at an engine may end; then every connection is closed and the scheduler is told."""
        await self._scheduler.wait_for_turns(END_S_MAX)
        for connection in list(self._server.connections):
            connection.end()
        self._proxy.close()
        await self._scheduler.drain(DRAIN_S_MAX)


def _keep_little_unsent(listening: socket.socket) -> None:
    """The kernel takes little of what a client does not read, so that it stays here, where it is seen. The connections
    inherit it."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:  # not all systems have it
        listening.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES_MAX)


def read_pool(config: DataplaneConfig) -> Pool:
    """The pool file, or an empty pool where none is configured. Ends the process with one line where it is wrong."""
    try:
        pool = load(config.pool) if config.pool else Pool()
        for replica in pool.replicas:
            replica.key()
    except PoolError as error:
        sys.exit(str(error))
    return pool


def port_problem(config: DataplaneConfig, error: OSError) -> PortTakenError:
    """One line that names the setting to change."""
    reason = "is taken" if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
    return PortTakenError(
        f"dataplane cannot listen on {config.host}:{config.port}: it {reason}; "
        "set LUFTPAUSE_DATAPLANE_PORT (or LUFTPAUSE_DATAPLANE_HOST) to another one"
    )


def run(serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs `serve` until SIGTERM or SIGINT sets its event. Ends the process with one line where the port is taken."""

    async def main() -> None:
        collect_seldom()
        await serve_until_signal(serve)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except PortTakenError as problem:
        sys.exit(str(problem))
