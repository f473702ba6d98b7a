"""A runtime in the test's own event loop: a real store, a real engine over HTTP, and tools that do what the test says.

    async with rig(tmp_path) as r:
        handle = await r.spawn("CALL lookup {}")

Effects are counted outside the runtime, as a tool server would: `r.tools.effects`.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from common.tracing import Tracer
from fakes.engine.config import EngineConfig
from fakes.engine.server import EngineServer
from runtime.journal import Journal
from runtime.llm import Model
from runtime.orders import SpawnRequest
from runtime.run import RunState, Usage, conversation
from runtime.service import Runtime
from runtime.sqlite_store import SqliteStore
from runtime.store import Store
from runtime.tool_specs import Done, EffectKind, Outcome, ToolSpec
from runtime.toolbox import ServerStatus, Toolbox
from runtime.tree import Tree
from tests.runtime.journals import assert_valid
from tests.waiting import wait_until

Behaviour = Callable[[dict[str, Any], str], Awaitable[Outcome]]
"""What a tool does with its arguments and key."""

_ANY_OBJECT = {"type": "object", "properties": {"query": {"type": "string"}}}


def spec(name: str, kind: EffectKind, *, destructive: bool = False) -> ToolSpec:
    """A tool that takes an optional query."""
    return ToolSpec("scripted", name, f"The tool {name}.", _ANY_OBJECT, kind, destructive)


class ScriptedToolbox(Toolbox):
    """Tools of every kind, whose calls are counted. `behaves` replaces what one of them does."""

    def __init__(self) -> None:
        super().__init__(())
        self.specs = [
            spec("lookup", EffectKind.READ_ONLY),
            spec("save", EffectKind.IDEMPOTENT),
            spec("send", EffectKind.AT_MOST_ONCE),
            spec("delete", EffectKind.AT_MOST_ONCE, destructive=True),
        ]
        self._away_since_s: float | None = None
        self.behaves: dict[str, Behaviour] = {}
        self.effects: collections.Counter[str] = collections.Counter()
        """Calls that reached a tool, by key."""
        self.calls: list[tuple[str, dict[str, Any], str]] = []
        """Name, arguments and key of each."""

    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(self.specs)

    def find(self, name: str) -> ToolSpec | None:
        return next((each for each in self.specs if each.name == name), None)

    def status(self) -> tuple[ServerStatus, ...]:
        names = tuple(each.name for each in self.specs)
        if self._away_since_s is None:
            return (ServerStatus("scripted", True, "", 0.0, names),)
        return (ServerStatus("scripted", False, "away", 0.0, names, time.monotonic() - self._away_since_s),)

    def seek(self, servers: Mapping[str, float]) -> None:
        """It comes back when the test says so."""

    def goes_away(self, *, is_known: bool) -> None:
        """The server is not connected from here on; where it is not known, it has not been since the start."""
        if not is_known:
            self.specs = []
        self._away_since_s = time.monotonic()

    def comes_back(self, specs: list[ToolSpec]) -> None:
        """The server is connected, and has these tools."""
        self.specs, self._away_since_s = specs, None
        if self.on_up is not None:
            self.on_up()

    async def call(
        self, spec: ToolSpec, arguments: dict[str, Any], *, key: str, traceparent: str | None, timeout_s: float | None
    ) -> Outcome:
        del traceparent, timeout_s
        self.effects[key] += 1
        self.calls.append((spec.name, arguments, key))
        if spec.name in self.behaves:
            return await self.behaves[spec.name](arguments, key)
        return Done(f"{spec.name} did {arguments.get('query', 'something')}", False)


class Hold:
    """A behaviour that waits until it is let go."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, _arguments: dict[str, Any], _key: str) -> Outcome:
        self.started.set()
        await self.go.wait()
        return Done("held", False)


