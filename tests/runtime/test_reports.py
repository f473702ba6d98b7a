"""What others' users reported of runs that were to outlive a process, tried on ours; and what a run may cost."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import pytest
from aiohttp import web

from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc
from runtime.chat import RawCall, Reply
from runtime.llm import Model, TimedReply
from runtime.run import RunState
from runtime.service import Runtime
from runtime.sqlite_store import SqliteStore
from runtime.store import Append, ConflictError, ReadOnlyError
from runtime.tool_config import Server
from runtime.tool_specs import ToolSpec
from tests.runtime.rig import Hold, Rig, results
from tests.runtime.service_process import running_runtime
from tests.runtime.tool_servers import WHOLE, ScriptedServer, opened, reply, serving
from tests.stack import environment
from tests.waiting import wait_until_sync


async def test_a_slow_tool_is_not_started_again_while_its_owner_lives(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["send"] = hold
    handle = await r.spawn("CALL send {}")
    await hold.started.wait()
    for _ in range(5):
        r.runtime._executor.wake(r.journal(handle))
        await r.runtime.await_([handle], timeout_s=0.05)
    hold.go.set()
    assert results(await r.settled(handle)) == ["held"]
    assert r.times("send") == 1


@pytest.mark.parametrize("stateless", [True, False])
@pytest.mark.parametrize(
    ("hints", "state"),
    [
        ({"readOnlyHint": True}, "Completed"),
        ({"idempotentHint": True}, "Completed"),
        ({}, "AwaitingApproval"),
    ],
)
async def test_a_tool_that_runs_for_longer_than_its_limit_is_started_once(
    r: Rig, hints: dict[str, Any], state: str, stateless: bool
) -> None:
    """The limit is a tenth of the tool's time, as in the report, where both were minutes."""

    async def slow(_request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(3.0)
        return reply(message, {"content": [], **WHOLE})

    server = ScriptedServer(slow, stateless=stateless)
    server.tools = [{"name": "act", "inputSchema": {"type": "object"}, "annotations": hints}]
    async with serving(server) as url, opened(Server("slow", url=url, timeout_s=0.3)) as toolbox:
        r.toolbox = toolbox
        await r.restart()
        handle = await r.spawn("CALL act {}")
        run = await r.settled(handle)
        assert run.state == state
        if state == "Completed":
            assert results(run) == ["Error: no answer within 0.3 s; the tool may still be running"]
        await r.restart()
        assert r.state(handle) == state
        assert server.calls == 1
        r.toolbox = r.tools
        await r.restart()


class FullStore:
    """Refuses commits from a moment on, as a store on a full disk does."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.is_full = False
        self.refused = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(
        self,
        appends: Sequence[Append] = (),
        puts: Mapping[str, bytes] | None = None,
        expects: Mapping[str, bytes | None] | None = None,
    ) -> None:
        if self.is_full:
            self.refused.set()
            raise ReadOnlyError("the disk is full")
        await self._store.commit(appends, puts, expects)


async def test_promise_14_an_outcome_that_cannot_be_written_is_not_acted_on_and_not_repeated(r: Rig) -> None:
    full: list[FullStore] = []

    def wrap(store: Any) -> Any:
        full.append(FullStore(store))
        return full[-1]

    r.wrap = wrap
    await r.restart()
    hold = Hold()
    r.tools.behaves["send"] = hold
    handle = await r.spawn("CALL send {}")
    await hold.started.wait()
    full[-1].is_full = True
    hold.go.set()
    await full[-1].refused.wait()
    with pytest.raises(ReadOnlyError):
        await r.spawn("x")
    with pytest.raises(ReadOnlyError):
        await r.runtime.cancel(handle)
    assert r.state(handle) == "Running"
    await r.restart()
    await r.until(handle, "AwaitingApproval")
    assert r.times("send") == 1


async def test_of_two_recoverers_one_writes(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["send"] = hold
    handle = await r.spawn("CALL send {}")
    await hold.started.wait()
    second = await SqliteStore.open(r.folder / "runs.db")
    try:
        later = await Runtime.start(second, r.model, r.tools, default_model="fake-1b")
        with pytest.raises(ConflictError, match="owner"):
            await r.spawn("x")
        hold.go.set()
        assert str(later.tree.get("handle", handle).run.state) == "AwaitingApproval"
        await later.approve(handle, False)
        (journal,) = await later.await_([handle])
        assert journal.run.state == "Completed"
        await later.close()
    finally:
        await second.close()
    assert r.times("send") == 1


async def test_a_record_of_a_later_release_stops_the_start_and_names_the_run(r: Rig) -> None:
    handle = await r.spawn("CALL delete {}")
    await r.until(handle, "AwaitingApproval")
    length = len(await r.store.read(handle))
    await r.store.commit([Append(handle, length, (b'{"version":2,"kind":"slept"}',))])
    await r.crash()
    store = await SqliteStore.open(r.folder / "runs.db")
    with pytest.raises(Exception, match=f"run {handle}: a record of version 2"):
        await Runtime.start(store, r.model, r.tools)
    await store.close()
    # The fixture closes a runtime that works.
    (r.folder / "runs.db").unlink()
    for rest in r.folder.glob("runs.db-*"):
        rest.unlink()
    await r.start()


class CallingModel(Model):
    """Asks for a call of `lookup` in each of its first `rounds` replies."""

    def __init__(self, rounds: int) -> None:
        super().__init__("http://127.0.0.1:1", None)
        self._left = rounds

    async def turn(
        self, run: RunState, tools: Sequence[ToolSpec], traceparent: str | None, *, may_call: bool = True
    ) -> TimedReply:
        del run, tools, traceparent, may_call
        self._left -= 1
        calls = (RawCall("", "lookup", "{}"),) if self._left >= 0 else ()
        return TimedReply(Reply("", calls), 0.0)


async def test_promise_12_a_thousand_rounds_take_memory_and_disk_in_proportion(r: Rig) -> None:
    async def taken(rounds: int) -> tuple[int, list[bytes]]:
        async with CallingModel(rounds) as r.model:
            await r.restart()
            hold = Hold()
            r.tools.behaves["lookup"] = hold
            handle = await r.spawn("t", max_tool_calls=rounds + 1)
            await hold.started.wait()
            tracemalloc.start()
            del r.tools.behaves["lookup"]
            hold.go.set()
            while len(r.journal(handle).run.steps) < rounds:
                await r.journal(handle).changed()
            size, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            await r.settled(handle, 30.0)
            return size, await r.store.read(handle)

    size, records = await taken(1000)
    assert size < 4096 * 1000
    early, late = (sum(map(len, records[start : start + 1000])) for start in (1, 2001))
    assert late < 1.1 * early  # a number has more digits later
    assert len(records) == 1 + 3 * 1000 + 2


@pytest.mark.parametrize("where", ["here", "http"])
def test_a_run_that_waits_on_a_tool_takes_at_most_50_kib(tmp_path: pathlib.Path, where: str) -> None:
    command = [sys.executable, "-m", "tests.runtime.memory_of_runs", str(tmp_path), "200", where]
    done = subprocess.run(command, env=environment({}), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 50


def test_a_runtime_that_was_stopped_past_the_time_of_a_run_ends_it_once(tmp_path: pathlib.Path) -> None:
    with running_runtime(tmp_path, {"LUFTPAUSE_TOOLS_LOOKUP_S": "600"}) as runtime:
        assert runtime.service is not None
        with grpc.insecure_channel(f"127.0.0.1:{runtime.grpc_port}") as channel:
            runs = runtime_pb2_grpc.RunsStub(channel)
            task = 'CALL lookup {"query": "x"}'
            budget = pb.Budget(seconds=2.0)
            handle = runs.Spawn(pb.SpawnRequest(task=task, budget=budget)).handle
            over = time.monotonic() + 4.0
            runtime.service.process.send_signal(signal.SIGSTOP)
            wait_until_sync(lambda: time.monotonic() > over)
            runtime.service.process.send_signal(signal.SIGCONT)
            records = [
                record.WhichOneof("record") for record in runs.Watch(pb.RunsWatchRequest(handle=handle), timeout=10)
            ]
            ended = runs.Get(pb.GetRequest(handle=handle)).run
    assert records.count("end") == 1
    assert records.count("reply") <= 1, "nothing was made up for"
    assert (ended.state, ended.text.split("/")[0][:24]) == (pb.RUN_STATE_BUDGET_EXCEEDED, "budget exceeded: seconds")
