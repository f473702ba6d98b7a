"""Prints how many KiB of memory a run takes that waits on a tool; a process of its own in the tests.

PYTHONPATH=. python -m tests.runtime.memory_of_runs FOLDER 1000          the tool is in this process
PYTHONPATH=. python -m tests.runtime.memory_of_runs FOLDER 1000 http     it is an MCP server's, in another process
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import pathlib
import sys
from collections.abc import AsyncIterator
from typing import Any, Literal

from loadgen.ports import free_ports
from runtime.tool_config import Server
from runtime.tool_specs import Outcome
from tests.runtime.rig import Behaviour, Hold, rig
from tests.runtime.tool_servers import opened
from tests.stack import started, wait_healthy
from tests.waiting import wait_until


def resident_kib(process: int | Literal["self"] = "self") -> int:
    """Resident memory of a process (Linux)."""
    if process == "self":
        gc.collect()
    lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@contextlib.asynccontextmanager
async def http_tool(folder: pathlib.Path) -> AsyncIterator[Behaviour]:
    """Calls of the tool `lookup` of a server of its own, which takes longer than anybody waits."""
    (port,) = free_ports(1)
    settings = {"LUFTPAUSE_TOOLS_PORT": str(port), "LUFTPAUSE_TOOLS_LOOKUP_S": "3600"}
    with started("fakes.toolserver", settings, folder / "tools.log") as server:
        wait_healthy(server, (f"http://127.0.0.1:{port}/health",))
        async with opened(Server("web", url=f"http://127.0.0.1:{port}/mcp", timeout_s=3600.0)) as toolbox:
            tool = toolbox.find("lookup")
            assert tool is not None

            async def call(arguments: dict[str, Any], key: str) -> Outcome:
                return await toolbox.call(tool, arguments, key=key, traceparent=None, timeout_s=None)

            yield call


async def measure(folder: pathlib.Path, number: int, *, over_http: bool) -> float:
    """KiB a run. Each has a task of 2 KB and waits on its first tool call."""
    async with (
        rig(folder, speed=1000.0) as r,
        http_tool(folder) if over_http else contextlib.nullcontext(Hold()) as behaviour,
    ):
        r.tools.behaves["lookup"] = behaviour

        def are_calling(runs: int) -> bool:
            return r.times("lookup") >= 50 + runs

        task = 'CALL lookup {"query": "x"}\n' + "x" * 2048
        # What the first runs need once is not theirs.
        for _ in range(50):
            await r.spawn(task)
        await wait_until(functools.partial(are_calling, 0), 60)
        before = resident_kib()
        # One after another: the engine, which is in this process too, would count its connections else.
        for count in range(1, number + 1):
            await r.spawn(task)
            await wait_until(functools.partial(are_calling, count - 8), 60)
        await wait_until(functools.partial(are_calling, number), 60)
        taken = (resident_kib() - before) / number
        for journal in r.runtime.tree:
            if journal.run.parent is None:
                await r.runtime.cancel(journal.run.run_id)
    return taken


if __name__ == "__main__":
    print(f"{asyncio.run(measure(pathlib.Path(sys.argv[1]), int(sys.argv[2]), over_http='http' in sys.argv)):.1f}")
