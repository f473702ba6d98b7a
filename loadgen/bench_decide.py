"""`./luftpause bench decide`: what luftpause adds to a classifier's own latency, alone and beside agents.

Every text is classified twice, straight and through luftpause, in an order that changes, so that whatever else the
machine does hits both. The simulated classifier keeps the pace of a device. Read next: `decide_rig`.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from loadgen.bench_command import holds, perform, verdict
from loadgen.decide_rig import Rig, running

ALONE_ADDED_MS_MAX = 3.0
"""A gate in front of every wake or turn must not be felt: a small classifier itself takes some 20 ms."""
BESIDE_ADDED_MS_MAX = 10.0
"""Where the proxy also relays the streams of agents."""

_SAMPLES = dict[str, list[float]]
"""Seconds by arm: "direct" and "luftpause"."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is measured. The usual counts take about 20 s."""

    pairs: int = 200
    """Texts that are classified both ways, alone and beside agents."""
    warmup_pairs: int = 20
    agents: int = 20


async def measure(counts: Counts, tell: Callable[[str], None]) -> dict[str, Any]:
    """The report; see `report`. `tell` hears what is done now, `STEPS` times. Raises RigError."""
    load = os.getloadavg()[0]
    tell("starting")
    async with running() as rig:
        await _classify(rig, counts.warmup_pairs, "warm-up")
        tell("alone")
        alone = await _classify(rig, counts.pairs, "alone")
        tell("agents begin")
        await rig.start_agents(counts.agents)
        turns, _ = await rig.agents_so_far()
        tell(f"beside {counts.agents} agents")
        beside = await _classify(rig, counts.pairs, "beside")
        turns_after, errors = await rig.agents_so_far()
    return {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "load": round(load, 2),
        "counts": asdict(counts),
        **report(alone, beside, turns_after - turns, errors),
    }


STEPS = 4


async def _classify(rig: Rig, pairs: int, phase: str) -> _SAMPLES:
    """Classifies so many texts both ways."""
    seconds: _SAMPLES = {"direct": [], "luftpause": []}
    ways = [("direct", rig.direct), ("luftpause", rig.luftpause)]
    for number in range(pairs):
        ways.reverse()
        for name, way in ways:
            seconds[name].append(await way.ask(f"{phase} {number}: is this mail worth waking anybody for? " * 4))
    return seconds


def report(alone: _SAMPLES, beside: _SAMPLES, agent_turns: int, agent_errors: int) -> dict[str, Any]:
    """What was measured, and the bars.

    - `alone`, `beside_agents`: by arm `p50_ms` and `p99_ms`, and what luftpause adds to each as `added`
    - `agent_turns`: turns of the agents meanwhile; `agent_errors`: turns that failed
    - `bars`: `{"what", "most" or "least", "seen"}`
    - `passed`: whether all bars hold
    """
    phases = {"alone": _figures(alone), "beside_agents": _figures(beside)}
    bars: list[dict[str, Any]] = [
        {"what": "added to p50 alone, ms", "most": ALONE_ADDED_MS_MAX, "seen": phases["alone"]["added"]["p50_ms"]},
        {
            "what": "added to p50 beside agents, ms",
            "most": BESIDE_ADDED_MS_MAX,
            "seen": phases["beside_agents"]["added"]["p50_ms"],
        },
        {"what": "failed turns of the agents", "most": 0, "seen": agent_errors},
        {"what": "turns of the agents", "least": 1, "seen": agent_turns},
    ]
    return {
        **phases,
        "agent_turns": agent_turns,
        "agent_errors": agent_errors,
        "bars": bars,
        "passed": all(holds(bar) for bar in bars),
    }


def _figures(seconds: _SAMPLES) -> dict[str, dict[str, float]]:
    figures = {name: _percentiles(values) for name, values in seconds.items()}
    direct, luftpause = figures["direct"], figures["luftpause"]
    figures["added"] = {name: round(luftpause[name] - direct[name], 3) for name in direct}
    return figures


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, and the 99th percentile by nearest rank, in milliseconds."""
    p99_s = sorted(seconds)[math.ceil(len(seconds) * 0.99) - 1]
    return {"p50_ms": round(statistics.median(seconds) * 1000, 3), "p99_ms": round(p99_s * 1000, 3)}


def main(json_output: bool, counts: Counts | None = None) -> int:
    """Measures and prints; 0 if every bar holds, else 1. Ctrl-C ends it with 130."""
    return perform(lambda tell: measure(counts or Counts(), tell), STEPS, _print, json_output=json_output)


def _print(told: dict[str, Any]) -> None:
    console = Console()
    counts = told["counts"]
    table = Table(title=f"ms of a decision, {counts['pairs']} each way ({told['machine']})")
    for column in ("", "", "classifier", "through luftpause", "added"):
        table.add_column(column, justify="right")
    for key, phase in (("alone", "alone"), ("beside_agents", f"beside {counts['agents']} agents")):
        for name in ("p50", "p99"):
            cells = (f"{told[key][arm][f'{name}_ms']:.2f}" for arm in ("direct", "luftpause", "added"))
            table.add_row(phase if name == "p50" else "", name, *cells)
    console.print(table)
    for bar in told["bars"]:
        console.print(verdict(bar))
