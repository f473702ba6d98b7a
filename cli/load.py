"""`./luftpause load`: agents that keep their own loop, through the proxy, and what they saw.

Must not measure anything itself: loadgen does; this reads options, shows progress and prints the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import random
import signal
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console
from rich.live import Live

from cli import options, state
from loadgen import report
from loadgen.driver import Load, LoadError, Target, first_model
from loadgen.workload import Group, RunClass, ToolStyle, Workload

TARGET_DEFAULT = "http://127.0.0.1:8080/v1"
USUAL = Workload()
LINE_EVERY_S = 10.0
TABLE_EVERY_S = 1.0


def load(
    *,
    agents: Annotated[int, typer.Option(min=1, max=10_000, help="Agents; each works on one run after another.")] = 8,
    duration_s: Annotated[float, typer.Option(min=0.1, help="Seconds measured, after the warm-up.")] = 60.0,
    warmup_s: Annotated[float, typer.Option(min=0.0, help="Seconds before, not measured.")] = 0.0,
    run_class: Annotated[RunClass, typer.Option("--class", help="Class of the runs.")] = "interactive",
    caller: Annotated[str, typer.Option(help="Caller of the runs; empty: the anonymous one.")] = "load",
    target: Annotated[
        str, typer.Option(help=f"OpenAI base URL. Unset: what is up in the state folder, else {TARGET_DEFAULT}.")
    ] = "",
    state_folder: options.State = options.DEFAULT_STATE,
    model: Annotated[str, typer.Option(help="Model. Unset: the first that the target lists.")] = "",
    token_env: Annotated[str, typer.Option(help="Environment variable that holds the token.")] = options.TOKEN_VARIABLE,
    turns: Annotated[int, typer.Option(min=1, help="Turns of a run.")] = USUAL.turns,
    context_chars: Annotated[int, typer.Option(min=0, help="Characters a run starts with.")] = USUAL.context_chars,
    growth_chars: Annotated[int, typer.Option(min=0, help="Characters of a tool's result.")] = USUAL.growth_chars,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a reply.")] = USUAL.max_tokens,
    tool_s_min: Annotated[float, typer.Option(min=0.0, help="Shortest time a tool works, seconds.")] = USUAL.tool_s_min,
    tool_s_max: Annotated[float, typer.Option(min=0.0, help="Longest time a tool works, seconds.")] = USUAL.tool_s_max,
    tools: Annotated[
        ToolStyle, typer.Option(help="Tool calls by the API, or as text, for engines without tools.")
    ] = USUAL.tools,
    ignore_eos: Annotated[
        bool, typer.Option(help="Ask the engine for replies of exactly --max-tokens.")
    ] = USUAL.ignore_eos,
    headers: Annotated[bool, typer.Option(help="Send run id, class and caller.")] = True,
    end_runs: Annotated[bool, typer.Option(help="Tell the end of each run.")] = True,
    seed: Annotated[int | None, typer.Option(help="Seed of texts and tool times. Unset: a new one.")] = None,
    as_json: options.Json = False,
) -> None:
    """Puts load on a pool: agents that keep their own loop. Exit code 1 if not a single turn succeeded."""
    try:
        workload = Workload(turns, context_chars, growth_chars, max_tokens, tool_s_min, tool_s_max, ignore_eos, tools)
        group = Group(agents, run_class, _printable(caller), workload)
        base_url = _base_url(target or _running(state_folder) or TARGET_DEFAULT)
        token = options.token(token_env)
        chosen = model or asyncio.run(first_model(base_url, token))
        aim = Target(base_url, chosen, token, send_headers=headers, end_runs=end_runs)
        number = random.randrange(1 << 32) if seed is None else seed
        figures = uvloop.run(_perform(Load(aim, [group], number), warmup_s, duration_s))
    except ValueError as error:
        options.misused(str(error))
    except (LoadError, state.StateError) as error:
        options.fail(str(error))
    figures = {"target": base_url, "model": chosen, "seed": number, **figures}
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        Console().print(report.table([figures], f"{base_url}, model {chosen}, seed {number}"))
    if not figures["turns"]:
        options.fail(f"no turn succeeded in {figures['seconds']} s: {report.faults(figures)}")


def _printable(caller: str) -> str:
    if not caller.isprintable():
        raise ValueError("--caller must be printable: it is sent as a header")
    return caller


def _running(folder: pathlib.Path) -> str | None:
    instance = state.read(folder)
    return instance.dataplane_url if instance else None


def _base_url(url: str) -> str:
    """`url` as an OpenAI base URL without trailing slash; a bare origin gets /v1. Raises ValueError."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0 or parts.query or parts.fragment:
        raise ValueError(f"target '{url}' must be an http:// or https:// URL, such as {TARGET_DEFAULT}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


async def _perform(load: Load, warmup_s: float, duration_s: float) -> dict[str, Any]:
    """Runs the load until its time is over or SIGINT or SIGTERM comes; the figures of its one group."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    begun_s = time.perf_counter()

    def figures() -> dict[str, Any]:
        return report.figures(load.groups[0], load.tallies[0], time.perf_counter() - begun_s)

    async with load:
        await _wait(stop, warmup_s)
        if stop.is_set():
            return figures()
        load.forget_warmup()
        begun_s = time.perf_counter()
        with _progress() as (show, every_s):
            while not stop.is_set() and (left_s := begun_s + duration_s - time.perf_counter()) > 0:
                await _wait(stop, min(every_s, left_s))
                load.raise_if_broken()
                show(figures())
        return figures()


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


@contextlib.contextmanager
def _progress() -> Iterator[tuple[Callable[[dict[str, Any]], None], float]]:
    """How to show figures on the way, and how often: a table on a terminal, else lines; always on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda figures: typer.echo(report.line(figures), err=True), LINE_EVERY_S
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda figures: live.update(report.table([figures], "so far"), refresh=True), TABLE_EVERY_S
