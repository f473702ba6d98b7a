"""What `bench fanout` measures with: luftpause, two simulated engines and the simulated tool server, as processes.

Lookups always take the same time, and answers always have the same length, so that only the way of working differs.
Must not judge: `bench_fanout` does. Read next: `fanout_arms`.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import aiohttp

from loadgen.ports import free_ports
from loadgen.relay_rig import HOST, READY_WITHIN_S, RigError, Started, Starter, python

MODEL = "fake-1b"
LOOK_INTERVAL_S = 0.1
_ANSWER_WITHIN_S = 1.0
_ALWAYS_LONGER = 10_000
"""Tokens of an answer that no limit of the bench allows: every answer is as long as its limit."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything is."""

    engines: tuple[str, str]
    """OpenAI base URLs."""
    tools: str
    """The tool server's MCP."""
    runtime: str
    """The runtime's MCP."""


@contextlib.asynccontextmanager
async def running(lookup_s: float) -> AsyncIterator[Places]:
    """All of it while the block runs, healthy. Raises RigError. However the block ends, no process is left of it."""
    with tempfile.TemporaryDirectory(prefix="luftpause-bench-") as name, contextlib.ExitStack() as opened:
        start = Starter(pathlib.Path(name), opened)
        one, two, tools, grpc, status, dataplane, runtime, runtime_grpc = free_ports(8)
        pool, servers = start.folder / "pool.toml", start.folder / "tools.toml"
        entry = '[[replica]]\nname = "engine-{0}"\nurl = "http://{1}:{0}"\nmodels = ["{2}"]\n'
        pool.write_text("".join(entry.format(port, HOST, MODEL) for port in (one, two)))
        servers.write_text(f'[[server]]\nname = "fake"\nurl = "http://{HOST}:{tools}/mcp"\n')
        settings = {
            "LUFTPAUSE_POOL": str(pool),
            "LUFTPAUSE_STATE": name,
            "LUFTPAUSE_ENGINE_PORTS": f"{one},{two}",
            "LUFTPAUSE_ENGINE_MODEL": MODEL,
            "LUFTPAUSE_ENGINE_REPLY_TOKENS": str(_ALWAYS_LONGER),
            "LUFTPAUSE_TOOLS_PORT": str(tools),
            "LUFTPAUSE_TOOLS_LOOKUP_S": str(lookup_s),
            "LUFTPAUSE_SCHEDULER_PORT": str(grpc),
            "LUFTPAUSE_SCHEDULER_STATUS_PORT": str(status),
            "LUFTPAUSE_DATAPLANE_PORT": str(dataplane),
            "LUFTPAUSE_DATAPLANE_SCHEDULER": f"{HOST}:{grpc}",
            "LUFTPAUSE_RUNTIME_PORT": str(runtime),
            "LUFTPAUSE_RUNTIME_GRPC_PORT": str(runtime_grpc),
            "LUFTPAUSE_RUNTIME_DATAPLANE": f"http://{HOST}:{dataplane}",
            "LUFTPAUSE_RUNTIME_TOOLS": str(servers),
        }
        modules = {
            "fakes.engine": (one, two),
            "fakes.toolserver": (tools,),
            "scheduler": (status,),
            "dataplane": (dataplane,),
            "runtime": (runtime,),
        }
        parts = [start(module, python(module), None, settings) for module in modules]
        await wait_healthy(parts, [port for ports in modules.values() for port in ports])
        engines = (f"http://{HOST}:{one}/v1", f"http://{HOST}:{two}/v1")
        yield Places(engines, f"http://{HOST}:{tools}/mcp", f"http://{HOST}:{runtime}/mcp")
        for part in parts:
            part.check()


async def wait_healthy(parts: Sequence[Started], ports: Sequence[int]) -> None:
    """Returns once all say that they are healthy. Raises RigError if they do not, or end."""
    deadline = time.monotonic() + READY_WITHIN_S
    limits = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S)
    async with aiohttp.ClientSession(timeout=limits) as session:
        waiting = list(ports)
        while waiting:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"http://{HOST}:{waiting[0]}/health") as response:
                    if response.status == 200:
                        del waiting[0]
                        continue
            for part in parts:
                part.check()
            if time.monotonic() > deadline:
                raise RigError(f"not everything is healthy after {READY_WITHIN_S:.0f} s")
            await asyncio.sleep(LOOK_INTERVAL_S)
