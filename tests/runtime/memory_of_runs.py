"""Prints how many KiB of memory a run takes that waits on a tool; a process of its own in the tests.

PYTHONPATH=. python -m tests.runtime.memory_of_runs FOLDER 1000
"""

from __future__ import annotations

import asyncio
import functools
import gc
import pathlib
import sys

from tests.runtime.rig import Hold, rig
from tests.waiting import wait_until


def resident_kib() -> int:
    """Resident memory of this process (Linux)."""
    gc.collect()
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


async def measure(folder: pathlib.Path, number: int) -> float:
    """KiB a run. Each has a task of 2 KB and waits on its first tool call."""
    async with rig(folder, speed=1000.0) as r:
        hold = Hold()
        r.tools.behaves["lookup"] = hold

        def are_calling(runs: int) -> bool:
            return r.times("lookup") >= 50 + runs

        task = "CALL lookup {}\n" + "x" * 2048
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
    print(f"{asyncio.run(measure(pathlib.Path(sys.argv[1]), int(sys.argv[2]))):.1f}")
