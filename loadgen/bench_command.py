"""A bench as a command: progress while it measures, a report or its JSON at the end, and the exit code.

Must not measure, nor know what a report holds beyond `passed` and its bars. What each bench has in common with
`compare.show` ends there: a comparison can be broken off and still has a result.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.relay_rig import RigError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells tell it."""

Report = dict[str, Any]
Tell = Callable[[str], None]
"""Hears what is done now."""


def perform(
    measure: Callable[[Tell], Coroutine[Any, Any, Report]],
    steps: int,
    show: Callable[[Report], None],
    *,
    json_output: bool,
) -> int:
    """Measures, telling of so many steps, and prints: 0 if the report has `passed`, else 1. Ctrl-C ends it with 130.

    What `measure` raises as RigError is told in one line.
    """
    try:
        with progress(steps) as tell:
            report = asyncio.run(until_signal(measure(tell)))
    except RigError as error:
        print(f"luftpause: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("luftpause: interrupted", file=sys.stderr)
        return INTERRUPTED
    if json_output:
        print(json.dumps(report))
    else:
        show(report)
    return 0 if report["passed"] else 1


def holds(bar: Report) -> bool:
    """Whether a bar, `{"what", "most" or "least", "seen"}`, holds; one of which nothing was seen does not."""
    seen = bar["seen"]
    return seen is not None and bool(seen >= bar["least"] if "least" in bar else seen <= bar["most"])


def verdict(bar: Report) -> str:
    """A bar in one line."""
    word, bound = ("at least", bar["least"]) if "least" in bar else ("at most", bar["most"])
    seen = "not measured" if bar["seen"] is None else f"{bar['seen']:g}"
    return f"{bar['what']} {word} {bound:g}: {seen}, {'holds' if holds(bar) else 'MISSED'}"


async def until_signal(measuring: Coroutine[Any, Any, Report]) -> Report:
    """What is measured; SIGINT and SIGTERM cancel it, the first of them alone: clearing up is never broken off."""
    task = asyncio.ensure_future(measuring)
    loop = asyncio.get_running_loop()
    wanted = asyncio.Event()

    def stop() -> None:
        if not wanted.is_set():
            wanted.set()
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    return await task


@contextlib.contextmanager
def progress(total: int) -> Iterator[Tell]:
    """Shows on a terminal how far a bench is that tells of `total` steps."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<26}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total + 1)

        def tell(what: str) -> None:
            progress.update(task, description=what, advance=1)

        yield tell
