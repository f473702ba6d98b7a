"""`status`: what is up, whether it is healthy, and what the scheduler says of itself."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import typer

from cli import options, processes, state, web


def status(
    state_folder: options.State = options.DEFAULT_STATE,
    print_json: options.Json = False,
) -> None:
    """Show what is up. Exits 0 where all of it is healthy, else 1."""
    try:
        instance = state.read(state_folder)
    except state.StateError as error:
        options.fail(str(error))
    if instance is None:
        typer.echo(json.dumps({"up": False}) if print_json else f"nothing is up (state {state_folder})")
        raise typer.Exit(1)
    report = _report(state_folder, instance)
    if print_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        from cli import status_tables  # noqa: PLC0415 - loading rich takes longer than asking the services

        status_tables.show(report)
    if not all(service["healthy"] for service in report["services"]):
        raise typer.Exit(1)


def _report(folder: pathlib.Path, instance: state.Instance) -> dict[str, Any]:
    now = processes.snapshot()
    services = []
    for service in instance.services:
        running = processes.is_running(service.process, now)
        answers = [web.get(url) for url in service.health_urls] if running else []
        services.append(
            {
                "name": service.process.name,
                "pid": service.process.pid,
                "running": running,
                "healthy": running and all(answer.is_ok for answer in answers),
            }
        )
    scheduler = web.get(f"{instance.status_url}/status", options.token())
    return {
        "up": any(service["running"] for service in services),
        "version": instance.version,
        "state": str(folder),
        "detached": instance.supervisor is None,
        "dataplane_url": instance.dataplane_url,
        "status_url": instance.status_url,
        "scheduler_target": instance.scheduler_target,
        "services": services,
        "scheduler": _document(scheduler),
        "scheduler_error": "" if scheduler.is_ok else scheduler.error or f"HTTP {scheduler.status}",
    }


def _document(answer: web.Answer) -> dict[str, Any] | None:
    if not answer.is_ok:
        return None
    document: dict[str, Any] = json.loads(answer.body)
    return document
