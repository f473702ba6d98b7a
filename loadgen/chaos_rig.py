"""The services of a chaos as processes, the proxies between them, and what goes wrong with both.

    clients → dataplane-0, dataplane-1 → link → engine-0, engine-1       (the scheduler probes through the same links)
              dataplane-N → link → scheduler        runtime → link → dataplane-0        runtime → tools

A full disk is played by RLIMIT_FSIZE, which needs no rights: a limit on the size of files is set on the running
runtime, so that every write of its journal fails, as on a full disk, and what it has written can still be read. Then
it is started anew, without the limit, as somebody would do who has made room.
Must not judge: `chaos_check` does. Read next: `chaos_link`, `chaos_load`.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.chaos_link import HOST, Link
from loadgen.chaos_plan import ENGINES, LINKS, SERVICES, Fault
from loadgen.ports import free_ports
from loadgen.relay_rig import RigError, python

MODEL = "fake-1b"
MAX_IN_FLIGHT = 8
"""Turns in flight a replica: low, so that turns are held."""
HEALTHY_WITHIN_S = 60.0
ENDED_WITHIN_S = 10.0
_LOOK_INTERVAL_S = 0.1
_ASK_WITHIN_S = 2.0
_ROOT = pathlib.Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Ports:
    """Where everything listens, links apart."""

    engines: tuple[int, int]
    dataplanes: tuple[int, int]
    grpc: int
    status: int
    runtime: int
    runtime_grpc: int
    tools: int

    @classmethod
    def choose(cls) -> Ports:
        """Free ones."""
        a, b, c, d, *others = free_ports(9)
        return cls((a, b), (c, d), *others)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a process holds."""

    pid: int
    memory_kib: int
    sockets: int


