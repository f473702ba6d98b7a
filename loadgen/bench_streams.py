"""`./luftpause bench streams`: thousands of streams open at once, some of whose clients never read.

What counts is what that costs the others: how long a chunk takes from the engine's write to its client, beside a tenth
or less of the streams that carry as many chunks a second together, before and after, in one run on one machine. Those
that never read must be cut by the dataplane's own limit (`LUFTPAUSE_DATAPLANE_UNREAD_S`) and free their slots, at the
engine and in the scheduler. Read next: `relay_watch`, `relay_rig`.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from loadgen.bench_command import holds, perform, verdict
from loadgen.bench_relay import BUSY_LOAD
from loadgen.chaos_rig import get, is_linux
from loadgen.relay_rig import ORDER_WITHIN_S, Cores, Rig, running

DELAY_X_MAX = 2.0
"""Of the median and the 99th percentile, beside few streams with the same chunks a second."""
STEPS = 5
"""How many steps `measure` tells of."""
_CUT_WITHIN_S = 15.0
"""Beyond the limit itself: what the kernels keep must be full first, and nobody looks more often than each second."""
_GONE_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is measured. The usual counts take about two minutes."""

    streams: int = 2_000
    stuck: int = 20
    """Of them: they are never read."""
    seconds: float = 60.0
    few: int = 100
    """Streams of the yardstick."""
    few_seconds: float = 15.0
    """Of each of its two measurements."""
    chunks_s: int = 4_000
    """Chunks a second of all streams together, in either case."""
    unread_s: float = 20.0
    """The dataplane's limit."""


async def measure(counts: Counts, tell: Callable[[str], None]) -> dict[str, Any]:
    """The report: `delays` (of `few_before`, `many`, `few_after`: chunks, p50_ms, p99_ms, max_ms), `stuck` (how many
    `were_cut`, and what the scheduler had `in_flight` then and at the end), `errors` and `first_error`, `bars` and
    `passed` as those of `bench relay`. `tell` hears what is done now. Raises RigError.
    """
    load = os.getloadavg()[0]
    tell("starting")
    more = {"LUFTPAUSE_DATAPLANE_UNREAD_S": f"{counts.unread_s:g}"}
    async with running(None, Cores.choose(), more) as rig:
        measuring = _Measuring(rig, counts)
        tell(f"{counts.few} streams")
        before = await measuring.watch(counts.few, 0, counts.few_seconds)
        await measuring.leave()
        tell(f"{counts.streams:,} streams")
        many = await measuring.watch(counts.streams, counts.stuck, counts.seconds)
        tell("the stuck ones are cut")
        stuck = await measuring.wait_cut()
        await measuring.leave()
        tell(f"{counts.few} streams again")
        after = await measuring.watch(counts.few, 0, counts.few_seconds)
        await measuring.leave()
        stuck["in_flight_at_the_end"] = await measuring.in_flight(0)
        measuring.check()
    delays = {"few_before": before, "many": many, "few_after": after}
    bars = judge(counts, delays, stuck, measuring.errors)
    return {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "load": round(load, 2),
        "counts": asdict(counts),
        "delays": delays,
        "stuck": stuck,
        "errors": measuring.errors,
        "first_error": measuring.first_error,
        "bars": bars,
        "passed": all(holds(bar) for bar in bars),
    }


