"""`bench fidelity`: its options. Must not measure: `simulator.fidelity` does."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

from cli import options
from cli.comparisons import USUAL, JsonFile, Seed, rules
from loadgen.compare.contest import Timing

_LOADS = "2+8,4+24,4+48"


def fidelity(
    *,
    engine: Annotated[
        list[str], typer.Option("--engine", metavar="URL", help="A real engine, on which nothing else runs; repeat it.")
    ],
    profile: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="Profile to judge. Unset: one is fitted to sweeps on the engines."),
    ] = "",
    write: Annotated[
        pathlib.Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write the profile, for --profile.")
    ] = None,
    loads: Annotated[
        str, typer.Option(metavar="LOADS", help="Interactive+batch agents of each flood; empty: none.")
    ] = _LOADS,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most requests that an engine runs at once.")] = 16,
    token_budget: Annotated[int, typer.Option(min=1, help="Most tokens of an engine's step.")] = 2_048,
    warm_up_s: Annotated[float, typer.Option(min=0.0, help="Seconds before each flood is measured.")] = 60.0,
    measure_s: Annotated[float, typer.Option(min=0.1, help="Seconds that each flood is measured.")] = 150.0,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Measurements of each flood; medians are shown.")] = 1,
    seed: Seed = None,
    json_to: JsonFile = None,
) -> None:
    """The simulator against real engines: constants fitted to sweeps, judged on floods that were not among them.

    Exits 1 where runs/min or the run p50 of a class is off by more than 15 %, or the cached share by more than 10
    points. --max-num-seqs and --token-budget are the engine's own, which it does not tell.
    """
    from fakes.engine import profile_file  # noqa: PLC0415 - each start of the command line would pay for it
    from simulator.fidelity import Fidelity, main  # noqa: PLC0415
    from simulator.sweeps import Limits  # noqa: PLC0415

    for url in engine:
        if not url.startswith(("http://", "https://")):
            options.misused(f"--engine {url}: expected an http:// or https:// URL")
    urls = tuple(url.rstrip("/").removesuffix("/v1") for url in engine)
    try:
        given = profile_file.named(profile) if profile else None
    except ValueError as error:
        options.misused(f"--profile {profile}: {error}")
    asked = Fidelity(
        engines=urls,
        rules=rules(urls, Timing(warm_up_s, measure_s, repeats), seed),
        loads=tuple(_load(text) for text in loads.split(",") if text),
        workload=USUAL,
        limits=Limits(max_num_seqs, token_budget),
        profile=given,
        write=write,
    )
    raise typer.Exit(main(asked, json_to))


def _load(text: str) -> tuple[int, int]:
    interactive, plus, batch = text.strip().partition("+")
    if not (plus and interactive.isdecimal() and batch.isdecimal() and int(interactive) + int(batch)):
        options.misused(f"--loads {text}: expected INTERACTIVE+BATCH agents, such as 4+24")
    return int(interactive), int(batch)