class Rig:
    """The parts, and short ways to use them."""

    def __init__(self, folder: pathlib.Path, engine: EngineServer, model: Model) -> None:
        self.folder = folder
        self.engine = engine
        self.model = model
        self.tools = ScriptedToolbox()
        self.toolbox: Toolbox = self.tools
        """Where the next runtime's tools are."""
        self.wrap: Callable[[Store], Store] = lambda store: store
        """What the runtime gets in place of its store."""
        self.tools_wait_s = 60.0
        """How long the next runtime's runs wait for tool servers."""
        self.tracer: Tracer | None = None
        """With what the next runtime traces."""
        self._store: SqliteStore | None = None
        self._runtime: Runtime | None = None

    @property
    def runtime(self) -> Runtime:
        """The one that runs now."""
        assert self._runtime is not None
        return self._runtime

    @property
    def store(self) -> SqliteStore:
        """What it writes to."""
        assert self._store is not None
        return self._store

    async def start(self) -> None:
        """Starts a runtime on the folder's store."""
        self._store = await SqliteStore.open(self.folder / "runs.db")
        self._runtime = await Runtime.start(
            self.wrap(self._store),
            self.model,
            self.toolbox,
            default_model="fake-1b",
            tools_wait_s=self.tools_wait_s,
            tracer=self.tracer,
        )

    async def crash(self) -> None:
        """Ends the runtime without its doing: nothing that it was about to write is written."""
        executor = self.runtime._executor
        executor._closing = True
        tasks = {*executor._tasks, *self.runtime._background}
        for task in tasks:
            task.cancel()
        executor._waits.close()
        self.runtime._endings.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.store.close()

    async def restart(self) -> None:
        """A crash, and a start."""
        await self.crash()
        await self.start()

    async def close(self) -> None:
        """Ends the runtime as SIGTERM does."""
        await self.runtime.close()
        await self.store.close()

    async def spawn(self, task: str, caller: str = "tester", **arguments: Any) -> str:
        """A new run's handle."""
        return (await self.runtime.spawn(SpawnRequest(task, **arguments), caller)).run.run_id

    def journal(self, handle: str) -> Journal:
        """An open journal."""
        return self.runtime.tree.get("handle", handle)

    def state(self, handle: str) -> str:
        """Where a run is."""
        return str(self.journal(handle).run.state)

    async def settled(self, handle: str, timeout_s: float = 10.0) -> RunState:
        """The whole run, once nothing more happens to it by itself. Its conversation is valid."""
        (journal,) = await self.runtime.await_([handle], timeout_s=timeout_s)
        run = await self.runtime.read(handle)
        assert_valid(conversation(run))
        assert str(journal.run.state) != "Running", f"still running after {timeout_s} s"
        return run

    async def until(self, handle: str, state: str) -> None:
        """Waits until a run is in `state`."""
        await wait_until(lambda: self.state(handle) == state, 10.0, f"{handle} is {state}")

    async def rests(self, handle: str, state: str) -> None:
        """Waits until a run is in `state` and nothing is done for it: what drives it ends a moment after its record."""
        await self.until(handle, state)
        await wait_until(lambda: self.journal(handle).task is None, 10.0, f"{handle} rests")

    def times(self, tool: str) -> int:
        """How often a tool was called."""
        return sum(name == tool for name, _, _ in self.tools.calls)


def results(run: RunState) -> list[str]:
    """What the model reads of the run's calls."""
    return [message["content"] for message in conversation(run) if message["role"] == "tool"]


def check_sums(tree: Tree) -> None:
    """What the tree keeps of each run and all below it is what they have used."""
    for journal in tree:
        below = list(tree.down(journal))
        kept, used = tree.usage(journal), sum((each.run.usage for each in below), Usage())
        assert dataclasses.asdict(kept) == pytest.approx(dataclasses.asdict(used))
        assert tree.waiting_calls(journal) == sum(each.run.waiting_calls for each in below)


@contextlib.asynccontextmanager
async def rig(folder: pathlib.Path, **engine_settings: Any) -> AsyncIterator[Rig]:
    """A runtime with an engine of its own; both end with the block."""
    engine = EngineServer(EngineConfig(**{"speed": 50.0, "reply_tokens": 4, "tool_calls": 0, **engine_settings}), 0)
    await engine.start()
    try:
        async with Model(f"http://127.0.0.1:{engine.port}", None) as model:
            made = Rig(folder, engine, model)
            await made.tools.prepare(made.tools.specs[0], "{}")  # starts what tests with times do not wait for
            await made.start()
            try:
                yield made
                check_sums(made.runtime.tree)
            finally:
                await made.close()
                await made.tools.close()
    finally:
        await engine.finish()
