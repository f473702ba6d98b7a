"""`./luftpause bench fanout`: sub-agents together, against one after another, and against the same without luftpause.

What waits is a tool; nothing waits for another. So together they should take little longer than the longest of them,
and luftpause between them and the engines should cost next to nothing. The simulated engines keep the pace of a
device, so seconds are comparable on any machine that is not busy. Read next: `fanout_arms` (what is compared).
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from loadgen.bench_command import holds, perform, verdict
from loadgen.fanout_arms import direct, fan_out, one_by_one, tasks
from loadgen.fanout_rig import running

SPEEDUP_MIN = 5.0
"""Over one after another: five was measured on a laptop's GPU, where 16 agents share the work of two engines."""
OVER_DIRECT_MAX = 1.1
"""Over the fan-out without luftpause: who fans out pays at most a tenth for durability and scheduling."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is measured. The usual counts take about two and a half minutes, most of it one after another."""

    agents: int = 16
    tokens: int = 2_800
    """Of a task."""
    lookup_s: float = 2.0
    """What every tool call takes, seconds."""
    repeats: int = 3
    """Of both fan-outs, in turns; one after another is measured once."""


async def measure(counts: Counts, tell: Callable[[str], None]) -> dict[str, Any]:
    """The report; see `report`. `tell` hears what is done now, `steps(counts)` times. Raises RigError."""
    load = os.getloadavg()[0]
    together: list[float] = []
    without: list[float] = []
    tell("starting")
    async with running(counts.lookup_s) as places:
        seeds = iter(range(1, 3 * (counts.repeats + 1)))

        def fresh(number: int = counts.agents) -> list[Any]:
            # Engines remember texts that they have seen, so no two measurements share them.
            return tasks(number, counts.tokens, next(seeds))

        for arm in (fan_out, direct):  # the first ones open connections
            await arm(places, fresh(2))
        for _ in range(counts.repeats):
            tell("fan-out of luftpause")
            together.append(await fan_out(places, fresh()))
            tell("fan-out without it")
            without.append(await direct(places, fresh()))
        tell("one after another")
        alone_s = await one_by_one(places, fresh())
    return {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "load": round(load, 2),
        "counts": asdict(counts),
        **report(together, without, alone_s),
    }


def steps(counts: Counts) -> int:
    """How many steps `measure` tells of."""
    return 2 + 2 * counts.repeats


def report(fan_out_s: list[float], direct_s: list[float], one_by_one_s: float) -> dict[str, Any]:
    """What was measured, in seconds, and the bars.

    - `fan_out_s`, `direct_s`: of each repeat; `one_by_one_s`: of its one
    - `bars`: `{"what", "least" or "most", "seen"}`, seen by the medians
    - `passed`: whether all bars hold
    """
    middle_s = statistics.median(fan_out_s)
    speedup = {"what": "one after another ÷ fan-out", "least": SPEEDUP_MIN, "seen": round(one_by_one_s / middle_s, 3)}
    over = middle_s / statistics.median(direct_s)
    over_direct = {"what": "fan-out ÷ fan-out without luftpause", "most": OVER_DIRECT_MAX, "seen": round(over, 3)}
    return {
        "fan_out_s": [round(each, 3) for each in fan_out_s],
        "direct_s": [round(each, 3) for each in direct_s],
        "one_by_one_s": round(one_by_one_s, 3),
        "bars": [speedup, over_direct],
        "passed": holds(speedup) and holds(over_direct),
    }


def main(json_output: bool, counts: Counts | None = None) -> int:
    """Measures and prints; 0 if every bar holds, else 1. Ctrl-C ends it with 130."""
    counts = counts or Counts()
    return perform(lambda tell: measure(counts, tell), steps(counts), _print, json_output=json_output)


def _print(told: dict[str, Any]) -> None:
    console = Console()
    counts = told["counts"]
    table = Table(title=f"{counts['agents']} agents, tasks of {counts['tokens']} tokens ({told['machine']})")
    table.add_column("")
    table.add_column("seconds", justify="right")
    table.add_row("fan-out of luftpause", _seconds(told["fan_out_s"]))
    table.add_row("fan-out without it", _seconds(told["direct_s"]))
    table.add_row("one after another", _seconds([told["one_by_one_s"]]))
    console.print(table)
    for bar in told["bars"]:
        console.print(verdict(bar))


def _seconds(values: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in values)
