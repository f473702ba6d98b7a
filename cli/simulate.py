"""`simulate`: its options. Must not play anything: `simulator` does."""

from __future__ import annotations

import random
from typing import Annotated

import typer

from cli import options
from cli.comparisons import USUAL, JsonFile, Repeats, SvgFile, Tools, Traces, between
from loadgen.compare import fairness as fair
from loadgen.compare import flood as floods
from loadgen.compare.arms import ArmError
from loadgen.compare.contest import Timing
from loadgen.compare.show import Files
from loadgen.workload import Workload

Minutes = Annotated[float, typer.Option(min=0.01, help="Virtual minutes measured.")]
ArmNames = Annotated[
    str,
    typer.Option(
        "--arms", metavar="NAMES", help="Arms, with commas between: router, round-robin, luftpause, live-N, flight-N."
    ),
]


def simulate(
    *,
    arm_names: ArmNames = "router,luftpause",
    profile: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Engines: a model on a device, or a fitted profile's file.")
    ] = "cpu-testbed",
    replicas: Annotated[int, typer.Option(min=1, max=10_000, help="Number of engines.")] = 2,
    batch: Annotated[int, typer.Option(min=0, max=1_000_000, help="Agents with batch runs.")] = 48,
    interactive: Annotated[int, typer.Option(min=0, max=1_000_000, help="Agents with interactive runs.")] = 4,
    callers: Annotated[int, typer.Option(min=1, help="Callers that the agents of a class are divided among.")] = 1,
    minutes: Minutes = 30.0,
    warm_up_s: Annotated[float, typer.Option(min=0.0, help="Virtual seconds before.")] = 60.0,
    repeats: Repeats = 1,
    turns: Annotated[int, typer.Option(min=1, help="Turns of a run.")] = USUAL.turns,
    context_chars: Annotated[int, typer.Option(min=0, help="Characters a run starts with.")] = USUAL.context_chars,
    growth_chars: Annotated[int, typer.Option(min=0, help="Characters of a tool's result.")] = USUAL.growth_chars,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a reply.")] = USUAL.max_tokens,
    tool_s: Annotated[str, typer.Option(metavar="MIN-MAX", help="How long tools work, seconds.")] = "0.5-2",
    tools: Tools = USUAL.tools,
    end: Annotated[bool, typer.Option(help="Agents tell luftpause the end of a run.")] = True,
    fairness: Annotated[
        bool, typer.Option(help="The loads and bars of `bench fairness`, through luftpause, instead of a flood.")
    ] = False,
    traces: Traces = None,
    scale: Annotated[float, typer.Option(min=0.001, help="What their sizes and times are divided by.")] = 50.0,
    seed: Annotated[int | None, typer.Option(help="Seed of sizes and times. Unset: a new one, printed.")] = None,
    checks: Annotated[bool, typer.Option(help="Check the scheduler's invariants after every decision; slow.")] = False,
    json_to: JsonFile = None,
    svg_to: SvgFile = None,
) -> None:
    """A flood in virtual time: the scheduler's core and simulated engines, half an hour in seconds.

    The same seed gives the same figures on every machine. docs/benchmarks.md tells how to read the tables.
    """
    from fakes.engine import profile_file  # noqa: PLC0415 - each start of the command line would pay for it
    from simulator.arms import named  # noqa: PLC0415
    from simulator.command import Scene, Simulation, main  # noqa: PLC0415
    from simulator.world import World  # noqa: PLC0415

    names = tuple(name.strip() for name in arm_names.split(",") if name.strip())
    try:
        engine = profile_file.named(profile)
    except ValueError as error:
        options.misused(f"--profile {profile}: {error}")
    if not names or not interactive + batch:
        options.misused("expected at least one arm and one agent")
    try:
        for name in names:
            named(name)
        low, high = between(tool_s)
        workload = Workload(turns, context_chars, growth_chars, max_tokens, low, high, tools=tools)
        workload = floods.recorded(traces, scale, engine.max_model_len, workload)
    except (ValueError, ArmError) as error:
        options.misused(str(error))
    both = (
        *floods.groups("interactive", interactive, callers, workload),
        *floods.groups("batch", batch, callers, workload),
    )
    chosen = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    timing = Timing(warm_up_s, 60 * minutes, repeats)
    world = World(engine, replicas, both, ends_runs=end)
    if fairness:
        scenes = tuple(Scene(entry.name, "luftpause", entry.groups) for entry in fair.entries(workload))
        asked = Simulation(world, scenes, timing, chosen, checks, fair.bars)
    else:
        asked = Simulation(world, tuple(Scene(name, name, both) for name in names), timing, chosen, checks)
    told = {"profile": profile, "replicas": replicas, "batch": batch, "interactive": interactive, "minutes": minutes}
    raise typer.Exit(main(asked, told, Files(json_to, svg_to)))
