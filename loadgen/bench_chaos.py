"""`./luftpause bench chaos`: floods the whole stack while all that can go wrong does, and judges what came of it.

What goes wrong is `chaos_plan`'s, from a seed; it happens to the processes and connections of `chaos_rig`, while the
clients of `chaos_load` and `chaos_spawner` work. When it is over, everything must come to rest: the runs end, then no
slot, socket or task may be left. `chaos_check` judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console

from loadgen.bench_command import INTERRUPTED, until_signal
from loadgen.chaos_check import Seen, Verdict, judge
from loadgen.chaos_link import HOST
from loadgen.chaos_load import Load
from loadgen.chaos_plan import DATAPLANES, ENGINES, SERVICES, Fault, plan
from loadgen.chaos_rig import Rig, get, is_linux
from loadgen.chaos_spawner import Spawner
from loadgen.relay_rig import RigError

WELL_WITHIN_S = 90.0
"""After the last fault every run must end within this time."""
QUIET_WITHIN_S = 45.0
"""And then no turn may be in flight: that a dataplane vanished without a word is noticed after 15 s, and its turns are
dropped 15 s later."""
_READ_EVERY_S = 1.0


async def run(seconds: float, seed: int, folder: pathlib.Path, tell: Callable[[str], None]) -> dict[str, Any]:
    """Chaos for `seconds`; logs are left in `folder`. Returns the report: seed, faults, figures, `passed`.

    Raises RigError where the services do not even start, or do not come back.
    """
    faults = plan(seed, seconds)
    seen = Seen()
    rig = Rig(folder)
    async with rig:
        await _connected(rig)
        seen.at_start = await _holdings(rig)
        urls = tuple(f"http://{HOST}:{port}" for port in rig.ports.dataplanes)
        load, spawner = Load(urls, seed, seen), Spawner(f"{HOST}:{rig.ports.runtime_grpc}", seed, seen)
        async with load, spawner, _reading_memory(rig, seconds, seen):
            await _strike_all(rig, load, faults, seconds, tell)
            tell("waiting until all is well")
            await asyncio.gather(load.finish(WELL_WITHIN_S), spawner.finish(WELL_WITHIN_S))
        rig.reset_links()
        tell("looking for what is left")
        await _look_for_leaks(rig, seen)
        for link in rig.links.values():
            seen.request_ids.update(link.request_ids)
            seen.marks.update(link.marks)
    seen.bad_ends += rig.bad_ends
    seen.bad_ends += _tracebacks(rig)
    seen.effects = [json.loads(line) for line in rig.ledger.read_text().splitlines()]
    return _report(seconds, seed, faults, rig, judge(seen))


async def _strike_all(
    rig: Rig, load: Load, faults: tuple[Fault, ...], seconds: float, tell: Callable[[str], None]
) -> None:
    """Lets all faults happen at their times. Returns when all of them are over."""
    began = time.monotonic()
    try:
        async with asyncio.TaskGroup() as striking:
            for number, fault in enumerate(faults):
                await asyncio.sleep(max(0.0, began + fault.at_s - time.monotonic()))
                tell(f"{fault.kind} {fault.target} ({fault.for_s:g} s)")
                striking.create_task(load.flood(fault.for_s, number) if fault.kind == "flood" else rig.strike(fault))
            await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


@contextlib.asynccontextmanager
async def _reading_memory(rig: Rig, seconds: float, seen: Seen) -> AsyncIterator[None]:
    """Reads the memory of all processes during the last third of `seconds`, which begin now."""
    began = time.monotonic()

    async def read() -> None:
        await asyncio.sleep(seconds * 2 / 3)
        while (at_s := time.monotonic() - began) < seconds:
            for name in SERVICES:
                reading = rig.processes[name].read()
                if reading is not None:
                    seen.memory.setdefault(name, []).append((at_s, reading.memory_kib))
            await asyncio.sleep(_READ_EVERY_S)

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _connected(rig: Rig) -> None:
    """Returns when the runtime has its tool server, whose connection is sockets and tasks. Raises RigError."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    while not await _gauge(rig.ports.runtime, r'luftpause_runtime_tool_server_up\{server="fake"\}'):
        if time.monotonic() > deadline:
            raise RigError("the runtime did not connect to its tool server")
        await asyncio.sleep(_READ_EVERY_S)


async def _holdings(rig: Rig) -> dict[str, dict[str, int]]:
    """Sockets and tasks of each process."""
    holdings = {}
    for name in SERVICES:
        reading = rig.processes[name].read()
        holdings[name] = {"sockets": reading.sockets} if reading is not None else {}
    metrics = {
        "scheduler": rig.ports.status,
        "runtime": rig.ports.runtime,
        **dict(zip(DATAPLANES, rig.ports.dataplanes, strict=True)),
    }
    for name, port in metrics.items():
        tasks = await _gauge(port, r"luftpause_\w+_tasks")
        if tasks is not None:
            holdings[name]["tasks"] = tasks
    return holdings


