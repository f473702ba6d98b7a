"""What `bench relay` measures with: the processes, each on its core, and the readings of what they spent.

Proxies share one core, engine and client the other, so that neither takes the other's time. All processes get a small
environment of their own: the caller's settings must not change the figures. CPU time and memory of other processes are
read as Linux tells them. Must not judge: `relay_figures` does. Read next: `relay_client`, `relay_engine`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen import relay_wire
from loadgen.ports import free_ports

HOST = "127.0.0.1"
READY_WITHIN_S = 30.0
ORDER_WITHIN_S = 60.0
"""An order that takes longer is given up by the client itself, as an error."""
_ANSWER_WITHIN_S = 2 * ORDER_WITHIN_S
ENDED_WITHIN_S = 5.0
_FILES = 8192
"""A thousand streams are two thousand sockets of a proxy; the usual limit is 1,024 files."""
_LOOK_INTERVAL_S = 0.1
_ROOT = pathlib.Path(__file__).resolve().parent.parent


class RigError(Exception):
    """Something could not be started or ended by itself; the text says what, and its last lines."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Which cores the processes run on; the same ones where the machine gives us only one."""

    proxies: int
    rest: int

    @classmethod
    def choose(cls) -> Cores:
        """The first and the last of those that this process may use."""
        allowed = sorted(os.sched_getaffinity(0))
        return cls(allowed[0], allowed[-1])


@dataclass(slots=True)
class Started:
    """A process of ours."""

    name: str
    process: subprocess.Popen[bytes]
    log: pathlib.Path

    def check(self) -> None:
        """Raises RigError if it has ended."""
        code = self.process.poll()
        if code is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-5:]
            raise RigError("\n  ".join([f"{self.name} ended with exit code {code}", *lines]))

    async def order(self, **order: Any) -> dict[str, Any]:
        """Sends an order to an engine or client and returns its answer. Raises RigError if there is none in time."""
        assert self.process.stdin
        assert self.process.stdout
        with contextlib.suppress(BrokenPipeError):  # what it answers then, nothing, says it all
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        # A thread: where this is cancelled, the end of the process ends its reading.
        reading = asyncio.to_thread(self.process.stdout.readline)
        try:
            line = await asyncio.wait_for(reading, _ANSWER_WITHIN_S)
        except TimeoutError:
            raise RigError(f"{self.name} has not answered within {_ANSWER_WITHIN_S:.0f} s") from None
        if not line:
            self.process.wait(ENDED_WITHIN_S)
            self.check()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Ends it: by SIGTERM, and by SIGKILL where that is not enough."""
        self.process.terminate()
        try:
            self.process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        # Not before: a thread may be reading.
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


@dataclass(frozen=True, slots=True)
class Arm:
    """A way from client to engine, and the processes whose cost is its cost."""

    name: str
    port: int
    parts: tuple[Started, ...]

    def cpu_s(self) -> float:
        """CPU seconds spent so far."""
        return sum(_cpu_s(part.process.pid) for part in self.parts)

    def memory_kib(self) -> int:
        """Resident memory now, KiB."""
        return sum(_memory_kib(part.process.pid) for part in self.parts)


def _cpu_s(pid: int) -> float:
    # The clock of clock_getcpuclockid(3), which Python offers for threads alone: ~pid << 3 | CPUCLOCK_SCHED. It counts
    # nanoseconds, all threads together; /proc/pid/stat counts hundredths of a second.
    return time.clock_gettime(~pid << 3 | 2)


def _memory_kib(pid: int) -> int:
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@dataclass(frozen=True, slots=True)
class Rig:
    """Engine, client and arms, running."""

    engine: Started
    client: Started
    arms: tuple[Arm, Arm]
    """luftpause and its yardstick."""
    status_url: str
    """The scheduler's HTTP surface."""


