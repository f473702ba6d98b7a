"""Processes that were started: recognising them again, and ending them with all their children.

A process is named by its pid and its start time, so that a pid that the system gave to somebody else is never touched.
Each service leads a process group of its own, and its children stay in it. Standard library alone, for `guard`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

PATIENCE_S = 5.0
"""How long a process may take to end on SIGTERM before it is killed."""
_LOOK_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Recorded:
    """A process as it was started."""

    name: str
    pid: int
    started: str
    """Its start time as `snapshot` tells it; only equality means anything."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A process that runs now."""

    group: int
    started: str


def snapshot() -> dict[int, Seen]:
    """All running processes by pid, without those that have ended and wait for their parent to notice."""
    return _snapshot_linux() if sys.platform == "linux" else _snapshot_ps()


def _snapshot_linux() -> dict[int, Seen]:
    # Start times are ticks since boot; the boot id keeps those of different boots apart.
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    seen = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                # proc(5): "pid (name) state ppid pgrp …", start time is field 22; the name may hold anything.
                fields = pathlib.Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    seen[int(entry)] = Seen(int(fields[2]), f"{boot}/{fields[19]}")
    return seen


def _snapshot_ps() -> dict[int, Seen]:
    command = ["ps", "-A", "-o", "pid=,pgid=,stat=,lstart="]
    # The start time is printed in the local time and language: pin both.
    listing = subprocess.run(command, capture_output=True, text=True, check=True, env={"LC_ALL": "C", "TZ": "UTC"})
    seen = {}
    for line in listing.stdout.splitlines():
        pid, group, status, started = line.split(None, 3)
        if not status.startswith("Z"):
            seen[int(pid)] = Seen(int(group), " ".join(started.split()))
    return seen


def record(name: str, pid: int) -> Recorded:
    """Names the process `pid`, a child of ours that may just have ended (then it matches no process)."""
    seen = snapshot().get(pid)
    return Recorded(name, pid, seen.started if seen else "ended at once")


def is_running(process: Recorded, now: dict[int, Seen]) -> bool:
    """Whether `process` itself is among those running `now`."""
    seen = now.get(process.pid)
    return seen is not None and seen.started == process.started


def members(process: Recorded, now: dict[int, Seen]) -> list[int]:
    """Pids of `process` and of what is left of its group; none where its pid belongs to somebody else by now."""
    if process.pid in now and not is_running(process, now):
        return []
    boot = process.started.partition("/")[0]
    return [
        pid
        for pid, seen in now.items()
        if seen.group == process.pid and (sys.platform != "linux" or seen.started.startswith(boot))
    ]


def end(processes: Iterable[Recorded], patience_s: float = PATIENCE_S) -> list[str]:
    """Ends `processes` and their children: SIGTERM, and SIGKILL after `patience_s`. Names of those that were killed.

    Returns when none is left. Those that have ended already are passed over.
    """
    left = _left(processes)
    for process, pids in left:
        # The service ends its own children; without it, nobody does.
        for pid in [process.pid] if process.pid in pids else pids:
            _send(pid, signal.SIGTERM)
    left = _wait_gone(left, patience_s)
    killed = [process.name for process, _ in left]
    for _, pids in left:
        for pid in pids:
            _send(pid, signal.SIGKILL)
    _wait_gone(left, patience_s)
    return killed


def _left(processes: Iterable[Recorded]) -> list[tuple[Recorded, list[int]]]:
    now = snapshot()
    return [(process, pids) for process in processes if (pids := members(process, now))]


def _wait_gone(left: list[tuple[Recorded, list[int]]], patience_s: float) -> list[tuple[Recorded, list[int]]]:
    deadline = time.monotonic() + patience_s
    while left and time.monotonic() < deadline:
        time.sleep(_LOOK_INTERVAL_S)
        left = _left(process for process, _ in left)
    return left


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
