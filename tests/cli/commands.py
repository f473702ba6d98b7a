"""Calling the command line from tests, on free ports and with a state folder of the test's own."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cli import processes
from loadgen.ports import free_ports, free_run
from tests.stack import environment
from tests.waiting import wait_until_sync

STANDINS = "tests.cli.standin_cli"
REAL = "cli"
TIMEOUT_S = 90.0
"""More than `up` gives its services to become healthy."""


@dataclass
class Place:
    """One state folder and the ports of the instance in it."""

    folder: pathlib.Path
    module: str = STANDINS
    settings: dict[str, str] = field(default_factory=dict)
    """More environment variables."""

    def __post_init__(self) -> None:
        self.dataplane, self.scheduler, self.status, self.runtime, self.runtime_grpc, self.tools = free_ports(6)
        self.engine = free_run(3)

    @property
    def state(self) -> pathlib.Path:
        """The state folder."""
        return self.folder / "state"

    @property
    def port_options(self) -> list[str]:
        """The options that set all ports."""
        ports = {
            "dataplane": self.dataplane,
            "scheduler": self.scheduler,
            "status": self.status,
            "runtime": self.runtime,
            "runtime-grpc": self.runtime_grpc,
            "engine": self.engine,
            "tools": self.tools,
        }
        return [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]

    def command(self, name: str, *arguments: str) -> list[str]:
        """The words of `./luftpause name …` for this place."""
        ports = self.port_options if name == "up" else []
        return [sys.executable, "-P", "-m", self.module, name, "--state", str(self.state), *ports, *arguments]

    def call(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Calls a command and waits for its end."""
        command = self.command(name, *arguments)
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=environment(self.settings),
            cwd=self.folder,
        )

    def document(self) -> dict[str, Any]:
        """up.json."""
        document: dict[str, Any] = json.loads((self.state / "up.json").read_text())
        return document

    def recorded(self) -> list[processes.Recorded]:
        """The services' processes by up.json."""
        return [processes.Recorded(**service["process"]) for service in self.document()["services"]]

    def is_ready(self) -> bool:
        """Whether up.json says that all has been healthy."""
        return (self.state / "up.json").exists() and bool(self.document()["ready"])

    @contextlib.contextmanager
    def foreground(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """`up` in the foreground while the block runs, from when it is ready. What it left running is ended."""
        up = subprocess.Popen(
            self.command("up", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(self.settings),
            cwd=self.folder,
        )

        def is_ready() -> bool:
            if up.poll() is not None:
                assert up.stdout
                raise RuntimeError(f"up ended with {up.returncode}: {up.stdout.read()}")
            return self.is_ready()

        started: list[processes.Recorded] = []
        try:
            wait_until_sync(is_ready, TIMEOUT_S, "up is ready")
            started = self.recorded()
            yield up
        finally:
            up.kill()
            up.wait()
            assert up.stdout
            up.stdout.close()
            processes.end(started)

    @contextlib.contextmanager
    def detached(self, *arguments: str) -> Iterator[subprocess.CompletedProcess[str]]:
        """`up --detach` before the block, `down` after it."""
        try:
            done = self.call("up", "--detach", *arguments)
            assert done.returncode == 0, done.stderr + done.stdout
            yield done
        finally:
            self.call("down")


def left(recorded: list[processes.Recorded]) -> list[str]:
    """Names of those whose process, or a child of it, still runs."""
    now = processes.snapshot()
    return [process.name for process in recorded if processes.members(process, now)]
