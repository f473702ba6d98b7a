"""`bench flood`, `routing`, `fairness` and `light`: their options. Must not measure: loadgen.compare does."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from cli import options, services
from fakes.engine.latency import PROFILES
from loadgen.compare import arms, figures
from loadgen.compare import fairness as fairness_bench
from loadgen.compare import flood as flood_bench
from loadgen.compare import light as light_bench
from loadgen.compare import routing as routing_bench
from loadgen.compare.contest import Rules, Timing
from loadgen.compare.engines import Fakes
from loadgen.compare.show import Files
from loadgen.workload import ToolStyle, Workload

USUAL = Workload()
_SBIN = os.pathsep.join(("/usr/sbin", "/usr/local/sbin"))
"""Where nginx is, though it is not on everybody's path."""
_OF_ONE_INSTANCE = {"LUFTPAUSE_TOKEN", "LUFTPAUSE_STATE", "LUFTPAUSE_POOL", *services.OPTIONS}
"""Variables of the user's own instance, which must not reach the one that is measured."""

EngineUrls = Annotated[
    list[str],
    typer.Option("--engine", metavar="URL", help="A real engine to use; repeat it. Unset: fake engines are started."),
]
Profile = Annotated[str, typer.Option(help="Profile of the fake engines.")]
Replicas = Annotated[int, typer.Option(min=1, max=64, help="Number of fake engines.")]
Seed = Annotated[int | None, typer.Option(help="Seed of texts and tool times. Unset: a new one.")]
WarmUp = Annotated[float, typer.Option(min=0.0, help="Seconds before each measurement.")]
Measure = Annotated[float, typer.Option(min=0.1, help="Seconds of each measurement.")]
Repeats = Annotated[int, typer.Option(min=1, max=100, help="Measurements of each arm; medians are shown.")]
Tools = Annotated[
    ToolStyle, typer.Option(help="Agents' tool calls by the API, or as text: the next turn is a user's message.")
]
SubAgents = Annotated[
    flood_bench.SubAgents,
    typer.Option(
        help="Agents that are sub-agents of a runtime in front of each arm, with the simulated tool server's lookup: "
        "none, batch, or all."
    ),
]
IgnoreEos = Annotated[bool, typer.Option(help="Ask the engine for replies of exactly --max-tokens.")]
JsonFile = Annotated[
    pathlib.Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON; -: to stdout.")
]
SvgFile = Annotated[pathlib.Path | None, typer.Option("--svg", metavar="FILE", help="Draw the comparison.")]
Peers = Annotated[
    pathlib.Path | None,
    typer.Option(metavar="DIR", envvar="PEERS", help="Python environment in which smg and vllm-router are installed."),
]
ArmNames = Annotated[
    str | None,
    typer.Option(
        "--arms", metavar="NAMES", help=f"Arms, with commas between: {', '.join((flood_bench.ALONE, *arms.KNOWN))}."
    ),
]
OwnArms = Annotated[
    list[str],
    typer.Option(
        "--arm",
        metavar="NAME=COMMAND",
        help="An arm of your own: a command with {port} and {engines} in it, or the URL of what runs already.",
    ),
]
Traces = Annotated[
    pathlib.Path | None,
    typer.Option(metavar="FILE", help="Replay recorded sessions, such as loadgen/data/agent-traces.jsonl."),
]
Require = Annotated[
    str,
    typer.Option(
        metavar="BARS",
        help="Bars on luftpause, such as interactive=2.5,batch=0.85; exits 1 where one is missed. "
        + "; ".join(f"{key}: {meaning}" for key, meaning in figures.REQUIREMENTS.items())
        + ".",
    ),
]


def environment() -> dict[str, str]:
    """Variables of the processes started: ours, without those of a running instance. Settings such as
    LUFTPAUSE_SCHEDULER_… or LUFTPAUSE_ENGINE_SPEED reach what is measured."""
    return {name: value for name, value in os.environ.items() if name.upper() not in _OF_ONE_INSTANCE}


def finder(peers: pathlib.Path | None) -> Callable[[str], str | None]:
    """Finds a command on the path, or among the peers."""

    def find(command: str) -> str | None:
        among = shutil.which(command, path=str(peers / "bin")) if peers else None
        return among or shutil.which(command) or shutil.which(command, path=_SBIN)

    return find


