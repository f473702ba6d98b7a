"""`python -m scheduler`: reads the configuration and the pool, serves until SIGTERM or SIGINT, ends within 5 s.

Exit codes: 0 ended by a signal, 1 a wrong setting, pool file or taken port (one line each), or a fault of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sqlite3
import sys
import time
from typing import Any

import uvloop

from common.auth import Guard
from common.garbage import collect_seldom
from common.logs import set_up_logging
from common.pool import PoolError, Replica, load
from common.signals import serve_until_signal
from common.tls import PLAIN, Tls
from common.tracing import Tracer, open_tracer
from scheduler import http, replicas, service
from scheduler.config import SchedulerConfig
from scheduler.host import Host
from scheduler.spend_ledger import SpendLedger

STOP_GRACE_S = 0.2
"""Calls in progress get so long to end by themselves; then they are told that the scheduler is unavailable."""

log = logging.getLogger("scheduler")


def main() -> None:
    """Entry point."""
    SchedulerConfig.arguments("scheduler", __doc__).parse_args()
    config = SchedulerConfig.read()
    set_up_logging(config.log_level)
    if config.pool is None:
        sys.exit("setting LUFTPAUSE_POOL: expected the path of a pool file")
    try:
        pool = load(config.pool)
        for replica in pool.replicas:
            replica.key()
    except PoolError as error:
        sys.exit(str(error))
    guard, tls = config.guard(), config.tls()
    tracer = open_tracer(config, "scheduler")
    collect_seldom()
    code = uvloop.run(
        serve_until_signal(lambda stop: _serve(config, guard, pool.replicas, stop, tls=tls, tracer=tracer))
    )
    if tracer is not None:
        tracer.close()
    sys.exit(code)


async def _serve(
    config: SchedulerConfig,
    guard: Guard,
    pool: tuple[Replica, ...],
    stop: asyncio.Event,
    *,
    tls: Tls = PLAIN,
    tracer: Tracer | None = None,
) -> int:
    """Runs everything until `stop` or a fault; the exit code."""
    # Later than any sequence of a scheduler before this one: 2^20 placements a millisecond are out of reach.
    first_sequence = int(time.time() * 1000) << 20
    host = Host(pool, first_sequence, tracer=tracer, spends=_spend_ledger(config, pool))
    try:
        _check_free(config.host, config.port)
        server, port = await service.start(host, _address(config.host, config.port), guard, tls)
    except (OSError, RuntimeError) as error:
        return _cannot_listen("LUFTPAUSE_SCHEDULER_PORT", config.host, config.port, error)
    try:
        runner, status_port = await http.start(host, config.host, config.status_port, guard, tls)
    except OSError as error:
        await server.stop(None)
        return _cannot_listen("LUFTPAUSE_SCHEDULER_STATUS_PORT", config.host, config.status_port, error)
    if guard.is_open:
        log.warning("event=no_token setting=LUFTPAUSE_TOKEN everybody who reaches the ports is let in")
    log.info("event=listening host=%s port=%d status_port=%d replicas=%d", config.host, port, status_port, len(pool))
    tasks = (
        asyncio.create_task(host.keep_time()),
        asyncio.create_task(replicas.probe_all(pool, host.tell_probe)),
    )
    ends = (asyncio.create_task(stop.wait()), asyncio.create_task(host.failed.wait()))
    everything: tuple[asyncio.Task[Any], ...] = (*tasks, *ends)
    await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
    fault = host.failed.is_set()
    for task in tasks:
        if task.done():
            log.error("event=task_failed", exc_info=task.exception())
            fault = True
    for each in everything:
        each.cancel()
    await asyncio.gather(*everything, return_exceptions=True)
    await asyncio.gather(server.stop(STOP_GRACE_S), runner.cleanup())
    log.info("event=stopped")
    return 1 if fault else 0


def _spend_ledger(config: SchedulerConfig, pool: tuple[Replica, ...]) -> SpendLedger | None:
    """The file of what runs spend and what limits them; None where it cannot be had and no replica has a price."""
    try:
        return SpendLedger(config.state, asyncio.get_running_loop().time)
    except (OSError, sqlite3.Error) as error:
        if any(replica.price for replica in pool):
            sys.exit(f"setting LUFTPAUSE_STATE: the ledger of spend cannot be opened in {config.state}: {error}")
        log.warning("event=no_ledger setting=LUFTPAUSE_STATE deadlines of runs are not kept: %s", error)
        return None


def _check_free(host: str, port: int) -> None:
    """Raises OSError if `port` is taken. gRPC itself would tell so in several lines of its own."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cannot_listen(setting: str, host: str, port: int, error: Exception) -> int:
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else str(error)
    sys.stderr.write(f"cannot listen on {_address(host, port)} ({reason}): change {setting}\n")
    return 1


if __name__ == "__main__":
    main()
