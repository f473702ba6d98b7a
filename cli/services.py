"""What `up` can start: one entry a service. Pure.

A further service is one more entry in `table`, and an option of `up` for each of its ports. `supervisor` starts them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

HOST = "127.0.0.1"
NAMES = ("engines", "tools", "scheduler", "dataplane", "runtime")
"""What `--only` knows, in the order of starting."""
FAKE_ENGINES = 2
FAKE_TOOL_SERVER = "fake"


OPTIONS = {
    "LUFTPAUSE_ENGINE_PORTS": "--engine-port",
    "LUFTPAUSE_TOOLS_PORT": "--tools-port",
    "LUFTPAUSE_SCHEDULER_PORT": "--scheduler-port",
    "LUFTPAUSE_SCHEDULER_STATUS_PORT": "--status-port",
    "LUFTPAUSE_DATAPLANE_PORT": "--dataplane-port",
    "LUFTPAUSE_DATAPLANE_SCHEDULER": "--scheduler-port",
    "LUFTPAUSE_DATAPLANE_WORKERS": "--workers",
    "LUFTPAUSE_RUNTIME_PORT": "--runtime-port",
    "LUFTPAUSE_RUNTIME_GRPC_PORT": "--runtime-grpc-port",
    "LUFTPAUSE_RUNTIME_DATAPLANE": "--dataplane-port",
}
"""The variables that `up` sets itself (those of every `Service.settings`), each with its option that decides them."""

NOT_ON_LOOPBACK = ("LUFTPAUSE_TLS_CERT", "LUFTPAUSE_TLS_KEY", "LUFTPAUSE_TLS_CA")
"""Settings for services that are reached over a network, which those of `up` are not."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one instance; each field is the option `--<field>-port`."""

    dataplane: int = 8080
    scheduler: int = 5000
    status: int = 5001
    runtime: int = 7000
    runtime_grpc: int = 7001
    engine: int = 9001
    """Of the first fake engine; the others follow, and behind them the classifier."""
    tools: int = 9100

    @property
    def engine_urls(self) -> tuple[str, ...]:
        """The fake engines' URLs."""
        return tuple(f"http://{HOST}:{self.engine + n}" for n in range(FAKE_ENGINES))

    @property
    def classifier_url(self) -> str:
        """The fake engine that is the pool's one-shot replica."""
        return f"http://{HOST}:{self.engine + FAKE_ENGINES}"

    @property
    def dataplane_url(self) -> str:
        """Where clients go."""
        return f"http://{HOST}:{self.dataplane}"

    @property
    def runtime_url(self) -> str:
        """Where MCP clients go, below `/mcp`."""
        return f"http://{HOST}:{self.runtime}"

    @property
    def tools_url(self) -> str:
        """The fake tool server."""
        return f"http://{HOST}:{self.tools}"

    @property
    def status_url(self) -> str:
        """The scheduler's HTTP surface."""
        return f"http://{HOST}:{self.status}"

    @property
    def scheduler_target(self) -> str:
        """host:port of the scheduler's gRPC."""
        return f"{HOST}:{self.scheduler}"


def answers(_body: bytes) -> bool:
    """Any 2xx is healthy."""
    return True


def has_scheduler(body: bytes) -> bool:
    """Whether a dataplane's /health says that its stream to the scheduler is open."""
    return _scheduler_of(body) == "connected"


def _scheduler_of(body: bytes) -> object:
    try:
        return json.loads(body)["scheduler"]
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Service:
    """How one service is started, and how it shows that it is healthy."""

    name: str
    module: str
    ports: tuple[tuple[str, int], ...]
    """Ports it listens on, each with the option that changes it."""
    health_urls: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables on top of those that all get."""
    is_healthy: Callable[[bytes], bool] = answers
    """Reads the body of a 2xx of a health URL."""


def table(ports: Ports, workers: int) -> dict[str, Service]:
    """Every service of one instance by its name, in the order of starting. `workers` is dataplane processes."""
    engine_ports = [ports.engine + n for n in range(FAKE_ENGINES + 1)]
    services = (
        Service(
            name="engines",
            module="fakes.engine",
            ports=tuple(("--engine-port", port) for port in engine_ports),
            health_urls=tuple(f"{url}/health" for url in (*ports.engine_urls, ports.classifier_url)),
            settings={"LUFTPAUSE_ENGINE_PORTS": ",".join(map(str, engine_ports))},
        ),
        Service(
            name="tools",
            module="fakes.toolserver",
            ports=(("--tools-port", ports.tools),),
            health_urls=(f"{ports.tools_url}/health",),
            settings={"LUFTPAUSE_TOOLS_PORT": str(ports.tools)},
        ),
        Service(
            name="scheduler",
            module="scheduler",
            ports=(("--scheduler-port", ports.scheduler), ("--status-port", ports.status)),
            health_urls=(f"{ports.status_url}/health",),
            settings={
                "LUFTPAUSE_SCHEDULER_PORT": str(ports.scheduler),
                "LUFTPAUSE_SCHEDULER_STATUS_PORT": str(ports.status),
            },
        ),
        Service(
            name="dataplane",
            module="dataplane",
            ports=(("--dataplane-port", ports.dataplane),),
            health_urls=(f"{ports.dataplane_url}/health",),
            settings={
                "LUFTPAUSE_DATAPLANE_PORT": str(ports.dataplane),
                "LUFTPAUSE_DATAPLANE_SCHEDULER": ports.scheduler_target,
                "LUFTPAUSE_DATAPLANE_WORKERS": str(workers),
            },
            is_healthy=has_scheduler,
        ),
        Service(
            name="runtime",
            module="runtime",
            ports=(("--runtime-port", ports.runtime), ("--runtime-grpc-port", ports.runtime_grpc)),
            health_urls=(f"{ports.runtime_url}/health",),
            settings={
                "LUFTPAUSE_RUNTIME_PORT": str(ports.runtime),
                "LUFTPAUSE_RUNTIME_GRPC_PORT": str(ports.runtime_grpc),
                "LUFTPAUSE_RUNTIME_DATAPLANE": ports.dataplane_url,
            },
        ),
    )
    return {service.name: service for service in services}


def shared_settings(state: str, pool: str) -> dict[str, str]:
    """Environment variables that all services get. The token reaches them as it reached us."""
    return {"LUFTPAUSE_STATE": state, "LUFTPAUSE_POOL": pool}


def tools_text(ports: Ports) -> str:
    """The runtime's tools file (TOML) that names the fake tool server."""
    return f'[[server]]\nname = "{FAKE_TOOL_SERVER}"\nurl = "{ports.tools_url}/mcp"\n'