class _Measuring:
    """Orders to engine and client, and what went wrong."""

    def __init__(self, rig: Rig, counts: Counts) -> None:
        self._rig = rig
        self._counts = counts
        self.errors = 0
        self.first_error = ""

    async def watch(self, streams: int, stuck: int, seconds: float) -> dict[str, float]:
        """The delays of `streams` streams, which stay open."""
        pace_ms = streams * 1000 // self._counts.chunks_s
        order = {"streams": streams, "stuck": stuck, "pace_ms": pace_ms, "seconds": seconds}
        port = self._rig.arms[0].port
        said = await self._rig.client.order(do="watch", port=port, within_s=ORDER_WITHIN_S, **order)
        self._note(said)
        return {name: said[name] for name in ("chunks", "p50_ms", "p99_ms", "max_ms") if name in said}

    async def wait_cut(self) -> dict[str, int]:
        """Waits until the engine has none but the streams that are read."""
        counts = self._counts
        read = counts.streams - counts.stuck
        said = await self._rig.engine.order(most=read, within_s=counts.unread_s + _CUT_WITHIN_S)
        cut = counts.streams - max(read, said["left"])
        return {"were_cut": cut, "in_flight": await self.in_flight(read)}

    async def leave(self) -> None:
        """Leaves all streams, and waits until the engine knows."""
        self._note(await self._rig.client.order(do="leave"))
        said = await self._rig.engine.order(within_s=_GONE_WITHIN_S)
        self._note({"errors": said["left"], "first_error": f"{said['left']} streams never ended at the engine"})

    async def in_flight(self, expected: int) -> int:
        """Turns in flight by the scheduler, when they are as many as `expected`, or after a while."""
        deadline = time.monotonic() + _GONE_WITHIN_S
        while True:
            status = json.loads(await get(f"{self._rig.status_url}/status") or b'{"replicas": []}')
            turns: int = sum(replica["in_flight"] for replica in status["replicas"])
            if turns == expected or time.monotonic() > deadline:
                return turns
            await asyncio.sleep(0.1)

    def check(self) -> None:
        """Raises RigError if a process has ended."""
        for part in self._rig.arms[0].parts:
            part.check()

    def _note(self, said: dict[str, Any]) -> None:
        self.errors += said["errors"]
        if said["errors"] and not self.first_error:
            self.first_error = said["first_error"]


def judge(
    counts: Counts, delays: dict[str, dict[str, float]], stuck: dict[str, int], errors: int
) -> list[dict[str, Any]]:
    """The bars of a report, from its other parts."""

    def ratio(name: str) -> float | None:
        if not all(name in each for each in delays.values()):
            return None
        few = statistics.mean(delays[each][name] for each in ("few_before", "few_after"))
        return round(delays["many"][name] / few, 3)

    return [
        {"what": "median delay ÷ few streams'", "most": DELAY_X_MAX, "seen": ratio("p50_ms")},
        {"what": "99th percentile of delays ÷ few streams'", "most": DELAY_X_MAX, "seen": ratio("p99_ms")},
        {"what": "streams never read that were not cut", "most": 0, "seen": counts.stuck - stuck["were_cut"]},
        {
            "what": "slots too many in the scheduler, then and at the end",
            "most": 0,
            "seen": abs(stuck["in_flight"] - counts.streams + counts.stuck) + stuck["in_flight_at_the_end"],
        },
        {"what": "errors of the others", "most": 0, "seen": errors},
    ]


def main(json_output: bool, counts: Counts | None = None) -> int:
    """Measures and prints; 0 if every bar holds or this system cannot be measured, else 1. Ctrl-C ends it with 130."""
    if not is_linux():
        told = "bench streams is skipped: it puts processes on cores as Linux allows it"
        print(json.dumps({"skipped": told}) if json_output else told)
        return 0
    return perform(lambda tell: measure(counts or Counts(), tell), STEPS, _print, json_output=json_output)


def _print(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    counts = report["counts"]
    console.print(
        f"from the engine's write to the client, ms; {counts['chunks_s']:,} chunks a second, {report['machine']}"
    )
    table = Table()
    for column in ("streams", "chunks", "median", "99 %", "most"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = (("few_before", counts["few"]), ("many", counts["streams"]), ("few_after", counts["few"]))
    for name, streams in rows:
        delays = report["delays"][name]
        cells = [f"{delays[key]:.2f}" if key in delays else "–" for key in ("p50_ms", "p99_ms", "max_ms")]
        table.add_row(f"{streams:,}", f"{delays['chunks']:,}", *cells)
    console.print(table)
    console.print(f"{counts['stuck']} of {counts['streams']:,} were never read, {report['stuck']['were_cut']} were cut")
    for bar in report["bars"]:
        console.print(verdict(bar))
    if report["load"] > BUSY_LOAD:
        console.print(f"the machine was busy (load {report['load']:g}): others' time is in all delays, and not evenly")
    if report["first_error"]:
        console.print(f"the first error: {report['first_error']}", markup=False)