def where(urls: list[str], profile: str, replicas: int) -> tuple[str, ...] | Fakes:
    """The engines of a call: origins of real ones, or the fake ones to start."""
    if profile not in PROFILES:
        options.misused(f"--profile {profile}: expected one of {', '.join(PROFILES)}")
    for url in urls:
        if not url.startswith(("http://", "https://")):
            options.misused(f"--engine {url}: expected an http:// or https:// URL")
    return tuple(url.rstrip("/").removesuffix("/v1") for url in urls) or Fakes(replicas, profile)


def rules(
    engines: tuple[str, ...] | Fakes,
    timing: Timing,
    seed: int | None,
    *,
    model: str = "",
    end: bool = True,
    run_id: bool = True,
) -> Rules:
    """Those of a call; a seed of its own where none was given."""
    number = random.randrange(1 << 32) if seed is None else seed
    return Rules(engines, timing, number, environment(), model, end, run_id)


def flood(
    *,
    arm_names: ArmNames = None,
    own_arms: OwnArms = [],  # noqa: B006 - typer copies it
    engine: EngineUrls = [],  # noqa: B006
    profile: Profile = "cpu-testbed",
    replicas: Replicas = 2,
    model: Annotated[str, typer.Option(help="Model. Unset: the first that the first engine lists.")] = "",
    peers: Peers = None,
    batch: Annotated[int, typer.Option(min=0, max=10_000, help="Agents with batch runs.")] = 48,
    interactive: Annotated[int, typer.Option(min=1, max=10_000, help="Agents with interactive runs.")] = 4,
    callers: Annotated[int, typer.Option(min=1, help="Callers that the agents of a class are divided among.")] = 1,
    turns: Annotated[int, typer.Option(min=1, help="Turns of a run.")] = USUAL.turns,
    context_chars: Annotated[int, typer.Option(min=0, help="Characters a run starts with.")] = USUAL.context_chars,
    growth_chars: Annotated[int, typer.Option(min=0, help="Characters of a tool's result.")] = USUAL.growth_chars,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a reply.")] = USUAL.max_tokens,
    tool_s: Annotated[str, typer.Option(metavar="MIN-MAX", help="How long tools work, seconds.")] = "0.5-2",
    tools: Tools = USUAL.tools,
    sub_agents: SubAgents = "none",
    ignore_eos: IgnoreEos = USUAL.ignore_eos,
    end: Annotated[bool, typer.Option(help="Agents tell luftpause the end of a run.")] = True,
    run_id: Annotated[bool, typer.Option(help="Agents tell routers which run a turn is of.")] = True,
    traces: Traces = None,
    scale: Annotated[float, typer.Option(min=0.001, help="What their sizes and times are divided by.")] = 50.0,
    warm_up_s: WarmUp = 60.0,
    measure_s: Measure = 150.0,
    repeats: Repeats = 3,
    seed: Seed = None,
    require: Require = "",
    json_to: JsonFile = None,
    svg_to: SvgFile = None,
) -> None:
    """Interactive runs beside a flood of batch runs: luftpause and other routers, in turn on the same engines.

    Without --arms, those of alone, router, smg, vllm-router, luftpause that are installed. docs/benchmarks.md tells
    how to read the tables.
    """
    if traces is not None and sub_agents != "none":
        options.misused("--traces is for agents that keep their own loop, not for --sub-agents")
    names = None if arm_names is None else tuple(name.strip() for name in arm_names.split(",") if name.strip())
    try:
        low, high = between(tool_s)
        workload = Workload(turns, context_chars, growth_chars, max_tokens, low, high, ignore_eos, tools)
        asked = flood_bench.Flood(
            workload,
            rules(
                where(engine, profile, replicas),
                Timing(warm_up_s, measure_s, repeats),
                seed,
                model=model,
                end=end,
                run_id=run_id,
            ),
            batch=batch,
            interactive=interactive,
            callers=callers,
            sub_agents=sub_agents,
            names=names,
            extra=tuple(arms.given(text) for text in own_arms),
            traces=traces,
            scale=scale,
            required=_bars(require),
        )
    except (ValueError, arms.ArmError) as error:
        options.misused(str(error))
    raise typer.Exit(flood_bench.main(asked, finder(peers), Files(json_to, svg_to)))


