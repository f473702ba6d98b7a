"""Options that several commands share, and how a command fails."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Annotated, NoReturn

import typer

from cli import state

State = Annotated[
    pathlib.Path,
    typer.Option(
        "--state",
        metavar="DIR",
        envvar="LUFTPAUSE_STATE",
        help="State folder; names the instance, several live side by side.",
        show_default=".luftpause beside ./luftpause",
        resolve_path=True,
    ),
]
DEFAULT_STATE = state.DEFAULT

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def token() -> str | None:
    """The token that is shown to the services."""
    return os.environ.get("LUFTPAUSE_TOKEN") or None


def fail(text: str) -> NoReturn:
    """Ends the command with `text` on stderr and exit code 1."""
    print(f"luftpause: {text}", file=sys.stderr)
    raise typer.Exit(1)
