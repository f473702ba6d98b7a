"""`python -m runtime` as a real process, against a fake engine and a fake tool server, for tests of its surfaces."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from loadgen.ports import free_ports
from tests.stack import Service, start, started, wait_healthy


@dataclass
class RuntimeProcess:
    """A runtime and what it needs; `start` and `stop` it as often as you like."""

    folder: pathlib.Path
    settings: dict[str, str]
    port: int
    grpc_port: int
    engine_url: str
    tools_url: str
    token: str | None = None
    service: Service | None = field(default=None)
    tools: Service | None = field(default=None)
    """The tool server."""

    @property
    def url(self) -> str:
        """Base of the HTTP surface."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def mcp_url(self) -> str:
        """Where MCP is."""
        return f"{self.url}/mcp"

    @property
    def ledger(self) -> pathlib.Path:
        """A line for every effect of the tool server."""
        return self.folder / "ledger.jsonl"

    def start(self, *, wait: bool = True) -> Service:
        """Starts the process on the same state folder."""
        self.service = start("runtime", self.settings, self.folder / "runtime.log")
        if wait:
            wait_healthy(self.service, (f"{self.url}/health",))
        return self.service

    def start_tools(self) -> Service:
        """Starts the tool server."""
        self.tools = start("fakes.toolserver", self.settings, self.folder / "tools.log")
        wait_healthy(self.tools, (f"{self.tools_url}/health",))
        return self.tools

    def kill(self) -> None:
        """As a crash would."""
        assert self.service is not None
        self.service.kill()


def tracebacks(log: str) -> list[str]:
    """The entries of a log with a traceback, but for those of a request that crosses the end of its own session.

    The SDK reports one so when a client leaves, and its attempt to answer fails in the HTTP server.
    """
    return [
        entry
        for entry in re.split(r"^(?=\d{4}-\d\d-\d\d \S+ level=)", log, flags=re.MULTILINE)
        if "Traceback" in entry
        and not ("in _handle_post_request\n" in entry and "\nanyio.ClosedResourceError\n" in entry)
    ]


@contextlib.contextmanager
def running_runtime(
    folder: pathlib.Path, settings: Mapping[str, str] | None = None, *, begin: bool = True
) -> Iterator[RuntimeProcess]:
    """Runs engine, tool server and runtime while the block runs; all must end cleanly if they live then."""
    port, grpc_port, engine_port, tools_port = free_ports(4)
    tools = folder / "tools.toml"
    tools.write_text(f'[[server]]\nname = "fake"\nurl = "http://127.0.0.1:{tools_port}/mcp"\n')
    shared = {
        "LUFTPAUSE_STATE": str(folder / "state"),
        "LUFTPAUSE_ENGINE_PORTS": str(engine_port),
        "LUFTPAUSE_ENGINE_SPEED": "50",
        "LUFTPAUSE_ENGINE_TOOL_CALLS": "0",
        "LUFTPAUSE_TOOLS_PORT": str(tools_port),
        "LUFTPAUSE_TOOLS_LOOKUP_S": "0",
        "LUFTPAUSE_TOOLS_LEDGER": str(folder / "ledger.jsonl"),
        "LUFTPAUSE_RUNTIME_PORT": str(port),
        "LUFTPAUSE_RUNTIME_GRPC_PORT": str(grpc_port),
        "LUFTPAUSE_RUNTIME_DATAPLANE": f"http://127.0.0.1:{engine_port}",
        "LUFTPAUSE_RUNTIME_TOOLS": str(tools),
        **(settings or {}),
    }
    made = RuntimeProcess(
        folder=folder,
        settings=shared,
        port=port,
        grpc_port=grpc_port,
        engine_url=f"http://127.0.0.1:{engine_port}",
        tools_url=f"http://127.0.0.1:{tools_port}",
        token=shared.get("LUFTPAUSE_TOKEN"),
    )
    made.ledger.touch()
    with started("fakes.engine", shared, folder / "engine.log") as engine:
        wait_healthy(engine, (f"{made.engine_url}/health",))
        try:
            made.start_tools()
            if begin:
                made.start()
            yield made
        finally:
            ended = [
                (service, service.stop())
                for service in (made.service, made.tools)
                if service is not None and service.process.poll() is None
            ]
        for service, code in ended:
            assert code == 0, f"{service.name} ended with {code}: {service.text()[-4000:]}"
        if made.service is not None and (made.service, 0) in ended:
            assert not tracebacks(made.service.text())
