"""The command line with stand-ins in place of the services: `python -m tests.cli.standin_cli up …`."""

from __future__ import annotations

import dataclasses

from cli import services
from cli.app import app

_table = services.table


def table(ports: services.Ports, workers: int) -> dict[str, services.Service]:
    """The real table, each entry with a stand-in that listens where the real one would."""
    return {
        name: dataclasses.replace(
            service,
            module="tests.cli.standin",
            settings={**service.settings, "STANDIN_PORTS": ",".join(str(port) for _, port in reversed(service.ports))},
        )
        for name, service in _table(ports, workers).items()
    }


services.table = table

if __name__ == "__main__":
    app(prog_name="./luftpause")