class Process:
    """A service that can be ended and started again."""

    def __init__(self, name: str, module: str, settings: Mapping[str, str], health_url: str, log: pathlib.Path) -> None:
        self.name = name
        self.starts = 0
        self._module = module
        self._settings = settings
        self._health_url = health_url
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, without waiting."""
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                python(self._module),
                cwd=self._log.parent,
                env={"PATH": os.defpath, "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1", **self._settings},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                # A group of its own: Ctrl-C reaches the bench alone.
                start_new_session=True,
            )
        self.starts += 1

    async def wait_healthy(self) -> None:
        """Returns once its health URL answers 2xx. Raises RigError."""
        deadline = time.monotonic() + HEALTHY_WITHIN_S
        while await get(self._health_url) is None:
            self.check()
            if time.monotonic() > deadline:
                raise RigError(f"{self.name} is not healthy after {HEALTHY_WITHIN_S:.0f} s{self._last_lines()}")
            await asyncio.sleep(_LOOK_INTERVAL_S)

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, "started"
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it runs no longer."""
        return self._process is None or self._process.poll() is not None

    def check(self) -> None:
        """Raises RigError if it has ended by itself."""
        if self.has_ended:
            assert self._process is not None
            raise RigError(f"{self.name} ended by itself, exit code {self._process.poll()}{self._last_lines()}")

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        if not self.has_ended:
            os.kill(self.pid, number)

    def limit_files(self, size_bytes: int) -> None:
        """Lets it write no file beyond this size while it lives: an error (EFBIG), since Python ignores SIGXFSZ."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size_bytes, hard))

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def read(self) -> Reading | None:
        """What it holds now; None where it does not run. Linux alone."""
        if self.has_ended:
            return None
        try:
            pages = int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            folder = f"/proc/{self.pid}/fd"
            sockets = 0
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    sockets += os.readlink(f"{folder}/{name}").startswith("socket:")
        except OSError:
            return None
        return Reading(self.pid, pages * resource.getpagesize() // 1024, sockets)

    async def end(self) -> str:
        """Ends it by SIGTERM; what was wrong with its end, or nothing."""
        if self._process is None or self._process.poll() is not None:
            return ""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        deadline = time.monotonic() + ENDED_WITHIN_S
        while not self.has_ended:
            if time.monotonic() > deadline:
                self.kill()
                return f"{self.name} did not end on SIGTERM within {ENDED_WITHIN_S:.0f} s"
            await asyncio.sleep(_LOOK_INTERVAL_S)
        code = self._process.poll()
        return f"{self.name} ended with exit code {code} on SIGTERM{self._last_lines()}" if code else ""

    def text(self) -> str:
        """All that it has printed, over all its lives."""
        return self._log.read_text(errors="replace")

    def _last_lines(self) -> str:
        return "\n  ".join(["", *self.text().splitlines()[-8:]])


class Rig:
    """Everything that runs, or the named services. `async with` starts them, waits until all are healthy, ends them."""

    def __init__(
        self, folder: pathlib.Path, services: Sequence[str] = ("tools", *SERVICES), max_in_flight: int = MAX_IN_FLIGHT
    ) -> None:
        self.folder = folder
        self._max_in_flight = max_in_flight
        self.ports = ports = Ports.choose()
        self.ledger = folder / "effects.jsonl"
        """A line for every effect of a tool."""
        targets = dict(zip(LINKS, (ports.grpc, ports.grpc, *ports.engines, ports.dataplanes[0]), strict=True))
        self.links = {name: Link(name, port) for name, port in targets.items()}
        self._services = services
        self.processes: dict[str, Process] = {}
        self._struck = {name: asyncio.Lock() for name in (*SERVICES, *LINKS)}
        self.bad_ends: list[str] = []
        """Services that did not end as they should, once it is left."""

    async def __aenter__(self) -> Rig:
        self.ledger.touch()
        for link in self.links.values():
            await link.start()
        self._write_files()
        self.processes = {
            name: Process(name, *self._command(name), self.folder / f"{name}.log") for name in self._services
        }
        try:
            for process in self.processes.values():
                process.start()
            for process in self.processes.values():
                await process.wait_healthy()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for process in reversed(self.processes.values()):
            self.bad_ends += filter(None, [await process.end()])
        for link in self.links.values():
            link.refuse()
            link.reset()

    async def strike(self, fault: Fault) -> None:
        """Lets one fault happen, from its beginning to its end; a service that it ended is healthy again then.

        The next fault of the same target begins when this one is over."""
        async with self._struck[fault.target]:
            if fault.target in SERVICES:
                await self._strike_process(fault, self.processes[fault.target])
            else:
                await self._strike_link(fault, self.links[fault.target])

    async def _strike_process(self, fault: Fault, process: Process) -> None:
        match fault.kind:
            case "freeze":
                process.send(signal.SIGSTOP)
                await asyncio.sleep(fault.for_s)
                process.send(signal.SIGCONT)
            case "fill":
                process.limit_files(0)
                await asyncio.sleep(fault.for_s)
                await self._kill(process, 0.0)
            case _:
                await self._kill(process, fault.for_s)

    async def _strike_link(self, fault: Fault, link: Link) -> None:
        match fault.kind:
            case "delay":
                link.delays = True
                await asyncio.sleep(fault.for_s)
                link.delays = False
            case "drop":
                link.drops = True
                await asyncio.sleep(fault.for_s)
                link.drops = False
                link.reset()
            case _:
                link.reset()

    def reset_links(self) -> None:
        """Closes all connections between services, so that those that stay are leaks."""
        for link in self.links.values():
            link.reset()

    def engine_url(self, name: str) -> str:
        """Base URL of an engine itself, past its link."""
        return f"http://{HOST}:{self.ports.engines[ENGINES.index(name)]}"

    async def _kill(self, process: Process, for_s: float) -> None:
        self.kill(process.name)
        await asyncio.sleep(for_s)
        await self.restart(process.name)

    def kill(self, name: str) -> None:
        """Ends a service as a crash would; links to it refuse connections then."""
        self.processes[name].kill()
        for link in self._links_to(name):
            link.refuse()

    async def restart(self, name: str) -> None:
        """Starts a service that has ended, and returns once it is healthy."""
        self.processes[name].start()
        for link in self._links_to(name):
            await link.start()
        await self.processes[name].wait_healthy()

    def _links_to(self, name: str) -> list[Link]:
        return [link for link in self.links.values() if link.name.endswith(f">{name}")]

    def _write_files(self) -> None:
        entry = '[[replica]]\nname = "{0}"\nurl = "http://{1}:{2}"\nmax_in_flight = {3}\n'
        text = "".join(entry.format(name, HOST, self.links[f">{name}"].port, self._max_in_flight) for name in ENGINES)
        (self.folder / "pool.toml").write_text(text)
        tools = f'[[server]]\nname = "fake"\nurl = "http://{HOST}:{self.ports.tools}/mcp"\n'
        (self.folder / "tools.toml").write_text(tools)

    def _command(self, name: str) -> tuple[str, dict[str, str], str]:
        """The module that is the service, its settings, and where it says that it is healthy."""
        ports, folder = self.ports, self.folder
        shared = {"LUFTPAUSE_POOL": str(folder / "pool.toml"), "LUFTPAUSE_STATE": str(folder / "state")}
        kind, _, number = name.partition("-")
        match kind:
            case "engine":
                port = ports.engines[int(number)]
                own = {"PORTS": str(port), "MODEL": MODEL, "SPEED": "4", "TOOL_CALLS": "0", "REPLY_TOKENS": "16"}
                module = "fakes.engine"
            case "tools":
                port = ports.tools
                own = {"PORT": str(port), "LOOKUP_S": "0.05", "NOTE_S": "0.05", "LEDGER": str(self.ledger)}
                module = "fakes.toolserver"
            case "scheduler":
                port = ports.status
                own = {"PORT": str(ports.grpc), "STATUS_PORT": str(port)}
                module = "scheduler"
            case "dataplane":
                port = ports.dataplanes[int(number)]
                own = {"PORT": str(port), "SCHEDULER": f"{HOST}:{self.links[f'{name}>scheduler'].port}"}
                module = "dataplane"
            case _:
                port = ports.runtime
                dataplane = f"http://{HOST}:{self.links['runtime>dataplane-0'].port}"
                own = {"PORT": str(port), "GRPC_PORT": str(ports.runtime_grpc), "DATAPLANE": dataplane}
                own |= {"TOOLS": str(folder / "tools.toml"), "MODEL": MODEL}
                module = "runtime"
        prefixed = {f"LUFTPAUSE_{kind.upper()}_{key}": value for key, value in own.items()}
        return module, shared | prefixed, f"http://{HOST}:{port}/health"


async def get(url: str) -> bytes | None:
    """The body of `GET url`; None where it does not answer 2xx within 2 s."""
    return await asyncio.to_thread(_get, url)


def _get(url: str) -> bytes | None:
    found = re.fullmatch(r"http://([^/]+)(/.*)", url)
    assert found is not None
    connection = http.client.HTTPConnection(found[1], timeout=_ASK_WITHIN_S)
    try:
        connection.request("GET", found[2])
        answer = connection.getresponse()
        return answer.read() if 200 <= answer.status < 300 else None
    except (http.client.HTTPException, OSError):
        return None
    finally:
        connection.close()


def is_linux() -> bool:
    """Whether processes can be read, and the disk be filled: only Linux tells and allows it."""
    return sys.platform == "linux"
