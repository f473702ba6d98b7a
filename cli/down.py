"""`down`: ends what `up` started, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import typer

from cli import options, processes, state

_SUPERVISOR_WITHIN_S = processes.PATIENCE_S + 3.0
_LOOK_INTERVAL_S = 0.05


def down(state_folder: options.State = options.DEFAULT_STATE) -> None:
    """End what is up, with all its processes. Where nothing is up, it says so and exits 0."""
    try:
        instance = state.read(state_folder)
    except state.StateError as error:
        options.fail(str(error))
    if instance is None:
        typer.echo(f"nothing is up (state {state_folder})")
        return
    was_up = _end(instance)
    state.remove(state_folder)
    typer.echo("luftpause is down" if was_up else f"nothing was up any more (state {state_folder})")


def _end(instance: state.Instance) -> bool:
    """Ends all of `instance`; whether any of it was running."""
    now = processes.snapshot()
    was_up = any(processes.members(process, now) for process in instance.processes())
    if instance.supervisor is not None and processes.is_running(instance.supervisor, now):
        # It ends its services itself, and would else take their end for a failure.
        _ask_supervisor(instance.supervisor)
    for name in processes.end(instance.processes()):
        typer.echo(f"luftpause: {name} did not end within {processes.PATIENCE_S:.0f} s and was killed", err=True)
    return was_up


def _ask_supervisor(supervisor: processes.Recorded) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(supervisor.pid, signal.SIGTERM)
    deadline = time.monotonic() + _SUPERVISOR_WITHIN_S
    while processes.is_running(supervisor, processes.snapshot()) and time.monotonic() < deadline:
        time.sleep(_LOOK_INTERVAL_S)
