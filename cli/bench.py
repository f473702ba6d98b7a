"""`bench`: measures one part and compares it with its bar. The measuring itself is in loadgen."""

from __future__ import annotations

import os
import pathlib
import random
from typing import Annotated

import typer

from cli import comparisons, options
from cli.fidelity import fidelity

app = typer.Typer(
    cls=options.Group,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    help="Measure a part against its bar; exits non-zero where the bar is missed.",
)

for command in (comparisons.flood, comparisons.routing, comparisons.fairness, comparisons.light, fidelity):
    app.command()(command)


@app.command()
def core(print_json: options.Json = False) -> None:
    """Events a second of the scheduler's core, and how their cost grows with runs and held turns.

    Its bar is for a quiet machine. Takes about a minute.
    """
    from loadgen.bench_core import main  # noqa: PLC0415 - each start of the command line would pay for it

    raise typer.Exit(main(json_output=print_json))


@app.command()
def relay(print_json: options.Json = False) -> None:
    """CPU time a turn and a streamed chunk, memory of open streams, and how fast disconnects arrive.

    Dataplane and scheduler together, beside nginx where that command is there, else beside a direct connection. Takes
    about a minute and wants a quiet machine with two cores. Linux alone: elsewhere it says so and exits 0.
    """
    from loadgen.bench_relay import main  # noqa: PLC0415

    raise typer.Exit(main(json_output=print_json))


@app.command()
def streams(
    number: Annotated[int, typer.Option("--streams", min=20, max=3500, help="How many are open at once.")] = 2_000,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long their chunks are timed.")] = 60,
    print_json: options.Json = False,
) -> None:
    """Thousands of streams open at once, 1 % of them never read: what that costs the others.

    Beside 100 streams with as many chunks a second. Those that are never read must be cut and free their slots. Takes
    about two minutes and wants a quiet machine with two cores. Linux alone: elsewhere it says so and exits 0.
    """
    from loadgen.bench_streams import Counts, main  # noqa: PLC0415

    counts = Counts(streams=number, stuck=max(1, number // 100), seconds=seconds)
    raise typer.Exit(main(json_output=print_json, counts=counts))


@app.command()
def fanout(print_json: options.Json = False) -> None:
    """Sixteen sub-agents together, against one after another, and against the same without luftpause.

    Tasks of 2,800 tokens with one to three tool calls of 2 s each; engines and tools are simulated. Takes about two and
    a half minutes, most of it one after another.
    """
    from loadgen.bench_fanout import main  # noqa: PLC0415

    raise typer.Exit(main(json_output=print_json))


@app.command()
def chaos(
    minutes: Annotated[float, typer.Option(min=0.1, max=600, help="How long things go wrong.")] = 10,
    seed: Annotated[
        int | None, typer.Option(help="Seed of what goes wrong; none: a new one, which is printed.")
    ] = None,
    logs: Annotated[
        pathlib.Path | None, typer.Option(metavar="DIR", file_okay=False, help="Keep the services' logs there.")
    ] = None,
    print_json: options.Json = False,
) -> None:
    """Floods all services while they are killed, frozen, cut off and out of disk; counts what was lost or done twice.

    Nothing may be lost, doubled, stuck or leaked, memory must not grow. Starts everything itself, on free ports. Linux
    alone: elsewhere it says so and exits 0.
    """
    from loadgen.bench_chaos import main  # noqa: PLC0415

    if logs is not None and logs.exists() and any(logs.iterdir()):
        options.misused(f"--logs: expected a new or empty folder, {logs} is not")
    chosen = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    raise typer.Exit(main(minutes, chosen, json_output=print_json, logs=logs))


@app.command()
def decide(print_json: options.Json = False) -> None:
    """What luftpause adds to a classifier's own latency, alone and beside 20 agents.

    Engines and classifier are simulated. Takes about half a minute; its bars are for a machine that is not busy.
    """
    from loadgen.bench_decide import main  # noqa: PLC0415

    raise typer.Exit(main(json_output=print_json))


@app.command()
def ratelimit(
    *,
    arms: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Arms, with commas between: reactive, agentpause, litellm, luftpause; none: all that are installed.",
        ),
    ] = None,
    peers: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="DIR", envvar="PEERS", help="Python environment that has agentpause and litellm."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Steps of each of the 20 agents.")] = 12,
    speed: Annotated[float, typer.Option(min=1, max=50, help="How many times faster than usual all goes.")] = 20,
    fixed: Annotated[bool, typer.Option("--fixed", help="Windows that are full again at once.")] = False,
    print_json: options.Json = False,
) -> None:
    """Twenty agents on one endpoint of 6,000 tokens and 30 requests a minute: 429s, tokens re-sent, wall time.

    Agents that retry, those of the agentpause package and LiteLLM's router where they are installed, and luftpause, on
    the same tasks, against a simulated provider. Takes about a minute and a half each. Peers wait in seconds of their
    own, so compare with them at --speed 1, where each takes about half an hour.
    """
    from loadgen.bench_ratelimit import ARMS, main  # noqa: PLC0415
    from loadgen.ratelimit_rig import Counts  # noqa: PLC0415

    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else importing it asks a server for prices
    names = None if arms is None else tuple(arms.split(","))
    unknown = [name for name in names or () if name not in ARMS]
    if unknown:
        options.misused(f"--arms: expected some of {', '.join(ARMS)}, not {unknown[0]}")
    counts = Counts(steps=steps, speed=speed, fixed=fixed)
    raise typer.Exit(main(counts, names, json_output=print_json, peers=peers))
