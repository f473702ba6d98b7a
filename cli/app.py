"""The command line, which `__main__` starts. One module a command, loaded when it is called."""

from __future__ import annotations

import importlib
import os
import signal
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from cli import interrupts, options, state
from common import variables

COMMANDS = ("up", "down", "status", "load", "runs", "forecast", "bench", "simulate", "test")
"""Each is the function of that name in `cli.<name>`, or there the Typer `app` where it has commands of its own."""


class Commands(options.Group):
    """Loads a command's module when it is needed: `up` stays in memory and is not to carry what `load` imports."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - named so by the base
        """All names, as the help shows them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - named so by the base
        """The command, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"cli.{cmd_name}")
        if signal.getsignal(signal.SIGINT) is interrupts.leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if hasattr(module, "app"):
            group = typer.main.get_command(module.app)
            group.name = cmd_name
            return group
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name, cls=getattr(module, "Command", TyperCommand))(getattr(module, cmd_name))
        return typer.main.get_command(single)


app = typer.Typer(
    name="luftpause",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"luftpause {state.version()}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keeps agents' runs together between agent frameworks and engines."""
    unknown = variables.faults(os.environ)
    if unknown:
        options.misused("\n".join(unknown))
