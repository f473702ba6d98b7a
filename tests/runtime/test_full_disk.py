"""A disk that fills up and has room again, under a runtime that lives."""

from __future__ import annotations

import asyncio
import json
import pathlib
import resource
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import pytest

from protos import runtime_pb2 as pb
from runtime.records import State
from runtime.sqlite_store import SqliteStore
from runtime.store import Append, ReadOnlyError
from tests.runtime import journals as j
from tests.runtime.kills import client
from tests.runtime.rig import Hold, Rig, results
from tests.runtime.service_process import running_runtime
from tests.waiting import wait_until, wait_until_sync


class SmallStore:
    """A store that has no room from a moment on, until it has and is revived."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.is_full = False
        self.broken: str | None = None
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def wants_room(self) -> bool:
        return self.broken is not None

    async def commit(
        self,
        appends: Sequence[Append] = (),
        puts: Mapping[str, bytes] | None = None,
        expects: Mapping[str, bytes | None] | None = None,
    ) -> None:
        if self.is_full:
            self.broken = "no room"
        if self.broken is not None:
            self.refused += len(appends)
            raise ReadOnlyError(self.broken)
        await self._store.commit(appends, puts, expects)

    async def revive(self, puts: Mapping[str, bytes], expects: Mapping[str, bytes | None]) -> None:
        self.broken = None
        await self.commit(puts=puts, expects=expects)


@pytest.fixture
async def small(r: Rig, monkeypatch: pytest.MonkeyPatch) -> SmallStore:
    monkeypatch.setattr("runtime.service.ROOM_EVERY_S", 0.05)
    made: list[SmallStore] = []

    def wrap(store: Any) -> Any:
        made.append(SmallStore(store))
        return made[-1]

    r.wrap = wrap
    await r.restart()
    return made[-1]


async def test_what_a_tool_answered_while_the_disk_was_full_is_written_when_it_has_room(
    r: Rig, small: SmallStore
) -> None:
    hold = r.tools.behaves["send"] = Hold()
    handle = await r.spawn("CALL send {}")
    await hold.started.wait()
    small.is_full = True
    hold.go.set()
    await wait_until(lambda: small.refused > 1)
    with pytest.raises(ReadOnlyError):
        await r.runtime.cancel(handle)
    with pytest.raises(ReadOnlyError):
        await r.spawn("x")
    assert r.state(handle) == "Running"
    small.is_full = False
    assert results(await r.settled(handle)) == ["held"]
    assert r.times("send") == 1


async def test_a_reply_that_had_no_room_is_asked_for_again_when_there_is_some(r: Rig, small: SmallStore) -> None:
    hold = r.tools.behaves["lookup"] = Hold()
    first = await r.spawn("CALL lookup {}")
    await hold.started.wait()
    asked = await r.spawn("CALL delete {}")
    await r.until(asked, "AwaitingApproval")
    small.is_full = True
    with pytest.raises(ReadOnlyError):
        await r.runtime.approve(asked, True)
    hold.go.set()
    await wait_until(lambda: small.refused > 1)
    small.is_full = False
    assert results(await r.settled(first)) == ["held"]
    await r.runtime.approve(asked, True)
    assert results(await r.settled(asked)) == ["delete did something"]


@pytest.mark.parametrize("kept_s", [0.01, 0.5], ids=["the-outcome-first", "the-end-first"])
async def test_a_budget_that_ran_out_while_the_disk_was_full_ends_its_run(
    r: Rig, small: SmallStore, monkeypatch: pytest.MonkeyPatch, kept_s: float
) -> None:
    monkeypatch.setattr("runtime.journal.KEPT_S", kept_s)
    hold = r.tools.behaves["send"] = Hold()
    handle = await r.spawn("CALL send {}", budget_seconds=0.5)
    await hold.started.wait()
    small.is_full = True
    hold.go.set()
    await wait_until(lambda: r.journal(handle).age_s > 1.0)
    small.is_full = False
    await r.until(handle, "BudgetExceeded")
    assert results(await r.settled(handle)) == ["held"]


async def refused_end(r: Rig, small: SmallStore, tool: str) -> str:
    """A run whose cancellation in the midst of a call found the disk full; it has room again."""
    hold = r.tools.behaves[tool] = Hold()
    handle = await r.spawn(f"CALL {tool} {{}}")
    await hold.started.wait()
    small.is_full = True
    with pytest.raises(ReadOnlyError):
        await r.runtime.cancel(handle)
    small.is_full = False
    return handle


async def test_a_run_whose_end_found_the_disk_full_goes_on_when_it_has_room_and_can_be_ended(
    r: Rig, small: SmallStore
) -> None:
    handle = await refused_end(r, small, "lookup")
    await wait_until(lambda: r.times("lookup") == 2)
    await r.runtime.cancel(handle)
    assert r.state(handle) == "Cancelled"


async def test_a_call_that_was_stopped_for_an_end_that_found_the_disk_full_is_not_repeated_unasked(
    r: Rig, small: SmallStore
) -> None:
    handle = await refused_end(r, small, "send")
    await r.until(handle, "AwaitingApproval")
    assert r.times("send") == 1


async def test_what_is_kept_of_a_run_comes_before_all_else_of_it(r: Rig, small: SmallStore) -> None:
    holds = {name: Hold() for name in ("send", "save")}
    r.tools.behaves.update(holds)
    handle = await r.spawn('CALL send {"query": "a"}\nCALL save {"query": "b"}', parallel_tool_calls=True)
    await asyncio.gather(*(hold.started.wait() for hold in holds.values()))
    small.is_full = True
    for hold in holds.values():
        hold.go.set()
    await wait_until(lambda: small.refused > 1)
    async with asyncio.timeout(5.0):
        with pytest.raises(ReadOnlyError, match="what happened before could not be written yet"):
            await r.journal(handle).append(j.ended(State.CANCELLED))
    small.is_full = False
    run = await r.settled(handle)
    assert results(run) == ["held", "held"]
    assert (r.times("send"), r.times("save")) == (1, 1)


def refusal(ask: Callable[[], Any]) -> str:
    """What a gRPC call fails with; empty if it does not."""
    try:
        ask()
    except grpc.RpcError as error:
        return str(error.code().name)
    return ""


def test_promise_14_results_outlive_a_full_disk_without_a_restart(tmp_path: pathlib.Path) -> None:
    tasks = ('CALL add_note {"text": "a"}', 'CALL set_note {"name": "n", "text": "a"}')
    with running_runtime(tmp_path, {"LUFTPAUSE_TOOLS_NOTE_S": "2"}) as runtime, client(runtime) as runs:
        assert runtime.service is not None
        pid = runtime.service.process.pid
        handles = [runs.Spawn(pb.SpawnRequest(task=task)).handle for task in tasks]
        for handle in handles:
            for told in runs.Watch(pb.RunsWatchRequest(handle=handle)):
                if told.WhichOneof("record") == "call_started":
                    break
        largest = max(file.stat().st_size for file in (tmp_path / "state").glob("runs.db*"))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
        wait_until_sync(lambda: refusal(lambda: runs.Spawn(pb.SpawnRequest(task="x" * 20_000))) == "UNAVAILABLE")
        wait_until_sync(lambda: len(runtime.ledger.read_text().splitlines()) == 2)
        assert refusal(lambda: runs.Cancel(pb.CancelRequest(handle=handles[0]))) == "UNAVAILABLE"
        assert [runs.Get(pb.GetRequest(handle=each)).run.state for each in handles] == [pb.RUN_STATE_RUNNING] * 2
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ended = runs.Await(pb.AwaitRequest(handles=handles, timeout_s=60)).runs
        assert [(each.state, each.own.failed_tool_calls) for each in ended] == [(pb.RUN_STATE_COMPLETED, 0)] * 2
        runs.Spawn(pb.SpawnRequest(task="x"))
        runtime.kill()
        runtime.start()
        with client(runtime) as again:
            found = again.Await(pb.AwaitRequest(handles=handles)).runs
        assert [each.text for each in found] == [each.text for each in ended]
        assert len([json.loads(line) for line in runtime.ledger.read_text().splitlines()]) == 2
