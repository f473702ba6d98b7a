"""What `bench decide` measures with: luftpause, a simulated classifier, two simulated engines and agents, as processes.

The classifier has a process of its own, as it has an engine of its own. Must not judge: `bench_decide` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

from loadgen.fanout_rig import wait_healthy
from loadgen.ports import free_ports
from loadgen.relay_rig import HOST, RigError, Started, Starter, python

MODEL = "fake-1b"
CLASSIFIER = "fake-classifier"
AGENTS_WORK_WITHIN_S = 60.0
_LOOK_INTERVAL_S = 0.2
_ANSWER_WITHIN_S = 30.0


class Way:
    """One kept connection to a classifier, straight or through luftpause."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        self._reader = reader
        self._writer = writer
        self._path = path

    @classmethod
    async def open(cls, port: int, path: str) -> Self:
        """Connects. Raises RigError."""
        try:
            return cls(*await asyncio.open_connection(HOST, port), path)
        except OSError as error:
            raise RigError(f"{path} cannot be reached: {error}") from None

    async def ask(self, text: str) -> float:
        """Seconds until `text` is classified. Raises RigError where it is not."""
        body = json.dumps({"model": CLASSIFIER, "input": text}).encode()
        head = f"POST {self._path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
        begun_s = time.perf_counter()
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                size = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
                answer = await self._reader.readexactly(size)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, StopIteration) as error:
            raise RigError(f"{self._path} does not answer: {str(error) or type(error).__name__}") from None
        took_s = time.perf_counter() - begun_s
        if not lines[0].startswith(b"http/1.1 200 ") or b'"label"' not in answer:
            raise RigError(f"{self._path} answered {lines[0].decode()}: {answer[:200].decode(errors='replace')}")
        return took_s

    def close(self) -> None:
        """Closes the connection."""
        self._writer.close()


@dataclass(frozen=True, slots=True)
class Rig:
    """Everything, running."""

    direct: Way
    luftpause: Way
    base_url: str
    """OpenAI base URL of the dataplane."""
    agents: Started

    async def start_agents(self, count: int) -> None:
        """Lets agents work, and returns once each has had a turn, in the mean. Raises RigError."""
        said = await self.agents.order(do="start", base_url=self.base_url, model=MODEL, agents=count)
        deadline = time.monotonic() + AGENTS_WORK_WITHIN_S
        while said["turns"] < count:
            if time.monotonic() > deadline:
                raise RigError(f"{count} agents have had {said['turns']} turns after {AGENTS_WORK_WITHIN_S:.0f} s")
            await asyncio.sleep(_LOOK_INTERVAL_S)
            said = await self.agents.order(do="look")

    async def agents_so_far(self) -> tuple[int, int]:
        """Turns of the agents, and those that failed."""
        said = await self.agents.order(do="look")
        return said["turns"], said["errors"]


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    """All of it while the block runs, healthy. Raises RigError. However the block ends, no process is left of it."""
    with tempfile.TemporaryDirectory(prefix="luftpause-bench-") as name, contextlib.ExitStack() as opened:
        start = Starter(pathlib.Path(name), opened)
        one, two, classifier, grpc, status, dataplane = free_ports(6)
        pool = start.folder / "pool.toml"
        entry = '[[replica]]\nname = "engine-{0}"\nurl = "http://{1}:{0}"\nmodels = ["{2}"]\nkind = "{3}"\n'
        generative = "".join(entry.format(port, HOST, MODEL, "generative") for port in (one, two))
        pool.write_text(generative + entry.format(classifier, HOST, CLASSIFIER, "one-shot"))
        settings = {
            "LUFTPAUSE_POOL": str(pool),
            "LUFTPAUSE_STATE": name,
            "LUFTPAUSE_ENGINE_PORTS": f"{one},{two}",
            "LUFTPAUSE_ENGINE_MODEL": MODEL,
            "LUFTPAUSE_SCHEDULER_PORT": str(grpc),
            "LUFTPAUSE_SCHEDULER_STATUS_PORT": str(status),
            "LUFTPAUSE_DATAPLANE_PORT": str(dataplane),
            "LUFTPAUSE_DATAPLANE_SCHEDULER": f"{HOST}:{grpc}",
        }
        classifying = {**settings, "LUFTPAUSE_ENGINE_PORTS": str(classifier), "LUFTPAUSE_ENGINE_MODEL": CLASSIFIER}
        parts = [
            start("engines", python("fakes.engine"), None, settings),
            start("classifier", python("fakes.engine"), None, classifying),
            start("scheduler", python("scheduler"), None, settings),
            start("dataplane", python("dataplane"), None, settings),
        ]
        agents = start("agents", python("loadgen.decide_agents"), None, piped=True)
        await wait_healthy(parts, [one, two, classifier, status, dataplane])
        direct = await Way.open(classifier, "/classify")
        opened.callback(direct.close)
        luftpause = await Way.open(dataplane, "/v1/decide")
        opened.callback(luftpause.close)
        yield Rig(direct, luftpause, f"http://{HOST}:{dataplane}/v1", agents)
        for part in parts:
            part.check()
