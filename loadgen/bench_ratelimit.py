"""`./luftpause bench ratelimit`: agents that share one rate-limited endpoint, and what its 429s cost them.

All arms get the same tasks from a provider that counts as real ones do: a request is charged when it arrives, by an
estimate, and corrected when it ends. What was refused and served is counted there. The fluid limit is the time in which
a window that is never full and never wasted serves the same tokens. Read next: `ratelimit_arms`.
"""

from __future__ import annotations

import pathlib
import platform
from collections.abc import Callable
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from loadgen import ratelimit_arms
from loadgen.bench_command import holds, perform, verdict
from loadgen.ratelimit_arms import Step, Work
from loadgen.ratelimit_rig import PERIOD_S, Counts, running
from loadgen.relay_rig import RigError

OVER_FLUID_MAX = 1.08
ARMS = ("reactive", "agentpause", "litellm", "luftpause")
_ANSWER_WITHIN_S = 7200.0
"""At the usual speed a turn may be held for most of the run: those of runs with more turns done go first."""


async def measure(counts: Counts, arms: tuple[str, ...] | None, tell: Callable[[str], None]) -> dict[str, Any]:
    """The report of `arms`, each of which must be installed; None: of all that are. `tell` hears which one works.
    Raises RigError."""
    steps: dict[str, Step | None] = {
        "reactive": ratelimit_arms.reactive,
        "agentpause": ratelimit_arms.agentpause(counts),
        "litellm": ratelimit_arms.litellm(counts),
        "luftpause": ratelimit_arms.luftpause,
    }
    for name in arms or ():
        if steps[name] is None:
            raise RigError(f"arm {name}: the package is installed neither here nor in --peers")
    figures = {}
    for name in arms or ARMS:
        step = steps[name]
        tell(name)
        if step is not None:
            figures[name] = await _arm(counts, name, step)
    return report(counts, figures)


async def _arm(counts: Counts, name: str, step: Step) -> dict[str, Any]:
    limits = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S)
    async with (
        running(counts, luftpause=name == "luftpause") as places,
        aiohttp.ClientSession(timeout=limits, connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        work = Work(counts, session, places.base)
        wall_s = await ratelimit_arms.play(work, step) * counts.speed
        stats = await places.stats(session)
    served = stats["served_tokens"]
    fluid_s = max(0.0, served - counts.window_tokens) * PERIOD_S / counts.window_tokens
    return {
        "refused": stats["refused"],
        "tokens_resent": stats["refused_tokens"],
        "extra_requests": stats["served"] - counts.agents * counts.steps,
        "steps_redone": work.steps_redone,
        "suspensions": work.suspensions,
        "wall_s": round(wall_s, 1),
        "fluid_s": round(fluid_s, 1),
        "over_fluid": round(wall_s / fluid_s, 3) if fluid_s else None,
        "window_use": round(served / (counts.window_tokens * (1 + wall_s / PERIOD_S)), 3),
    }


def report(counts: Counts, figures: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What was measured, and whether luftpause holds its bars."""
    ours = figures.get("luftpause")
    bars = []
    if ours is not None:
        bars = [
            {"what": "errors 429 of the provider", "most": 0, "seen": ours["refused"]},
            {"what": "requests that no agent asked for", "most": 0, "seen": ours["extra_requests"]},
        ]
        if not counts.fixed:
            bars.append({"what": "wall time over the fluid limit", "most": OVER_FLUID_MAX, "seen": ours["over_fluid"]})
    return {
        "counts": {name: getattr(counts, name) for name in counts.__slots__},
        "arms": figures,
        "not_installed": [name for name in ARMS if name not in figures],
        "bars": bars,
        "passed": all(holds(bar) for bar in bars),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def main(counts: Counts, arms: tuple[str, ...] | None, *, json_output: bool, peers: pathlib.Path | None = None) -> int:
    """Measures and prints; 0 if every bar holds, else 1. Ctrl-C ends it with 130. `peers`: an environment that has
    packages of peers."""
    if peers is not None:
        ratelimit_arms.find_peers(peers)
    return perform(lambda tell: measure(counts, arms, tell), len(arms or ARMS), _print, json_output=json_output)


def _print(told: dict[str, Any]) -> None:
    console = Console()
    counts = told["counts"]
    window = f"{counts['window_tokens']:,} tokens and {counts['window_requests']} requests a minute"
    table = Table(title=f"{counts['agents']} agents, {counts['steps']} steps each, {window}")
    columns = {
        "refused": "429s",
        "tokens_resent": "tokens\nre-sent",
        "extra_requests": "extra\nrequests",
        "steps_redone": "steps\nredone",
        "suspensions": "suspen-\nsions",
        "wall_s": "wall\ns",
        "over_fluid": "over\nfluid",
        "window_use": "window\nuse",
    }
    table.add_column("")
    for title in columns.values():
        table.add_column(title, justify="right")
    for name, figures in told["arms"].items():
        table.add_row(name, *("–" if figures[column] is None else f"{figures[column]:,}" for column in columns))
    console.print(table)
    if told["not_installed"]:
        console.print(f"not measured, since not installed or not asked for: {', '.join(told['not_installed'])}")
    for bar in told["bars"]:
        console.print(verdict(bar))