@contextlib.asynccontextmanager
async def running(nginx: str | None, cores: Cores, more: Mapping[str, str] | None = None) -> AsyncIterator[Rig]:
    """A rig while the block runs, its arms ready: luftpause, with `more` settings, and the yardstick: the command
    `nginx`, or a direct connection where that is None. Raises RigError. However the block ends, nothing is left of it.
    """
    _allow_files()
    with tempfile.TemporaryDirectory(prefix="luftpause-bench-") as name, contextlib.ExitStack() as opened:
        start = Starter(pathlib.Path(name), opened)
        engines, (grpc, status, dataplane, other) = free_ports(2), free_ports(4)
        engine = start("engine", [*python("loadgen.relay_engine"), *map(str, engines)], cores.rest, piped=True)
        client = start("client", python("loadgen.relay_client"), cores.rest, piped=True)
        settings = {
            "LUFTPAUSE_POOL": str(_write_pool(start.folder, engines)),
            "LUFTPAUSE_STATE": name,
            "LUFTPAUSE_SCHEDULER_PORT": str(grpc),
            "LUFTPAUSE_SCHEDULER_STATUS_PORT": str(status),
            "LUFTPAUSE_DATAPLANE_PORT": str(dataplane),
            "LUFTPAUSE_DATAPLANE_SCHEDULER": f"{HOST}:{grpc}",
            **(more or {}),
        }
        parts = tuple(start(each, python(each), cores.proxies, settings) for each in ("scheduler", "dataplane"))
        if nginx is None:
            yardstick = Arm("direct", engines[0], (engine, client))
        else:
            words = [nginx, "-c", str(_write_nginx(start.folder, other, engines))]
            yardstick = Arm("nginx", other, (start("nginx", words, cores.proxies),))
        arms = (Arm("luftpause", dataplane, parts), yardstick)
        rig = Rig(engine, client, arms, f"http://{HOST}:{status}")
        for arm in rig.arms:
            await _wait_ready(rig, arm)
        yield rig


class Starter:
    """Starts processes that are ended when `opened` is closed."""

    def __init__(self, folder: pathlib.Path, opened: contextlib.ExitStack) -> None:
        self.folder = folder
        self._opened = opened

    def __call__(
        self,
        name: str,
        words: Sequence[str],
        core: int | None,
        settings: dict[str, str] | None = None,
        *,
        piped: bool = False,
    ) -> Started:
        log = self.folder / f"{name}.log"
        try:
            with log.open("wb") as out, _on_core(core):
                process = subprocess.Popen(
                    words,
                    cwd=self.folder,
                    env={"PATH": os.defpath, "PYTHONPATH": str(_ROOT), **(settings or {})},
                    stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if piped else out,
                    stderr=out,
                    # A group of its own: Ctrl-C reaches the bench alone.
                    start_new_session=True,
                )
        except OSError as error:
            raise RigError(f"{name} cannot be started: {error}") from None
        started = Started(name, process, log)
        self._opened.callback(started.end)
        return started


@contextlib.contextmanager
def _on_core(core: int | None) -> Iterator[None]:
    """What is started in the block inherits the core, with all its threads; None: any core."""
    if core is None:
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def python(module: str) -> list[str]:
    """The command that runs a module of this checkout."""
    return [sys.executable, "-P", "-m", module]


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _write_pool(folder: pathlib.Path, ports: Sequence[int]) -> pathlib.Path:
    path = folder / "pool.toml"
    entry = '[[replica]]\nname = "engine-{0}"\nurl = "http://{1}:{0}"\nmodels = ["{2}"]\n'
    path.write_text("".join(entry.format(port, HOST, relay_wire.MODEL) for port in ports))
    return path


def _write_nginx(folder: pathlib.Path, port: int, engines: Sequence[int]) -> pathlib.Path:
    """nginx as a plain proxy of streams: one process, connections to the engines kept, nothing buffered or logged."""
    path = folder / "nginx.conf"
    servers = " ".join(f"server {HOST}:{engine};" for engine in engines)
    # Its usual folders belong to root.
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "\n".join(f"  {kind}_temp_path {folder}/{kind};" for kind in kinds)
    path.write_text(f"""daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections {_FILES}; }}
http {{
{folders}
  access_log off;
  upstream engines {{ {servers} keepalive 256; }}
  server {{
    listen {HOST}:{port} backlog=4096;
    client_body_buffer_size 256k;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
""")
    return path


async def _wait_ready(rig: Rig, arm: Arm) -> None:
    """Returns once the arm has answered a turn. Raises RigError."""
    deadline = time.monotonic() + READY_WITHIN_S
    order = {"do": "turns", "port": arm.port, "count": 1, "at_once": 1, "chunks": 0, "pace_ms": 0, "within_s": 10}
    while True:
        said = await rig.client.order(**order)
        if said["answers"]:
            return
        for part in arm.parts:
            part.check()
        if time.monotonic() > deadline:
            raise RigError(f"{arm.name} does not answer after {READY_WITHIN_S:.0f} s: {said['first_error']}")
        await asyncio.sleep(_LOOK_INTERVAL_S)
