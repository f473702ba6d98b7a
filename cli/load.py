"""`./luftpause load`: agents that keep their own loop, through the proxy, or sub-agents of the runtime; what they saw.

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

from cli import options, services, state
from loadgen import report
from loadgen.driver import Load, LoadError, Target, first_model
from loadgen.spawning import SpawnLoad
from loadgen.workload import Group, RunClass, ToolStyle, Workload

TARGET_DEFAULT = "http://127.0.0.1:8080/v1"
RUNTIME_DEFAULT = "http://127.0.0.1:7000/mcp"
OWN_LOOP_ALONE = ("agents", "growth_chars", "tool_s_min", "tool_s_max", "tools", "ignore_eos", "headers", "end_runs")
"""Options that mean nothing for sub-agents: the runtime keeps their loop, and its tool servers answer."""
USUAL = Workload()
LINE_EVERY_S = 10.0
TABLE_EVERY_S = 1.0


def load(
    context: typer.Context,
    *,
    agents: Annotated[int, typer.Option(min=1, max=10_000, help="Agents; each works on one run after another.")] = 8,
    spawn: Annotated[
        int,
        typer.Option(min=0, max=10_000, help="So many sub-agents at a time instead, over MCP; 0: agents of their own."),
    ] = 0,
    duration_s: Annotated[float, typer.Option(min=0.1, help="Seconds measured, after the warm-up.")] = 60.0,
    warmup_s: Annotated[float, typer.Option(min=0.0, help="Seconds before, not measured.")] = 0.0,
    run_class: Annotated[RunClass, typer.Option("--class", help="Class of the runs.")] = "interactive",
    caller: Annotated[str, typer.Option(help="Caller of the runs; empty: the anonymous one.")] = "load",
    target: Annotated[
        str,
        typer.Option(
            help="OpenAI base URL, or URL of the runtime's MCP. "
            f"Unset: what is up in the state folder, else {TARGET_DEFAULT} or {RUNTIME_DEFAULT}."
        ),
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
    """Puts load on a pool: agents that keep their own loop, or the runtime's. Exit code 1 if no turn succeeded."""
    try:
        workload = Workload(turns, context_chars, growth_chars, max_tokens, tool_s_min, tool_s_max, ignore_eos, tools)
        group = Group(spawn or agents, run_class, _printable(caller), workload)
        number = random.randrange(1 << 32) if seed is None else seed
        token = options.token(token_env)
        if spawn:
            _refuse_own_loop(context)
            aim = _mcp_url(target or _running_runtime(state_folder) or RUNTIME_DEFAULT)
            prepared: Load | SpawnLoad = SpawnLoad(aim, token, model or None, [group], number)
        else:
            aim = _base_url(target or _running(state_folder) or TARGET_DEFAULT)
            model = model or asyncio.run(first_model(aim, token))
            prepared = Load(Target(aim, model, token, send_headers=headers, end_runs=end_runs), [group], number)
        figures = uvloop.run(_perform(prepared, warmup_s, duration_s))
    except ValueError as error:
        options.misused(str(error))
    except (LoadError, state.StateError) as error:
        options.fail(str(error))
    _tell({"target": aim, "model": model or None, "seed": number, **figures}, as_json)


def _tell(figures: dict[str, Any], as_json: bool) -> None:
    """Prints the end, and ends the command with 1 where nothing succeeded."""
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        model = figures["model"] or "the runtime's choice"
        Console().print(report.table([figures], f"{figures['target']}, model {model}, seed {figures['seed']}"))
    if not figures["turns"]:
        options.fail(f"no turn succeeded in {figures['seconds']} s: {report.faults(figures)}")


def _refuse_own_loop(context: typer.Context) -> None:
    """Raises ValueError where an option was given that sub-agents have no use for."""
    for name in OWN_LOOP_ALONE:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ValueError(f"--{name.replace('_', '-')} is for agents that keep their own loop, not for --spawn")


def _printable(caller: str) -> str:
    if not caller.isprintable():
        raise ValueError("--caller must be printable: it is sent as a header")
    return caller


def _running(folder: pathlib.Path) -> str | None:
    instance = state.read(folder)
    return instance.dataplane_url if instance else None


def _running_runtime(folder: pathlib.Path) -> str | None:
    instance = state.read(folder)
    port = instance.ports.get("--runtime-port") if instance else None
    return None if port is None else f"http://{services.HOST}:{port}/mcp"


def _base_url(url: str) -> str:
    """`url` as an OpenAI base URL without trailing slash; a bare origin gets /v1. Raises ValueError."""
    return _url(url, "/v1", TARGET_DEFAULT)


def _mcp_url(url: str) -> str:
    """`url` as the runtime's MCP; a bare origin gets /mcp. Raises ValueError."""
    return _url(url, "/mcp", RUNTIME_DEFAULT)


def _url(url: str, usual_path: str, example: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0 or parts.query or parts.fragment:
        raise ValueError(f"target '{url}' must be an http:// or https:// URL, such as {example}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or usual_path}"


async def _perform(load: Load | SpawnLoad, warmup_s: float, duration_s: float) -> dict[str, Any]:
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
