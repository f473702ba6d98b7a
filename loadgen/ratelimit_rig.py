"""What `bench ratelimit` measures with: a simulated provider, alone or behind luftpause, as processes on free ports.

The provider is anew for each arm, with the same seed. Its clock runs faster: windows, answers and tools take the same
part of their usual time. Must not judge: `bench_ratelimit` does. Read next: `ratelimit_arms`.
"""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from loadgen.fanout_rig import wait_healthy
from loadgen.ports import free_ports
from loadgen.relay_rig import HOST, Starter, python

MODEL = "fake-hosted"
PERIOD_S = 60.0
TOKEN_MS = 10.0


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is measured: by default about a minute and a half each way of working."""

    agents: int = 20
    steps: int = 12
    first_tokens: int = 150
    last_tokens: int = 1_000
    """Of the context, which grows from turn to turn."""
    max_tokens: int = 200
    tool_s: float = 1.0
    """Between two turns."""
    window_tokens: int = 6_000
    window_requests: int = 30
    fixed: bool = False
    family: str = "openai"
    speed: float = 20.0
    """How many times faster than usual everything goes."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything is."""

    provider: str
    base: str
    """OpenAI base URL of what agents talk to."""

    async def stats(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        """What the provider served and refused."""
        async with session.get(f"{self.provider}/fake/stats") as answer:
            found: dict[str, Any] = await answer.json()
            return found


@contextlib.asynccontextmanager
async def running(counts: Counts, *, luftpause: bool) -> AsyncIterator[Places]:
    """A provider, with luftpause before it if wanted, while the block runs. Raises RigError."""
    with tempfile.TemporaryDirectory(prefix="luftpause-bench-") as name, contextlib.ExitStack() as opened:
        start = Starter(pathlib.Path(name), opened)
        provider, grpc, status, dataplane = free_ports(4)
        pool = start.folder / "pool.toml"
        pool.write_text(
            f'[[replica]]\nname = "hosted"\nurl = "http://{HOST}:{provider}"\nmodels = ["{MODEL}"]\nlimits = {{}}\n'
        )
        settings = {
            "LUFTPAUSE_PROVIDER_PORT": str(provider),
            "LUFTPAUSE_PROVIDER_MODEL": MODEL,
            "LUFTPAUSE_PROVIDER_WINDOW_TOKENS": str(counts.window_tokens),
            "LUFTPAUSE_PROVIDER_WINDOW_REQUESTS": str(counts.window_requests),
            "LUFTPAUSE_PROVIDER_PERIOD_S": str(PERIOD_S / counts.speed),
            "LUFTPAUSE_PROVIDER_FIXED": str(counts.fixed).lower(),
            "LUFTPAUSE_PROVIDER_FAMILY": counts.family,
            "LUFTPAUSE_PROVIDER_RETRY_AFTER": "ms",
            "LUFTPAUSE_PROVIDER_TOKEN_MS": str(TOKEN_MS / counts.speed),
            "LUFTPAUSE_POOL": str(pool),
            "LUFTPAUSE_STATE": name,
            "LUFTPAUSE_SCHEDULER_PORT": str(grpc),
            "LUFTPAUSE_SCHEDULER_STATUS_PORT": str(status),
            "LUFTPAUSE_DATAPLANE_PORT": str(dataplane),
            "LUFTPAUSE_DATAPLANE_SCHEDULER": f"{HOST}:{grpc}",
        }
        modules = {"fakes.provider": provider}
        if luftpause:
            modules |= {"scheduler": status, "dataplane": dataplane}
        parts = [start(module, python(module), None, settings) for module in modules]
        await wait_healthy(parts, list(modules.values()))
        base = f"http://{HOST}:{dataplane if luftpause else provider}/v1"
        yield Places(f"http://{HOST}:{provider}", base)
        for part in parts:
            part.check()
