"""`./luftpause bench relay`: what dataplane and scheduler together cost, beside nginx, the two in turns in one run.

Machines differ and are noisy: trust CPU time, and ratios within a repeat. Each repeat starts everything anew, so that
none inherits the memory of the one before. Without nginx the yardstick is a direct connection: what engine and client
themselves spend when there is no proxy. Read next: `relay_rig` (processes and readings), `relay_figures` (bars).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from loadgen import relay_figures
from loadgen.bench_command import perform, verdict
from loadgen.relay_figures import QUANTITIES, Sample
from loadgen.relay_rig import ORDER_WITHIN_S, Arm, Cores, Rig, running

_ROUNDS = 4
"""Of turns, and of chunks, in a repeat."""
_GONE_WITHIN_S = 10.0
BUSY_LOAD = 0.5
"""Others that run make chunks late, and late ones are relayed several at a time."""
_SBIN = "/usr/sbin:/usr/local/sbin"
"""Where nginx is, though it is not on everybody's path."""


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is measured. The usual counts take about a minute."""

    repeats: int = 3
    turns: int = 1_250
    """Turns of a round."""
    at_once: int = 64
    """Turns, and streams, at a time."""
    streams: int = 64
    """Streams of a round."""
    chunks: int = 100
    """Chunks of each of them."""
    pace_ms: int = 10
    open_streams: int = 1_000
    """Streams that stay open."""


async def measure(counts: Counts, nginx: str | None, tell: Callable[[str], None]) -> dict[str, Any]:
    """The report of `relay_figures`, and `machine`, `cores` (1: nothing kept apart), `load` (how busy the machine was
    before, as uptime tells it) and `counts`.

    `nginx` is the command, None: a direct connection instead. `tell` hears what is done now, `steps(counts)` times.
    Raises RigError.
    """
    cores = Cores.choose()
    load = os.getloadavg()[0]
    samples: list[list[Sample]] = []
    for _ in range(counts.repeats):
        tell("starting")
        async with running(nginx, cores) as rig:
            samples.append(await _repeat(rig, counts, tell))
    luftpause, yardstick = zip(*samples, strict=True)
    return {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "cores": len({cores.proxies, cores.rest}),
        "load": round(load, 2),
        "counts": asdict(counts),
        **relay_figures.report(luftpause, yardstick, "nginx" if nginx else "direct"),
    }


def find_nginx() -> str | None:
    """The command, where there is one."""
    return shutil.which("nginx") or shutil.which("nginx", path=_SBIN)


def steps(counts: Counts) -> int:
    """How many steps `measure` tells of."""
    return counts.repeats * 2 * (1 + 2 * _ROUNDS) + counts.repeats


async def _repeat(rig: Rig, counts: Counts, tell: Callable[[str], None]) -> list[Sample]:
    """One sample an arm, in their order. The arms take turns, so that both see the machine as quiet, or as busy."""
    arms = [_Measuring(rig, arm, counts) for arm in rig.arms]
    for kind in ("turns", "chunks"):
        for _ in range(_ROUNDS):
            for each in arms:
                tell(f"{each.arm.name}: {kind}")
                await (each.turns() if kind == "turns" else each.chunks())
    for each in arms:
        tell(f"{each.arm.name}: open streams")
        await each.open_streams()
    return [each.sample() for each in arms]


class _Measuring:
    """One arm in one repeat."""

    def __init__(self, rig: Rig, arm: Arm, counts: Counts) -> None:
        self.arm = arm
        self._rig = rig
        self._counts = counts
        self._turns_s: list[float] = []
        self._chunks_s: list[float] = []
        self._stream_kib = 0.0
        self._disconnect_s = 0.0
        self._errors = 0
        self._first_error = ""

    async def turns(self) -> None:
        """A round of turns that are not streamed."""
        if not self._turns_s:
            await self._ask(self._counts.at_once * 4, chunks=0)  # the first ones grow buffers and connection pools
        self._turns_s.append(await self._ask(self._counts.turns, chunks=0))

    async def chunks(self) -> None:
        """A round of streams."""
        self._chunks_s.append(await self._ask(self._counts.streams, self._counts.chunks))

    async def _ask(self, count: int, chunks: int) -> float:
        """CPU seconds that `count` turns cost."""
        pace_ms = self._counts.pace_ms if chunks else 0
        before_s = self.arm.cpu_s()
        await self._order(do="turns", count=count, at_once=self._counts.at_once, chunks=chunks, pace_ms=pace_ms)
        return self.arm.cpu_s() - before_s

    async def open_streams(self) -> None:
        """Opens many streams, then leaves them all at once."""
        before_kib = self.arm.memory_kib()
        await self._order(do="open", streams=self._counts.open_streams)
        self._stream_kib = (self.arm.memory_kib() - before_kib) / self._counts.open_streams
        closed = await self._rig.client.order(do="close")
        gone = await self._rig.engine.order(within_s=_GONE_WITHIN_S)
        self._disconnect_s = gone["at"] - closed["at"]
        self._note(closed["errors"], closed["first_error"])
        self._note(gone["left"], f"{gone['left']} disconnects never reached the engine")
        for part in self.arm.parts:
            part.check()

    async def _order(self, **order: Any) -> None:
        said = await self._rig.client.order(port=self.arm.port, within_s=ORDER_WITHIN_S, **order)
        self._note(said["errors"], said["first_error"])

    def _note(self, errors: int, first_error: str) -> None:
        self._errors += errors
        if errors and not self._first_error:
            self._first_error = first_error

    def sample(self) -> Sample:
        """What was measured."""
        counts = self._counts
        return Sample(
            turn_us=statistics.mean(self._turns_s) * 1e6 / counts.turns,
            chunk_us=statistics.mean(self._chunks_s) * 1e6 / (counts.streams * counts.chunks),
            stream_kib=self._stream_kib,
            disconnect_s=self._disconnect_s,
            errors=self._errors,
            first_error=self._first_error,
        )


def main(json_output: bool, counts: Counts | None = None) -> int:
    """Measures and prints; 0 if every bar holds or this system cannot be measured, else 1. Ctrl-C ends it with 130."""
    if sys.platform != "linux":
        told = "bench relay is skipped: it reads what other processes spend as Linux tells it"
        print(json.dumps({"skipped": told}) if json_output else told)
        return 0
    counts = counts or Counts()
    return perform(lambda tell: measure(counts, find_nginx(), tell), steps(counts), _print, json_output=json_output)


def _print(report: dict[str, Any]) -> None:
    console = Console()
    name = report["yardstick"]
    table = Table(title=f"median (least–most) of {report['counts']['repeats']} ({report['machine']})")
    for column in ("", "luftpause", name, "ratio"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for quantity, title in QUANTITIES.items():
        figures = report["figures"][quantity]
        table.add_row(title, *(_cell(figures[arm]) for arm in ("luftpause", name, "ratio")))
    table.add_row("errors", *(str(report["errors"][arm]) for arm in ("luftpause", name)), "")
    console.print(table)
    if name != "nginx":
        console.print("no nginx here: beside what engine and client spend without a proxy; its bar is not judged")
    if report["cores"] == 1:
        console.print("there is one core here: all processes share it, and figures are rougher")
    if report["load"] > BUSY_LOAD:
        console.print(f"the machine was busy (load {report['load']:g}): figures are rougher, and chunks look cheaper")
    for bar in report["bars"]:
        console.print(verdict(bar))
    if report["first_error"]:
        console.print(f"the first error: {report['first_error']}", markup=False)


def _cell(spread: dict[str, float] | None) -> str:
    if spread is None:
        return "–"
    return "{} ({}–{})".format(*(_number(spread[which]) for which in ("median", "min", "max")))


def _number(value: float) -> str:
    """Three digits, two of a small one."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
