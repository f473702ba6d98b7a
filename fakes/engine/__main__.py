"""`python -m fakes.engine`: an engine on each of `LUFTPAUSE_ENGINE_PORTS`, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import sys

from common.logs import set_up_logging
from common.open_files import allow_many
from common.signals import serve_until_signal
from fakes.engine.config import EngineConfig
from fakes.engine.server import EngineServer


async def serve(config: EngineConfig, stop: asyncio.Event) -> int:
    """Runs until `stop`: the process's exit code."""
    servers: list[EngineServer] = []
    try:
        for port in config.ports:
            servers.append(EngineServer(config, port))
            try:
                await servers[-1].start()
            except OSError as error:
                print(f"LUFTPAUSE_ENGINE_PORTS={port}: {error.strerror or error}", file=sys.stderr)
                return 1
        ports = ",".join(str(server.port) for server in servers)
        simulated = f"model={config.model} profile={config.profile} metrics={config.metrics}"
        print(f"event=listening service=engine host={config.host} ports={ports} {simulated}", flush=True)
        await _until_stopped(stop, servers)
    finally:
        await asyncio.gather(*(server.finish() for server in servers))
    return 0


async def _until_stopped(stop: asyncio.Event, servers: list[EngineServer]) -> None:
    """Waits for `stop`; an engine that breaks ends the process with its error rather than let requests hang."""
    stopped = asyncio.create_task(stop.wait())
    driving = [server.driving for server in servers if server.driving is not None]
    done, _ = await asyncio.wait([stopped, *driving], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    for task in done:
        task.result()


def main() -> int:
    """Reads the configuration and serves: the exit code."""
    EngineConfig.arguments("fakes.engine", __doc__).parse_args()
    config = EngineConfig.read()
    set_up_logging(config.log_level)
    allow_many()
    try:
        import uvloop  # noqa: PLC0415  (faster where it is installed, not needed)
    except ImportError:
        run = asyncio.run
    else:
        run = uvloop.run
    return run(serve_until_signal(lambda stop: serve(config, stop)))


if __name__ == "__main__":
    sys.exit(main())
