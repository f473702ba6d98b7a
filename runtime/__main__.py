"""`python -m runtime`: reads the configuration, takes the state folder, serves until SIGTERM or SIGINT, ends in 5 s.

Unfinished runs stay in their journals and go on after the next start. Exit codes: 0 ended by a signal, 1 a wrong
setting, a taken port or state folder, a journal that cannot be read (one line each), or an end that was cut short (its
stacks follow).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Coroutine
from typing import Any

from common.auth import Guard
from common.logs import set_up_logging
from common.signals import serve_until_signal
from common.tls import Tls
from common.tracing import open_tracer
from runtime import client_log, grpc_server, http, mcp_server
from runtime.config import RuntimeConfig
from runtime.llm import Model
from runtime.lock import LockedError, holding
from runtime.origins import Served
from runtime.records import JournalError
from runtime.service import Runtime
from runtime.sessions import Sessions
from runtime.sqlite_store import STORE_FILE, SqliteStore
from runtime.store import ConflictError, Store, StoreError
from runtime.tool_config import Server as ToolServer
from runtime.tool_config import ToolConfigError, load
from runtime.toolbox import Toolbox

STATE_KEY = "mcp-state-key"
"""Key of the store's value that seals what MCP clients hold of a question."""

STOP_S = 3.2
"""From the signal until everything has ended; a loaded machine has the rest of 5 s."""
TOOLS_S = 1.5
"""What the tool servers' children have of that at least, whatever else does not end."""
CUT_S = 4.7
"""From the signal until the process ends wherever it is. Everything that matters is durable long before."""

log = logging.getLogger("runtime")


class CannotStartError(Exception):
    """The text says why, in a line, and which setting to change."""


def main() -> int:
    """Serves: the process's exit code."""
    RuntimeConfig.arguments("runtime", __doc__).parse_args()
    config = RuntimeConfig.read()
    set_up_logging(config.log_level)
    for chatty in ("httpx2", "mcp", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    client_log.shorten()
    try:
        import uvloop  # noqa: PLC0415  (faster where it is installed, not needed)
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    guard, tls = config.guard(), config.tls()
    try:
        servers: tuple[ToolServer, ...] = () if config.tools is None else load(config.tools)
        with holding(config.state):
            run(_serve(config, guard, tls, servers))
    except (CannotStartError, ToolConfigError, LockedError, StoreError, JournalError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"LUFTPAUSE_STATE={config.state}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


class _Stop:
    """That the process is to end, and the one deadline of all that ends with it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        """To be set by whoever hears of it."""
        self._begun_s: float | None = None

    def begin(self) -> None:
        """The process is told to end: the time runs."""
        if self._begun_s is None:
            self._begun_s = time.monotonic()
            # By a thread that needs neither the event loop nor the interpreter.
            faulthandler.dump_traceback_later(CUT_S, exit=True)

    async def may_follow(self, work: Coroutine[Any, Any, None]) -> bool:
        """Does `work`, and gives it up when the process is told to end; whether it may go on."""
        working, stopping = asyncio.create_task(work), asyncio.create_task(self.begun.wait())
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait([working, stopping])
        if not working.cancelled():
            working.result()
        return not self.begun.is_set()

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return STOP_S - (time.monotonic() - self._begun_s if self._begun_s is not None else 0.0)


async def _serve(config: RuntimeConfig, guard: Guard, tls: Tls, servers: tuple[ToolServer, ...]) -> None:
    stop = _Stop()

    async def serve(told: asyncio.Event) -> None:
        stop.begun = told
        await _serve_until(stop, config, guard, tls, servers)

    await serve_until_signal(serve, stop.begin)


async def _serve_until(
    stop: _Stop, config: RuntimeConfig, guard: Guard, tls: Tls, servers: tuple[ToolServer, ...]
) -> None:
    async with contextlib.AsyncExitStack() as opened:
        listening = _listen(config)
        opened.callback(listening.close)
        store = await SqliteStore.open(config.state / STORE_FILE)
        opened.push_async_callback(store.close)
        toolbox = Toolbox(servers)
        opened.push_async_callback(lambda: toolbox.close(stop.left_s))
        if not await stop.may_follow(toolbox.start()):
            return
        model = await opened.enter_async_context(Model(config.dataplane, config.token_text, tls))
        tracer = open_tracer(config, "runtime")
        if tracer is not None:
            opened.push_async_callback(asyncio.to_thread, tracer.close)
        runtime = await Runtime.start(
            store,
            model,
            toolbox,
            default_model=config.model,
            keep_s=config.keep_s,
            tools_wait_s=config.tools_wait_s,
            tracer=tracer,
        )
        opened.push_async_callback(runtime.close)
        grpc_port = await opened.enter_async_context(
            grpc_server.serving(runtime, config.host, config.grpc_port, guard, tls)
        )
        if guard.is_open:
            log.warning("event=no_token setting=LUFTPAUSE_TOKEN everybody who reaches the ports is let in")
        port = listening.getsockname()[1]
        log.info("event=listening host=%s port=%d grpc_port=%d", config.host, port, grpc_port)
        mcp = mcp_server.build(runtime, guard, await _state_key(store), config.keep_s)
        app = http.build(
            runtime,
            mcp,
            config.host,
            guard,
            _served(config, guard),
            sessions=Sessions(config.sessions_max),
            session_idle_s=config.session_idle_s,
        )
        await _serve_http(app, listening, tls, stop, runtime)
    log.info("event=stopped")


def _listen(config: RuntimeConfig) -> socket.socket:
    """Listens for HTTP, and looks whether gRPC can, before any run goes on: a taken port must interrupt none."""
    try:
        grpc_server.check_free(config.host, config.grpc_port)
    except OSError as error:
        raise CannotStartError(f"LUFTPAUSE_RUNTIME_GRPC_PORT={config.grpc_port}: {_reason(error)}") from None
    listening = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((config.host, config.port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise CannotStartError(f"LUFTPAUSE_RUNTIME_PORT={config.port}: {_reason(error)}") from None
    return listening


async def _serve_http(app: http.App, listening: socket.socket, tls: Tls, stop: _Stop, runtime: Runtime) -> None:
    """Serves until `stop`; then streams and runs are stopped at the same time."""
    server = http.Server(http.settings(app, tls))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    stopping = asyncio.create_task(stop.begun.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await runtime.close()
    if not (await asyncio.wait([serving], timeout=max(stop.left_s - TOOLS_S, 0.0)))[0]:
        log.error("event=late what=http")
    elif not serving.cancelled():
        serving.result()


def _served(config: RuntimeConfig, guard: Guard) -> Served:
    return Served.of(config.hosts, config.origins, listens_on=config.host, has_token=not guard.is_open)


async def _state_key(store: Store) -> bytes:
    """The key of this state folder, made at the first start."""
    with contextlib.suppress(ConflictError):
        await store.commit(puts={STATE_KEY: secrets.token_bytes(32)}, expects={STATE_KEY: None})
    key = await store.get(STATE_KEY)
    assert key is not None
    return key


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    with contextlib.suppress(OSError):  # nobody reads them any more
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    # Nothing is open any more. To take all modules apart, as the interpreter would, takes half a second of a processor,
    # which on a busy machine are the last seconds that there are.
    os._exit(code)
