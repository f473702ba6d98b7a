"""`status`: what is up, whether it is healthy, and what the scheduler says of itself."""

from __future__ import annotations

import json
import pathlib
from http import HTTPStatus
from typing import Any

import typer

from cli import options, processes, state, tool_servers, web


def status(
    state_folder: options.State = options.DEFAULT_STATE,
    print_json: options.Json = False,
) -> None:
    """Show what is up. Exits 0 where all of it is healthy, replicas and tool servers included, else 1."""
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
    if not _is_healthy(report):
        raise typer.Exit(1)


def _is_healthy(report: dict[str, Any]) -> bool:
    """Whether every service, replica and tool server is healthy; a scheduler that tells no status is not."""
    replicas = report["scheduler"]["replicas"] if report["scheduler"] else []
    healthy = all(each["healthy"] for each in [*report["services"], *replicas])
    return healthy and not report["scheduler_error"] and not tool_servers.faults(report["tool_servers"])


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
    scheduler = None
    if any(service["name"] == "scheduler" for service in services):
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
        "scheduler": json.loads(scheduler.body) if scheduler and scheduler.is_ok else None,
        "scheduler_error": _fault(scheduler) if scheduler else "",
        "tool_servers": tool_servers.told(instance),
        "hint": _hint(folder, instance, services, now),
    }


def _fault(answer: web.Answer) -> str:
    """Why the scheduler's status could not be read, or nothing."""
    if answer.is_ok:
        return ""
    if answer.status == HTTPStatus.UNAUTHORIZED:
        return "HTTP 401: set LUFTPAUSE_TOKEN to the token that the services have"
    return answer.error or f"HTTP {answer.status}"


def _hint(
    folder: pathlib.Path, instance: state.Instance, services: list[dict[str, Any]], now: dict[int, processes.Seen]
) -> str:
    """What to do about an instance that is not whole any more."""
    if instance.supervisor is not None and not processes.is_running(instance.supervisor, now):
        return f"the up that watched it is gone; {state.command('down', folder)} clears up"
    if not all(service["running"] for service in services):
        again, end = state.command("up --detach", folder), state.command("down", folder)
        return f"{again} starts what has ended, {end} ends what is left"
    return ""
