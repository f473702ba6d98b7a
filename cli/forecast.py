"""`forecast`: what a run's next steps will take."""

from __future__ import annotations

import json
import urllib.parse
from typing import Annotated

import typer

from cli import options, state, web


def forecast(
    run: Annotated[str, typer.Argument(help="The run's id.")],
    steps: Annotated[int, typer.Option(min=1, max=10_000, help="Steps to look ahead.")] = 10,
    caller: Annotated[
        str, typer.Option(metavar="NAME", help="Whose run it is, as its turns say in x-luftpause-caller.")
    ] = "",
    state_folder: options.State = options.DEFAULT_STATE,
    print_json: options.Json = False,
) -> None:
    """Show the tokens, money and waits that a run's next steps will take, each with its spread.

    Of runs whose turns went to replicas with rate limits or prices. Without --caller the run is the anonymous caller's,
    or that of the caller whom the token is bound to.
    """
    try:
        instance = state.read(state_folder)
    except state.StateError as error:
        options.fail(str(error))
    if instance is None:
        options.fail(f"nothing is up (state {state_folder})")
    query = urllib.parse.urlencode({"run": run, "steps": steps})
    answer = web.get(f"{instance.dataplane_url}/v1/forecast?{query}", options.token(), caller=caller)
    if not answer.is_ok:
        options.fail(_fault(answer))
    if print_json:
        typer.echo(answer.body.decode())
        return
    told = json.loads(answer.body)
    typer.echo(f"the next {told['steps']} steps of {told['run']}: mean (19 times of 20 at most)")
    for name, title in (
        ("tokens", "tokens"),
        ("usd", "US dollars"),
        ("wait_s", "waits, s"),
        ("suspensions", "suspensions"),
    ):
        figure = told[name]
        typer.echo(f"  {title:<12} {figure['mean']:>14,.4g} ({figure['p95']:,.4g})")


def _fault(answer: web.Answer) -> str:
    if answer.error:
        return answer.error
    try:
        return str(json.loads(answer.body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status}"
