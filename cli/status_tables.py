"""The report of `status` for people. Only prints."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from cli import tool_servers


def show(report: dict[str, Any]) -> None:
    """Prints `report`, as `status` makes it."""
    console = Console()
    how = "detached" if report["detached"] else "in the foreground"
    console.print(f"luftpause {report['version']}, {how}, state {report['state']}", soft_wrap=True, highlight=False)
    console.print(_services(report["services"]))
    if report["scheduler"] is not None:
        _show_scheduler(console, report["scheduler"])
    if report["scheduler_error"]:
        console.print(f"the scheduler tells no status: {report['scheduler_error']}", soft_wrap=True, highlight=False)
    for fault in tool_servers.faults(report["tool_servers"]):
        console.print(fault, soft_wrap=True, highlight=False, markup=False)
    if report["hint"]:
        console.print(report["hint"], soft_wrap=True, highlight=False)


def _show_scheduler(console: Console, scheduler: dict[str, Any]) -> None:
    console.print(_replicas(scheduler["replicas"]))
    if any(replica.get("limits") or replica.get("rests_s") for replica in scheduler["replicas"]):
        console.print(_limits(scheduler["replicas"]))
    if scheduler["held"]:
        console.print(_held(scheduler["held"]))
    console.print(_runs(scheduler["runs"]))


def _services(services: list[dict[str, Any]]) -> Table:
    table = Table("service", "health", "pid", box=SIMPLE)
    for service in services:
        health = "healthy" if service["healthy"] else "not healthy" if service["running"] else "ended"
        table.add_row(service["name"], health, str(service["pid"]))
    return table


def _replicas(replicas: list[dict[str, Any]]) -> Table:
    table = Table("replica", "models", "health", "turns in flight", "engine", "KV in use", box=SIMPLE)
    for replica in replicas:
        running, waiting = replica["engine_running"], replica["engine_waiting"]
        table.add_row(
            replica["name"],
            ", ".join(replica["models"]) if replica["models"] is not None else "not known yet",
            "healthy" if replica["healthy"] else "not healthy",
            str(replica["in_flight"]) + (f" of {replica['capacity']}" if replica["capacity"] is not None else ""),
            "-" if running is None else f"{running} running" + (f", {waiting} queued" if waiting else ""),
            "-" if replica["kv_usage"] is None else f"{replica['kv_usage']:.0%}",
        )
    return table


def _limits(replicas: list[dict[str, Any]]) -> Table:
    table = Table("rate limits", "of", "left", "of", "in flight", "full again", box=SIMPLE)
    for replica in replicas:
        for limit in replica.get("limits", ()):
            numbers = (f"{limit[name]:,.6g}" for name in ("left", "limit", "in_flight"))
            how = "at once in" if limit["fixed"] else "in"
            again = f"{how} {limit['full_in_s']:.1f} s" if limit["full_in_s"] else "is full"
            table.add_row(
                replica["name"],
                f"{limit['dimension']} a {limit['period_s']:g} s",
                *numbers,
                again,
            )
        if replica.get("rests_s"):
            table.add_row(replica["name"], "all", "0", "", "", f"rests for {replica['rests_s']:.1f} s")
    return table


def _held(held: list[dict[str, Any]]) -> Table:
    table = Table("held turns", "class", "caller", "oldest waits", "because", box=SIMPLE)
    for row in held:
        caller = row["caller"] or "(anonymous)"
        table.add_row(str(row["turns"]), row["class"], caller, f"{row['oldest_wait_s']:.1f} s", row["reason"])
    return table


def _runs(runs: list[dict[str, Any]]) -> Table:
    classes = list(dict.fromkeys(row["class"] for row in runs))
    table = Table("runs", *classes, box=SIMPLE)
    for phase in dict.fromkeys(row["phase"] for row in runs):
        counts = {row["class"]: row["runs"] for row in runs if row["phase"] == phase}
        table.add_row(phase, *(str(counts.get(run_class, 0)) for run_class in classes))
    return table
