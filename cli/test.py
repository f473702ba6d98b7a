"""`test`: everything that must hold before a change is committed. ./luftpause installs requirements-dev.lock for it."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time
from typing import IO, Annotated

import typer
from typer.core import TyperCommand

from cli.state import ROOT

CHECKS: tuple[tuple[str, ...], ...] = (
    ("tools/gen_protos.py", "--check"),
    ("-m", "ruff", "check"),
    ("-m", "ruff", "format", "--check"),
)
TYPES = ("-m", "mypy")

SIDE_BY_SIDE = ("-n", str(2 * (os.cpu_count() or 1)), "--dist", "loadfile")
"""Two processes a core, each with whole files: most tests wait for processes that they start, and use under
half of a core. `-n 0` after it takes it back."""


_COMPILED = ROOT / ".venv" / "compiled"


class Command(TyperCommand):
    """Leaves the options that it does not know to pytest."""

    ignore_unknown_options = True


def test(
    pytest_arguments: Annotated[list[str] | None, typer.Argument(help="Passed on to pytest.")] = None,  # noqa: PT028
) -> None:
    """Run all checks: generated code, lint, format, types, tests. What follows is passed on to pytest."""
    tests = ("-m", "pytest", *SIDE_BY_SIDE, *(pytest_arguments or []))
    failed = [_words(each) for each in CHECKS if not _passes(each)]
    with tempfile.TemporaryFile("w+") as said, concurrent.futures.ThreadPoolExecutor(1) as beside:
        types = beside.submit(_passes, TYPES, said)
        failed += [] if _passes(tests) else [_words(tests)]
        failed += [] if types.result() else [_words(TYPES)]
        said.seek(0)
        typer.echo(said.read(), nl=False)
    if failed:
        typer.echo(f"failed: {'; '.join(failed)}", err=True)
        raise typer.Exit(1)
    typer.echo("all checks passed")


def _passes(arguments: tuple[str, ...], to: IO[str] | None = None) -> bool:
    """Runs a check; what it says goes where ours does, or `to` a file."""
    print(f"--- {_words(arguments)}", file=to, flush=True)
    begun_s = time.monotonic()
    # Settings of the caller's own instance must not reach the services that tests start; and these are many, so that
    # what is compiled is kept, also where the caller keeps none.
    environment = {key: value for key, value in os.environ.items() if not key.upper().startswith("LUFTPAUSE_")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(_COMPILED)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=to, stderr=to and subprocess.STDOUT, check=False
    )
    passed = "passed" if done.returncode == 0 else "FAILED"
    print(f"--- {passed} after {time.monotonic() - begun_s:.1f} s", file=to, flush=True)
    return done.returncode == 0


def _words(arguments: tuple[str, ...]) -> str:
    return " ".join(arguments)
