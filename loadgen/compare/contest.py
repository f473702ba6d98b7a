"""Lets entries take turns on the same engines: warm-up, measurement, the next one, and all again.

Each measurement starts its arm anew, on engines that are idle and remember nothing, with texts of its own; the order
changes with each repeat. Must not judge or print: `figures` does the one, who called hears of progress. Read `arms`
for what is started, `driver` for what the agents do.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from loadgen.compare import engines
from loadgen.compare.arms import Arm, Place
from loadgen.compare.engines import Fakes, Served
from loadgen.compare.figures import Sample
from loadgen.compare.processes import body_of, started
from loadgen.compare.subagents import runtime_before
from loadgen.driver import Load, Target
from loadgen.ports import free_ports
from loadgen.spawning import SpawnLoad
from loadgen.workload import Group

_TELL_EVERY_S = 1.0
_TURN_TIMEOUT_S = 1_800.0
"""No turn is given up in a flood: a router that lets it wait so long shows that in its figures."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An arm under a load."""

    name: str
    arm: Arm
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """How long and how often each entry is measured."""

    warm_up_s: float
    measure_s: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What is the same for all entries."""

    where: tuple[str, ...] | Fakes
    """Origins of the engines, or the fake ones to start."""
    timing: Timing
    seed: int
    environment: Mapping[str, str]
    """Of all processes started."""
    model: str = ""
    """Empty: the first that the first engine serves."""
    end_runs: bool = True
    """Whether arms that want to be told the end of a run are told."""
    send_run_id: bool = True
    """Whether routers are told which turns belong together."""

    def as_json(self) -> dict[str, Any]:
        """For a report."""
        engines = list(self.where) if isinstance(self.where, tuple) else f"{self.where.count} fake {self.where.profile}"
        rules = {"engines": engines, "seed": self.seed, "end_runs": self.end_runs, "send_run_id": self.send_run_id}
        return {**rules, **asdict(self.timing)}


Tell = Callable[[str, Sample], None]
"""Hears what is going on, and the figures so far."""


class Contest:
    """Entries on the same engines, under the same rules, which name a model."""

    def __init__(self, entries: Sequence[Entry], rules: Rules) -> None:
        self._entries = tuple(entries)
        self._rules = rules
        self._samples: dict[str, list[Sample]] = {entry.name: [] for entry in entries}

    @property
    def samples(self) -> dict[str, list[Sample]]:
        """Those of each entry, from the repeats that are whole."""
        whole = min(map(len, self._samples.values()))
        return {name: samples[:whole] for name, samples in self._samples.items()}

    async def run(self, tell: Tell) -> None:
        """Measures all. Raises ProcessError and ArmError."""
        repeats = self._rules.timing.repeats
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            for repeat in range(repeats):
                first = repeat % len(self._entries)
                for entry in (*self._entries[first:], *self._entries[:first]):
                    number = repeat * len(self._entries) + self._entries.index(entry)

                    def told(what: str, so_far: Sample, name: str = entry.name, repeat: int = repeat) -> None:
                        tell(f"{name}, {repeat + 1} of {repeats}: {what}", so_far)

                    self._samples[entry.name].append(await self._measure(session, entry, number, told))

    async def _measure(self, session: aiohttp.ClientSession, entry: Entry, number: int, tell: Tell) -> Sample:
        tell("starting", Sample(0.0, ()))
        with tempfile.TemporaryDirectory(prefix="luftpause-bench-") as name:
            folder = pathlib.Path(name)
            async with engines.fresh(self._rules.where, session, self._rules.environment, folder) as urls:
                first, second, third = free_ports(3)
                place = Place((first, second, third), urls, name, sys.executable)
                arm = entry.arm
                if not arm.command:
                    return await self._load(entry, arm.url, folder, number, tell)
                (folder / "config").write_text(place.fill(arm.config))
                async with started(arm.name, place.words(arm.command), self._rules.environment, folder) as process:

                    async def is_ready() -> bool:
                        body = await body_of(session, place.fill(arm.ready_url))
                        return body is not None and arm.is_ready(body, len(urls))

                    await process.wait_ready(is_ready)
                    sample = await self._load(entry, place.fill(arm.url), folder, number, tell)
                    process.check()
                    return sample

    async def _load(self, entry: Entry, url: str, folder: pathlib.Path, number: int, tell: Tell) -> Sample:
        rules = self._rules
        own, spawned = ([group for group in entry.groups if group.spawned == which] for which in (False, True))
        target = Target(
            f"{url}/v1",
            rules.model,
            end_runs=rules.end_runs and entry.arm.ends_runs,
            send_run_id=rules.send_run_id,
            session_header=entry.arm.session_header,
            turn_timeout_s=_TURN_TIMEOUT_S,
        )
        # A seed of each measurement's own, so that no text was seen before.
        seed = rules.seed * 1_000 + number
        async with contextlib.AsyncExitStack() as opened:
            loads: list[Load | SpawnLoad] = []
            if spawned:
                runtime = await opened.enter_async_context(runtime_before(url, rules.environment, folder))
                loads.append(await opened.enter_async_context(SpawnLoad(runtime, None, rules.model, spawned, seed)))
            if own:
                loads.append(await opened.enter_async_context(Load(target, own, seed)))
            await _watch(loads, rules.timing.warm_up_s, lambda so_far: tell("warm-up", so_far))
            for load in loads:
                load.forget_warmup()
            return await _watch(loads, rules.timing.measure_s, lambda so_far: tell("measuring", so_far))


async def _watch(loads: Sequence[Load | SpawnLoad], seconds: float, tell: Callable[[Sample], None]) -> Sample:
    """The sample of `loads` after `seconds`."""
    begun_s = time.perf_counter()
    while True:
        spent_s = time.perf_counter() - begun_s
        groups = (pair for load in loads for pair in zip(load.groups, load.tallies, strict=True))
        sample = Sample(spent_s, tuple(groups))
        tell(sample)
        for load in loads:
            load.raise_if_broken()
        if spent_s >= seconds:
            return sample
        await asyncio.sleep(min(_TELL_EVERY_S, seconds - spent_s))


async def look(rules: Rules) -> Served:
    """What the first engine serves; fake ones are started for the moment. Raises ProcessError."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        if not isinstance(rules.where, Fakes):
            return await engines.served(session, rules.where[0])
        with tempfile.TemporaryDirectory(prefix="luftpause-bench-") as name:
            async with engines.fresh(rules.where, session, rules.environment, pathlib.Path(name)) as urls:
                return await engines.served(session, urls[0])
