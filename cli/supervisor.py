"""The services of one `up` while it runs: starts them, waits until they are healthy, prints what they say, ends them.

It sleeps unless a service says something or ends, or a signal arrives; only `wait_healthy` looks repeatedly.
`up` decides what is started; `guard` stands by for the case that this process is killed.
"""

from __future__ import annotations

import collections
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from cli import guard, processes, web
from cli.services import Service
from cli.state import ROOT, ServiceUp

HEALTHY_WITHIN_S = 60.0
_LOOK_INTERVAL_S = 0.1
_LAST_LINES = 10
_LINE_BYTES_MAX = 64 * 1024
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ServiceError(Exception):
    """A service ended by itself, or never became healthy; the text says which, and its last lines."""


class Stopped(Exception):  # noqa: N818 - not an error
    """A signal asked for the end, or nobody reads our output any more."""


@dataclass(slots=True)
class Child:
    """A service that was started."""

    service: Service
    process: subprocess.Popen[bytes]
    recorded: processes.Recorded
    log: pathlib.Path | None
    """Where its output goes; None: through us."""
    last_lines: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=_LAST_LINES))
    threads: list[threading.Thread] = field(default_factory=list)

    def tail(self) -> list[str]:
        """Its last lines."""
        if self.log is None:
            return list(self.last_lines)
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _LINE_BYTES_MAX))
            return file.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]


class Supervisor:
    """Owns the services of one `up`. `end` must be called, or `detach` once all are healthy."""

    def __init__(self, settings: Mapping[str, str], logs: pathlib.Path | None) -> None:
        """`settings` are environment variables that all services get; their output goes to `logs`, or through us."""
        # A service finds its modules in this checkout, whatever lies in the current folder.
        own = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        self._settings = settings
        self._environment = {**os.environ, **own, **settings}
        self._logs = logs
        self.itself = processes.record("up", os.getpid())
        self._children: list[Child] = []
        self._events: queue.SimpleQueue[Child | None] = queue.SimpleQueue()
        """A child that ended; None: a reason to stop."""
        self._printing = threading.Lock()
        self._guard = self._spawn("cli.guard", stdin=subprocess.PIPE, out=subprocess.DEVNULL)
        for number in _SIGNALS:
            # nohup asks to go on when the terminal is closed; a shell that starts us with & asks for nothing.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    @property
    def recorded(self) -> list[tuple[Service, ServiceUp]]:
        """What was started, in that order, and how."""
        return [(child.service, self._up(child)) for child in self._children]

    def _up(self, child: Child) -> ServiceUp:
        settings = {**self._settings, **child.service.settings}
        return ServiceUp(child.recorded, child.service.health_urls, settings)

    def start(self, service: Service) -> None:
        """Starts `service`."""
        log = self._logs / f"{service.name}.log" if self._logs else None
        if log is None:
            process = self._spawn(service.module, service.settings)
        else:
            with log.open("wb") as out:
                process = self._spawn(service.module, service.settings, out=out)
        child = Child(service, process, processes.record(service.name, process.pid), log)
        self._children.append(child)
        self._tell_guard(guard.line(child.recorded))
        jobs = [self._announce_end] if log else [self._announce_end, self._relay]
        child.threads = [threading.Thread(target=job, args=(child,), daemon=True) for job in jobs]
        for thread in child.threads:
            thread.start()

    def _spawn(
        self,
        module: str,
        settings: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        out: int | IO[bytes] = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        # A group of its own: Ctrl-C reaches `up` alone, and what a service leaves behind can be found.
        return subprocess.Popen(
            [sys.executable, "-m", module],
            env={**self._environment, **(settings or {})},
            stdin=stdin,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_healthy(self) -> None:
        """Returns once every service is healthy. Raises ServiceError and Stopped."""
        deadline = time.monotonic() + HEALTHY_WITHIN_S
        waiting = [(child, url) for child in self._children for url in child.service.health_urls]
        while waiting:
            waiting = [(child, url) for child, url in waiting if not _is_healthy(child.service, url)]
            if waiting and time.monotonic() > deadline:
                raise ServiceError(_report(waiting[0][0], f"is not healthy after {HEALTHY_WITHIN_S:.0f} s"))
            self._next_event(_LOOK_INTERVAL_S if waiting else 0.0)

    def wait_until_none(self, missing: Callable[[], list[str]]) -> None:
        """Returns once nothing is `missing`, in words. Raises ServiceError and Stopped."""
        deadline = time.monotonic() + HEALTHY_WITHIN_S
        while told := missing():
            if time.monotonic() > deadline:
                raise ServiceError(f"{told[0]}, after {HEALTHY_WITHIN_S:.0f} s")
            self._next_event(_LOOK_INTERVAL_S)

    def watch(self) -> None:
        """Returns never: raises ServiceError when a service ends and Stopped when a signal arrives."""
        while True:
            self._next_event(None)

    def _next_event(self, timeout_s: float | None) -> None:
        try:
            child = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return
        if child is None:
            raise Stopped
        code = child.process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise ServiceError(_report(child, how))

    def detach(self) -> None:
        """Lets the services go on without this process."""
        self._tell_guard(f"{guard.DETACHED}\n")
        self._guard.wait()

    def end(self) -> list[str]:
        """Ends all services and their children. Names of those that had to be killed."""
        killed = processes.end(child.recorded for child in reversed(self._children))
        for child in self._children:
            child.process.wait()
            for thread in child.threads:
                thread.join(timeout=1)
        assert self._guard.stdin
        self._guard.stdin.close()
        self._guard.wait()
        for number in _SIGNALS:
            # Else Python gives them back their deadly default before this process has ended.
            signal.signal(number, signal.SIG_IGN)
        return killed

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin
        self._guard.stdin.write(line.encode())
        self._guard.stdin.flush()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._events.put(None)

    def _announce_end(self, child: Child) -> None:
        child.process.wait()
        # What it said last is read before its end is told, unless a child of its own still holds the pipe.
        for thread in child.threads:
            if thread is not threading.current_thread():
                thread.join(timeout=1)
        self._events.put(child)

    def _relay(self, child: Child) -> None:
        assert child.process.stdout
        prefix = prefix_of(child.service.name)
        while line := child.process.stdout.readline(_LINE_BYTES_MAX):
            text = line.decode("utf-8", "replace").rstrip("\n")
            child.last_lines.append(text)
            self._print(prefix + text)

    def _print(self, text: str) -> None:
        with self._printing:
            try:
                print(text, flush=True)
            except (OSError, ValueError):
                self._events.put(None)


def prefix_of(name: str) -> str:
    """What stands before each line of the service `name`."""
    colour = {"engines": 35, "scheduler": 36, "dataplane": 32}.get(name, 33)
    text = f"{name:>9} | "
    return f"\x1b[{colour}m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def _is_healthy(service: Service, url: str) -> bool:
    answer = web.get(url)
    return answer.is_ok and service.is_healthy(answer.body)


def _report(child: Child, what: str) -> str:
    lines = child.tail()
    return "\n".join([f"{child.service.name} {what}{'; its last lines:' if lines else ''}", *(f"  {x}" for x in lines)])
