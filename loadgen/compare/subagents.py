"""A runtime in front of an arm, whose sub-agents' turns go to it, and the simulated tool server that they call.

The runtime is the same for every arm: what differs is where its turns go. Read next: `contest`, `loadgen.spawning`.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import sys
from collections.abc import AsyncIterator, Mapping

import aiohttp

from loadgen.compare.processes import HOST, body_of, started
from loadgen.ports import free_ports


@contextlib.asynccontextmanager
async def runtime_before(url: str, environment: Mapping[str, str], folder: pathlib.Path) -> AsyncIterator[str]:
    """The MCP address of a runtime while the block runs; its turns go to the origin `url`. Raises ProcessError."""
    tools, port, grpc = free_ports(3)
    servers = folder / "tools.toml"
    servers.write_text(f'[[server]]\nname = "fake"\nurl = "http://{HOST}:{tools}/mcp"\n')
    settings = {
        **environment,
        "LUFTPAUSE_STATE": str(folder / "runtime"),
        "LUFTPAUSE_TOOLS_PORT": str(tools),
        "LUFTPAUSE_RUNTIME_PORT": str(port),
        "LUFTPAUSE_RUNTIME_GRPC_PORT": str(grpc),
        "LUFTPAUSE_RUNTIME_DATAPLANE": url,
        "LUFTPAUSE_RUNTIME_TOOLS": str(servers),
    }
    words = [sys.executable, "-P", "-m"]
    async with (
        aiohttp.ClientSession() as session,
        started("tools", [*words, "fakes.toolserver"], settings, folder) as toolserver,
        started("runtime", [*words, "runtime"], settings, folder) as runtime,
    ):
        await toolserver.wait_ready(functools.partial(body_of, session, f"http://{HOST}:{tools}/health"))
        await runtime.wait_ready(functools.partial(body_of, session, f"http://{HOST}:{port}/health"))
        yield f"http://{HOST}:{port}/mcp"
        runtime.check()
        toolserver.check()