async def _look_for_leaks(rig: Rig, seen: Seen) -> None:
    """Waits until nothing is going on any more, and notes what is left when that does not come."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    while True:
        seen.left_over = await _left_over(rig)
        seen.at_end = await _holdings(rig)
        if judge(seen).faults["leaked"] == [] or time.monotonic() > deadline:
            break
        await asyncio.sleep(_READ_EVERY_S)
    for name in ENGINES:
        stats = json.loads(await get(f"{rig.engine_url(name)}/fake/stats") or "{}")
        seen.doubled_at_engines += [f"turn {turn_id} came to {name} again" for turn_id in stats.get("doubled_ids", [])]


async def _left_over(rig: Rig) -> dict[str, int]:
    left: dict[str, int] = {}
    status = json.loads(await get(f"http://{HOST}:{rig.ports.status}/status") or "{}")
    for replica in status.get("replicas", [{"name": "scheduler: no status", "in_flight": 1}]):
        left[f"turns in flight at {replica['name']}, by the scheduler"] = replica["in_flight"]
    left["turns held, by the scheduler"] = sum(held["turns"] for held in status.get("held", []))
    for name, port in zip(DATAPLANES, rig.ports.dataplanes, strict=True):
        for what in ("turns_held", "turns_in_flight"):
            value = await _gauge(port, rf"luftpause_dataplane_{what}")
            left[f"{what.replace('_', ' ')}, by {name}"] = 1 if value is None else value
        connections = await _gauge(port, "luftpause_dataplane_connections")
        left[f"client connections of {name}"] = max(0, (connections or 0) - 1)  # one of them asks
    for name in ENGINES:
        stats = json.loads(await get(f"{rig.engine_url(name)}/fake/stats") or '{"open": 1}')
        left[f"requests open at {name}"] = stats["open"]
    return left


async def _gauge(port: int, name: str) -> int | None:
    """The gauge whose name, with its labels, matches `name`, of the metrics at `port`."""
    text = (await get(f"http://{HOST}:{port}/metrics") or b"").decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return None if found is None else int(float(found[1]))


def _tracebacks(rig: Rig) -> list[str]:
    """Where a service printed a traceback: none should, whatever happens to it."""
    found = []
    for name, process in rig.processes.items():
        text = process.text()
        at = text.find("Traceback (most recent call last)")
        if at >= 0:
            lines = text[at:].splitlines()
            last = next((line for line in lines[1:] if line and not line.startswith(" ")), "")
            found.append(f"{name} printed a traceback: {last[:200]}")
    return found


def _report(seconds: float, seed: int, faults: tuple[Fault, ...], rig: Rig, verdict: Verdict) -> dict[str, Any]:
    return {
        "seed": seed,
        "seconds": seconds,
        "plan": [asdict(fault) for fault in faults],
        "starts": {name: process.starts for name, process in rig.processes.items()},
        "faults": verdict.faults,
        "figures": verdict.figures,
        "passed": verdict.passed,
    }


def main(minutes: float, seed: int, json_output: bool, logs: pathlib.Path | None = None) -> int:
    """Runs and prints; 0 if nothing was lost, doubled, stuck, leaked or wrong, else 1. Ctrl-C ends it with 130.

    `logs`: a folder that keeps the services' logs; None: they are gone with the chaos.
    """
    if not is_linux():
        told = "bench chaos is skipped: it reads other processes, and limits their files, as Linux allows it"
        print(json.dumps({"skipped": told}) if json_output else told)
        return 0
    if not json_output:
        print(f"seed {seed}: the same seed makes the same plan", flush=True)
    try:
        with contextlib.ExitStack() as opened:
            folder = logs or pathlib.Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="luftpause-chaos-")))
            folder.mkdir(parents=True, exist_ok=True)
            tell = (lambda _what: None) if json_output else _teller()
            report = asyncio.run(until_signal(run(minutes * 60, seed, folder, tell)))
    except RigError as error:
        print(f"luftpause: seed {seed}: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("luftpause: interrupted", file=sys.stderr)
        return INTERRUPTED
    if json_output:
        print(json.dumps(report))
    else:
        _print(report)
    return 0 if report["passed"] else 1


def _teller() -> Callable[[str], None]:
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    return tell


def _print(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    figures = report["figures"]
    for name, value in figures.items():
        told = ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, dict) else value
        console.print(f"{name.replace('_', ' ')}: {told}", markup=False)
    for kind, found in report["faults"].items():
        console.print(f"{kind}: {len(found) or 'nothing'}", markup=False)
        for line in found:
            console.print(f"  {line}", markup=False)
    console.print(f"seed {report['seed']}: {'nothing was found' if report['passed'] else 'FAULTS'}")
