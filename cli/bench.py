"""`bench`: measures one part and compares it with its bar. The measuring itself is in loadgen."""

from __future__ import annotations

import typer

from cli import bench_flood, options

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Measure a part against its bar; exits non-zero where the bar is missed.",
)

app.command("flood")(bench_flood.run)


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
def fanout(print_json: options.Json = False) -> None:
    """Sixteen sub-agents together, against one after another, and against the same without luftpause.

    Tasks of 2,800 tokens with one to three tool calls of 2 s each; engines and tools are simulated. Takes about two and
    a half minutes, most of it one after another.
    """
    from loadgen.bench_fanout import main  # noqa: PLC0415

    raise typer.Exit(main(json_output=print_json))
