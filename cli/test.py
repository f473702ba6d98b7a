"""`test`: everything that must hold before a change is committed. ./luftpause installs requirements-dev.lock for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Annotated

import typer
from typer.core import TyperCommand

from cli.state import ROOT

CHECKS: tuple[tuple[str, ...], ...] = (
    ("tools/gen_protos.py", "--check"),
    ("-m", "ruff", "check"),
    ("-m", "ruff", "format", "--check"),
    ("-m", "mypy"),
)

SIDE_BY_SIDE = ("-n", str(2 * (os.cpu_count() or 1)), "--dist", "loadfile")
"""Two processes a core, each with whole files: most tests wait for processes that they start, and use under half of a
core. `-n 0` after it takes it back."""


class Command(TyperCommand):
    """Leaves the options that it does not know to pytest."""

    ignore_unknown_options = True


def test(
    pytest_arguments: Annotated[list[str] | None, typer.Argument(help="Passed on to pytest.")] = None,  # noqa: PT028
) -> None:
    """Run all checks: generated code, lint, format, types, tests. What follows is passed on to pytest."""
    failed = [
        " ".join(arguments)
        for arguments in (*CHECKS, ("-m", "pytest", *SIDE_BY_SIDE, *(pytest_arguments or [])))
        if not _passes(arguments)
    ]
    if failed:
        typer.echo(f"failed: {'; '.join(failed)}", err=True)
        raise typer.Exit(1)
    typer.echo("all checks passed")


def _passes(arguments: tuple[str, ...]) -> bool:
    typer.echo(f"--- {' '.join(arguments)}")
    begun_s = time.monotonic()
    # Settings of the caller's own instance must not reach the services that tests start.
    environment = {key: value for key, value in os.environ.items() if not key.upper().startswith("LUFTPAUSE_")}
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=False)
    typer.echo(f"--- {'passed' if done.returncode == 0 else 'FAILED'} after {time.monotonic() - begun_s:.1f} s")
    return done.returncode == 0