def routing(
    *,
    engine: EngineUrls = [],  # noqa: B006
    profile: Profile = "cpu-testbed",
    replicas: Replicas = 2,
    peers: Peers = None,
    tools: Tools = USUAL.tools,
    ignore_eos: IgnoreEos = USUAL.ignore_eos,
    warm_up_s: WarmUp = 20.0,
    measure_s: Measure = 90.0,
    repeats: Repeats = 3,
    seed: Seed = None,
    json_to: JsonFile = None,
    svg_to: SvgFile = None,
) -> None:
    """Eight agents on a pool with room for all: affinity against engines in turn and a cache-aware router (SMG).

    Exits 1 unless luftpause finds as much in caches as SMG and does as many runs, and more than engines in turn.
    """
    asked = rules(where(engine, profile, replicas), Timing(warm_up_s, measure_s, repeats), seed)
    files = Files(json_to, svg_to)
    raise typer.Exit(routing_bench.main(asked, _workload(tools, ignore_eos), finder(peers), files))


def fairness(
    *,
    engine: EngineUrls = [],  # noqa: B006
    profile: Profile = "cpu-testbed",
    replicas: Replicas = 2,
    tools: Tools = USUAL.tools,
    ignore_eos: IgnoreEos = USUAL.ignore_eos,
    warm_up_s: WarmUp = 30.0,
    measure_s: Measure = 90.0,
    repeats: Repeats = 3,
    seed: Seed = None,
    json_to: JsonFile = None,
) -> None:
    """What a caller gets beside one that floods the pool, and batch beside people who wait.

    Exits 1 where a caller with 2 runs beside 40 of another one gets less than 0.8 of its fair rate, where 20 children
    of one parent get more than one caller's share, or where batch stops under 40 interactive runs.
    """
    asked = rules(where(engine, profile, replicas), Timing(warm_up_s, measure_s, repeats), seed)
    raise typer.Exit(fairness_bench.main(asked, _workload(tools, ignore_eos), Files(json_to)))


def light(
    *,
    engine: EngineUrls = [],  # noqa: B006
    profile: Profile = "cpu-testbed",
    replicas: Replicas = 2,
    tools: Tools = USUAL.tools,
    ignore_eos: IgnoreEos = USUAL.ignore_eos,
    warm_up_s: WarmUp = 10.0,
    measure_s: Measure = 60.0,
    pairs: Annotated[int, typer.Option(min=2, max=100, help="Measurements of each arm.")] = 8,
    seed: Seed = None,
    json_to: JsonFile = None,
) -> None:
    """A light load, 4 interactive and 4 batch agents: luftpause must lose nothing against a plain router.

    The two take turns. Exits 1 unless every figure is, with 95 %, at most 3 % worse than the router's.
    """
    asked = rules(where(engine, profile, replicas), Timing(warm_up_s, measure_s, pairs), seed)
    raise typer.Exit(light_bench.main(asked, _workload(tools, ignore_eos), Files(json_to)))


def _workload(tools: ToolStyle, ignore_eos: bool) -> Workload:
    return replace(USUAL, tools=tools, ignore_eos=ignore_eos)


def between(text: str) -> tuple[float, float]:
    """The seconds of `MIN-MAX`. Raises ValueError."""
    low, _, high = text.partition("-")
    try:
        return float(low), float(high or low)
    except ValueError:
        raise ValueError(f"--tool-s {text}: expected seconds, MIN-MAX") from None


def _bars(text: str) -> dict[str, float]:
    bars = {}
    for each in filter(None, text.split(",")):
        key, _, value = each.partition("=")
        try:
            if key not in figures.REQUIREMENTS:
                raise ValueError
            bars[key] = float(value)
        except ValueError:
            known = ", ".join(figures.REQUIREMENTS)
            raise ValueError(f"--require {each}: expected NAME=NUMBER, where NAME is one of {known}") from None
    return bars
