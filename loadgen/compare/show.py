"""What a comparison shows: progress while it runs, tables and verdicts at its end; and how it is broken off.

Must not compute figures: `figures` does. Progress goes to stderr, so that stdout has the result alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from common.signals import serve_until_signal
from loadgen.bench_command import INTERRUPTED
from loadgen.compare import picture, table
from loadgen.compare.arms import ArmError
from loadgen.compare.contest import Contest, Entry, Rules, Tell, Timing, look
from loadgen.compare.engines import Served
from loadgen.compare.figures import CLASSES, Bar, Sample
from loadgen.compare.processes import ProcessError

T = TypeVar("T")

_LINE_EVERY_S = 15.0
_WIDTH_MIN = 150
"""Columns of a table that is not shown on a terminal."""


class Interrupted(Exception):  # noqa: N818 - nothing has failed
    """SIGINT or SIGTERM came."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a contest brought."""

    samples: dict[str, list[Sample]]
    """Of each entry, one a repeat."""
    model: str
    broken_off: str | None
    """Why it was broken off, after these repeats; None: they are all."""


def perform(rules: Rules, make: Callable[[Served], Sequence[Entry]]) -> Measured:
    """Measures the entries that `make` makes of what the engines serve, showing progress.

    Broken off by Ctrl-C, or since something ended by itself, it gives the repeats that are whole. Raises ArmError, and
    ProcessError and Interrupted where there is none.
    """
    return uvloop.run(serve_until_signal(lambda stop: _perform(rules, make, stop)))


def run(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; SIGINT and SIGTERM cancel it. Raises Interrupted then, and what `work` raises."""
    return uvloop.run(serve_until_signal(lambda stop: _unless(stop, work)))


async def _perform(rules: Rules, make: Callable[[Served], Sequence[Entry]], stop: asyncio.Event) -> Measured:
    serves = await _unless(stop, look(rules))
    named = replace(rules, model=rules.model or serves.model)
    entries = make(serves)
    contest = Contest(entries, named)
    broken_off = None
    with _progress(entries, rules.timing) as tell:
        try:
            await _unless(stop, contest.run(tell))
        except (Interrupted, ProcessError) as error:
            broken_off = str(error)
            if not all(contest.samples.values()):
                raise
    return Measured(contest.samples, named.model, broken_off)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Once `stop` is set, `work` is cancelled, and has cleared up when Interrupted is raised."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        raise Interrupted("interrupted")
    return task.result()


def guarded(work: Callable[[], int]) -> int:
    """The exit code of `work()`; what went wrong is told in one line."""
    try:
        return work()
    except (ArmError, ProcessError) as error:
        print(f"luftpause: {error}", file=sys.stderr)
        return 1
    except Interrupted as error:
        print(f"luftpause: {error}", file=sys.stderr)
        return INTERRUPTED


@contextlib.contextmanager
def _progress(entries: Sequence[Entry], timing: Timing) -> Iterator[Tell]:
    """What a contest tells, as a bar on a terminal, else as a line from time to time."""
    console = Console(stderr=True)
    count = len(entries) * timing.repeats
    whole_s = count * (timing.warm_up_s + timing.measure_s)
    print(f"{count} measurements, at least {whole_s / 60:.0f} min", file=sys.stderr, flush=True)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=whole_s)
        begun_s = time.monotonic()

        def tell(what: str, so_far: Sample) -> None:
            bar.update(task, completed=time.monotonic() - begun_s, description=_line(what, so_far))

        yield tell


def _lines() -> Tell:
    last, last_s = "", 0.0

    def tell(what: str, so_far: Sample) -> None:
        nonlocal last, last_s
        now_s = time.monotonic()
        if what != last or now_s - last_s >= _LINE_EVERY_S:
            last, last_s = what, now_s
            print(_line(what, so_far), file=sys.stderr, flush=True)

    return tell


def _line(what: str, so_far: Sample) -> str:
    told = [f"{what} {so_far.seconds:.0f} s" if so_far.seconds else what]
    for run_class in CLASSES:
        if any(group.run_class == run_class for group, _ in so_far.groups):
            tally = so_far.tally(run_class)
            told.append(f"{run_class} {tally.runs} runs, {tally.turns} turns")
            if tally.errors:
                told.append(f"{tally.errors.total()} errors")
    return "; ".join(told)


@dataclass(frozen=True, slots=True)
class Files:
    """Where results are written; None: nowhere."""

    json: pathlib.Path | None = None
    """"-": to stdout, which then has nothing else."""
    svg: pathlib.Path | None = None


def result(measured: Measured, report: Mapping[str, Any], bars: Sequence[Bar], files: Files) -> int:
    """Prints tables and verdicts and writes the files: 0 if all bars hold, else 1, also if it was broken off."""
    passed = all(bar.holds for bar in bars)
    repeats = len(next(iter(measured.samples.values())))
    document = {**report, "repeats": repeats, "bars": [bar.as_json() for bar in bars], "passed": passed}
    if files.json == pathlib.Path("-"):
        print(json.dumps(document))
    else:
        if files.json is not None:
            files.json.write_text(json.dumps(document, indent=1) + "\n")
        _print(report, bars)
    if files.svg is not None:
        files.svg.write_text(picture.draw(report))
    if measured.broken_off is not None:
        print(f"luftpause: broken off after {repeats} whole repeats: {measured.broken_off}", file=sys.stderr)
    return 0 if passed and measured.broken_off is None else 1


def _print(report: Mapping[str, Any], bars: Sequence[Bar]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, _WIDTH_MIN))
    for each in table.tables(report):
        console.print(each)
    for line in (*table.faults(report), *table.doubts(report), *table.verdicts(bars)):
        console.print(line, markup=False, highlight=False)
