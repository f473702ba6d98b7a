"""The report of `status` for people. Only prints."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def show(report: dict[str, Any]) -> None:
    """Prints `report`, as `status` makes it."""
    console = Console()
    how = "detached" if report["detached"] else "in the foreground"
    console.print(f"luftpause {report['version']}, {how}, state {report['state']}", soft_wrap=True, highlight=False)
    console.print(_services(report))


def _services(report: dict[str, Any]) -> Table:
    table = Table("service", "health", "pid")
    for service in report["services"]:
        health = "healthy" if service["healthy"] else "not healthy" if service["running"] else "ended"
        table.add_row(service["name"], health, str(service["pid"]))
    return table
