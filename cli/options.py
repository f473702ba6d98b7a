"""Options that several commands share, and how a command fails: with 2 if it was called wrongly, else with 1."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from cli import state
from common.secret import SECRET_SHAPE, is_secret

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
TOKEN_VARIABLE = "LUFTPAUSE_TOKEN"  # noqa: S105 - the name of a variable
DEFAULT_STATE = state.DEFAULT


class Group(TyperGroup):
    """Commands, listed in a table, which shows their sentences whole. Their own help is plain (`rich_markup_mode=None`
    of their Typer): a table would cut defaults that are wider than its columns in 80."""

    def __init__(self, **settings: Any) -> None:
        """As the base class."""
        super().__init__(**{**settings, "rich_markup_mode": "rich"})


Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def token(variable: str = TOKEN_VARIABLE) -> str | None:
    """The token that is shown to the services. Ends the command where no header can carry it."""
    found = os.environ.get(variable) or None
    if found is not None and not is_secret(found):
        misused(f"{variable}: expected {SECRET_SHAPE}")
    return found


def fail(text: str) -> NoReturn:
    """Ends the command with `text` on stderr and exit code 1."""
    _end(text, 1)


def misused(text: str) -> NoReturn:
    """Ends the command with `text` on stderr and exit code 2: options or variables of the call are wrong."""
    _end(text, 2)


def _end(text: str, code: int) -> NoReturn:
    for line in text.splitlines():
        # Indented lines belong to the one before, e.g. the last ones of a service.
        print(line if line.startswith(" ") else f"luftpause: {line}", file=sys.stderr)
    raise typer.Exit(code)
