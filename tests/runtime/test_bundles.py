"""Runs that move to another store, and runs that fork."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import msgspec
import pytest

from common.auth import Guard
from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc
from runtime import bundles, grpc_server
from runtime.orders import DEPTH_MAX
from runtime.records import Ended, Intended, Limits, RunClass, Started, State, decode, effect_key
from runtime.recovery import INTERRUPTED
from runtime.refusals import InvalidArgumentError, RefusedError, WrongStateError
from runtime.run import conversation
from runtime.stored_runs import opened
from runtime.tool_specs import EffectKind
from tests.runtime import journals as j
from tests.runtime.journals import RUN
from tests.runtime.rig import Hold, Rig, results, rig

ROUNDS = 'CALL save {"query": "a"}\nCALL send {"query": "b"}\nthen answer'
ASKS = 'CALL save {"query": "a"}\nCALL delete {"query": "b"}\nthen answer'
BYTES_MAX = 1 << 20


@pytest.fixture
async def other(tmp_path: pathlib.Path) -> AsyncIterator[Rig]:
    """Another machine."""
    folder = tmp_path / "other"
    folder.mkdir()
    async with rig(folder) as made:
        yield made


async def paused(r: Rig) -> str:
    """A run that has saved and asks whether it may delete."""
    handle = await r.spawn(ASKS)
    await r.until(handle, "AwaitingApproval")
    return handle


async def test_promise_13_a_moved_run_has_one_live_owner(r: Rig, other: Rig) -> None:
    handle = await paused(r)
    before = conversation(await r.runtime.read(handle))
    bundle = await r.runtime.export(handle, BYTES_MAX)
    for _ in range(2):
        assert r.state(handle) == "Moved"
        with pytest.raises(RefusedError):
            await r.runtime.approve(handle, True)
        with pytest.raises(RefusedError):
            await r.spawn("x", parent=handle)
        assert await r.runtime.cancel(handle) == []
        with pytest.raises(WrongStateError, match="exported from this store"):
            await r.runtime.import_(bundle)
        await r.restart()
    (journal,) = await other.runtime.import_(bundle)
    assert journal.run.run_id == handle
    for _ in range(2):
        with pytest.raises(WrongStateError, match="imported already"):
            await other.runtime.import_(bundle)
        await other.restart()
    assert other.state(handle) == "AwaitingApproval"
    await other.runtime.approve(handle, True)
    run = await other.settled(handle)
    assert run.state is State.COMPLETED
    assert conversation(run)[: len(before)] == before
    assert (r.times("save"), r.times("delete")) == (1, 0)
    assert (other.times("save"), other.times("delete")) == (0, 1)


async def test_promise_13_a_fork_has_its_own_effects(r: Rig) -> None:
    handle = await r.spawn(ROUNDS)
    source = await r.settled(handle)
    assert len(source.steps) == 3
    keys = set(r.tools.effects)
    forked = (await r.runtime.fork(handle, 1)).run.run_id
    run = await r.settled(forked)
    assert (run.forked_from, run.root, run.parent, run.state) == (handle, forked, None, State.COMPLETED)
    assert run.steps[0] == source.steps[0]
    assert (r.times("save"), r.times("send")) == (1, 2)
    assert set(r.tools.effects) - keys == {effect_key(forked, 1, 0)}
    assert set(r.tools.effects.values()) == {1}
    kept = [decode(raw) for raw in await r.store.read(forked)]
    assert [each.key for each in kept if isinstance(each, Intended)] == [effect_key(forked, n, 0) for n in (0, 1)]
    assert await r.runtime.read(handle) == source
    await r.restart()
    assert await r.runtime.read(forked) == run


async def test_a_fork_keeps_whole_rounds_only(r: Rig) -> None:
    handle = await paused(r)
    with pytest.raises(InvalidArgumentError, match="at: expected a step from 0 to 1"):
        await r.runtime.fork(handle, 2)
    forked = (await r.runtime.fork(handle, 1)).run.run_id
    await r.until(forked, "AwaitingApproval")
    assert (r.times("save"), r.times("delete")) == (1, 0)


async def test_to_export_again_gives_the_same_bundle_even_after_a_restart(r: Rig) -> None:
    handle = await paused(r)
    for _ in range(3):
        await r.spawn("x", parent=handle)
    bundle_id, _ = bundles.read(await r.runtime.export(handle, BYTES_MAX))
    await r.restart()
    again, runs = bundles.read(await r.runtime.export(handle, BYTES_MAX))
    assert again == bundle_id
    assert len(runs) == 4


async def test_a_tree_moves_as_a_whole_and_only_so(r: Rig, other: Rig) -> None:
    root = await paused(r)
    child = await r.spawn("CALL delete {}", parent=root)
    done = await r.spawn("x", parent=child)
    await r.until(child, "AwaitingApproval")
    ended = await r.settled(done)
    with pytest.raises(WrongStateError, match=f"move run {root}"):
        await r.runtime.export(child, BYTES_MAX)
    assert r.state(child) == "AwaitingApproval"
    journals = await other.runtime.import_(await r.runtime.export(root, BYTES_MAX))
    assert [journal.run.run_id for journal in journals] == [root, child, done]
    assert [r.state(handle) for handle in (root, child, done)] == ["Moved", "Moved", "Completed"]
    assert await other.runtime.read(done) == ended
    assert len(await other.runtime.cancel(root)) == 2


async def test_a_call_in_progress_when_a_run_moves_is_asked_about_and_not_made_again(r: Rig, other: Rig) -> None:
    hold = Hold()
    r.tools.behaves["send"] = hold
    handle = await r.spawn("CALL send {}\nthen answer")
    await hold.started.wait()
    bundle = await r.runtime.export(handle, BYTES_MAX)
    hold.go.set()
    await other.runtime.import_(bundle)
    await other.until(handle, "AwaitingApproval")
    (asked,) = (await other.runtime.read(handle)).steps[0].calls
    assert asked.unknown == INTERRUPTED
    await other.runtime.approve(handle, False)
    assert (await other.settled(handle)).state is State.COMPLETED
    assert (r.times("send"), other.times("send")) == (1, 0)


async def test_a_run_that_may_repeat_its_call_repeats_it_under_the_same_key(r: Rig, other: Rig) -> None:
    hold = Hold()
    r.tools.behaves["save"] = hold
    handle = await r.spawn("CALL save {}\nthen answer")
    await hold.started.wait()
    await other.runtime.import_(await r.runtime.export(handle, BYTES_MAX))
    assert results(await other.settled(handle)) == ["save did something"]
    assert set(r.tools.effects) == set(other.tools.effects) == {effect_key(handle, 0, 0)}


async def test_an_export_that_was_interrupted_between_two_runs_is_completed_by_the_next(r: Rig) -> None:
    root = await paused(r)
    child = await r.spawn("CALL delete {}", parent=root)
    await r.until(child, "AwaitingApproval")
    await r.journal(root).append(Ended(at=0.0, state=State.MOVED, text="moved"))
    await r.restart()
    assert (r.state(root), r.state(child)) == ("Moved", "AwaitingApproval")
    _, runs = bundles.read(await r.runtime.export(root, BYTES_MAX))
    assert [run[0].run_id for run in runs] == [root, child]  # type: ignore[union-attr]
    assert r.state(child) == "Moved"


async def test_a_tree_that_is_too_large_stays(r: Rig) -> None:
    handle = await paused(r)
    with pytest.raises(WrongStateError, match="over 100 bytes"):
        await r.runtime.export(handle, 100)
    assert r.state(handle) == "AwaitingApproval"


async def test_without_a_runtime_a_run_moves_and_forks_too(r: Rig, tmp_path: pathlib.Path) -> None:
    handle = await paused(r)
    await r.crash()
    async with opened(r.folder) as stored:
        forked = await stored.fork(handle, 1)
        assert [run.handle for run in await stored.all()] == [handle, forked]
        bundle = await stored.export(handle)
        assert await stored.export(handle) == bundle
        got, records = await stored.get(handle)
        assert got.run.state == pb.RUN_STATE_MOVED
        assert [record.number for record in records] == [*range(len(records))]
    async with opened(tmp_path / "third") as third:
        assert await third.import_(bundle) == [handle]
        with pytest.raises(WrongStateError, match="imported already"):
            await third.import_(bundle)
    await r.start()
    await r.until(forked, "AwaitingApproval")
    assert r.times("save") == 1


def bundle_of(*runs: list[object]) -> bytes:
    return bundles.write(runs)[1]  # type: ignore[arg-type]


def started(run_id: str = RUN, **fields: Any) -> Started:
    """A first record that is as a client may not have it."""
    return msgspec.structs.replace(j.started(run_id, fields.pop("parent", None)), **fields)


def chain(length: int) -> bytes:
    """Runs one below the other."""
    below = (started(f"run-{n}", parent=f"run-{n - 1}", root="run-0") for n in range(1, length))
    runs: list[list[object]] = [[each] for each in below]
    return bundle_of([started("run-0")], *runs)


WHOLE = bundle_of([j.started(), j.replied(0, j.call()), j.intended(0, 0)])


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "expected what 'runs export' wrote"),
        (b"\xff", "expected what 'runs export' wrote"),
        (WHOLE[:-10], "expected what 'runs export' wrote"),
        (WHOLE.replace(b'"content":""', b'"content":"x"'), "it was changed since"),
        (WHOLE.replace(b'"version":1,"bundle_id"', b'"version":2,"bundle_id"'), "it has version 2"),
        (WHOLE.replace(b"luftpause-bundle", b"zip"), "expected the format"),
        (WHOLE.replace(b'"kind":"intended"', b'"kind":"planned"'), "a record of unknown kind 'planned'"),
        (bundle_of(), "expected at least one run"),
        (bundle_of([j.started(parent="run-0")]), "does not belong"),
        (bundle_of([j.started()], [j.started("run-2")]), "does not belong"),
        (bundle_of([j.started()], [j.started()]), "does not belong"),
        (bundle_of([j.started(), j.ended(State.MOVED)]), "does not belong"),
        (bundle_of([j.started(), j.intended(0, 0)]), "is not of the last step"),
        (b"[" * 200_000, "expected what 'runs export' wrote"),
        (b'{"format":"luftpause-bundle","version":1,"x":' + b"[" * 200_000, "expected what 'runs export' wrote"),
        (WHOLE.replace(b'"calls":[', b'"calls":[' + b'{"a":' * 100_000), "expected what 'runs export' wrote"),
        *(
            (bundle_of([j.started(each)]), "id: expected")
            for each in ("", "run\r\nx: 1", "../x", "run-\u202e", "r" * 129)
        ),
        *((bundle_of([started(caller=each)]), "caller: expected") for each in ("bob\r\nx: 1", " bob", "x" * 129)),
        *((bundle_of([started(at=each)]), "at: expected") for each in (-1.0, 1e300)),
        (bundle_of([started(traceparent="00-x")]), "traceparent: expected"),
        (bundle_of([started(root="run-2")]), "does not belong"),
        (bundle_of([j.started(task=" ")]), "task: expected"),
        (bundle_of([j.started(tool_calls_max=-1)]), "maxToolCalls: expected"),
        (bundle_of([j.started(limits=Limits(tokens=-5))]), "budgetTokens: expected"),
        (bundle_of([j.started()], [j.started("run-2", RUN, run_class=RunClass.BATCH)]), "serviceClass: a child has"),
        (bundle_of([j.started()], [started("run-2", parent=RUN, caller="other")]), "expected the caller of its parent"),
        (bundle_of([j.started(), msgspec.structs.replace(j.replied(0), prompt_tokens=-9)]), "tokens: expected"),
        (bundle_of([j.started(), j.replied(0, j.call(arguments="[]"))]), "calls: expected"),
        (chain(DEPTH_MAX + 1), "run run-32 is more than 32 runs deep"),
    ],
)
def test_what_is_no_whole_bundle_is_refused(raw: bytes, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        bundles.read(raw)
    assert str(refused.value).startswith("bundle: ")
    assert expected in str(refused.value)


async def test_grpc_moves_and_forks(r: Rig, other: Rig) -> None:
    handle = await paused(r)
    async with (
        grpc_server.serving(r.runtime, "127.0.0.1", 0, Guard()) as here,
        grpc_server.serving(other.runtime, "127.0.0.1", 0, Guard()) as there,
        grpc.aio.insecure_channel(f"127.0.0.1:{here}") as channel,
        grpc.aio.insecure_channel(f"127.0.0.1:{there}") as far,
    ):
        near, distant = (runtime_pb2_grpc.RunsStub(each) for each in (channel, far))
        request = pb.RunsWatchRequest(handle=handle, until_now=True)
        kinds = [record.WhichOneof("record") async for record in near.Watch(request)]
        assert kinds == ["started", "reply", "call_started", "call_ended", "reply"]
        forked = (await near.Fork(pb.ForkRequest(handle=handle, at=1))).handle
        assert (await near.Get(pb.GetRequest(handle=forked))).run.forked_from == handle
        bundle = (await near.Export(pb.ExportRequest(handle=handle))).bundle
        assert list((await distant.Import(pb.ImportRequest(bundle=bundle))).handles) == [handle]
        got = await distant.Get(pb.GetRequest(handle=handle))
        assert len(json.loads(got.messages)) == 3
        for call, code in (
            (distant.Import(pb.ImportRequest(bundle=bundle)), grpc.StatusCode.FAILED_PRECONDITION),
            (distant.Import(pb.ImportRequest(bundle=b"x")), grpc.StatusCode.INVALID_ARGUMENT),
            (distant.Export(pb.ExportRequest(handle="no")), grpc.StatusCode.NOT_FOUND),
            (near.Fork(pb.ForkRequest(handle=forked, at=9)), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is code


READ_ONLY = EffectKind.READ_ONLY


@pytest.mark.parametrize(
    "history",
    [
        [],
        [j.answered(0, 0, allow=True)],
        [j.intended(0, 0)],
        [j.answered(0, 0, allow=True), j.intended(0, 0)],
        [j.intended(0, 0), j.lost(0, 0), j.answered(0, 0, allow=True)],
        [j.answered(0, 0, allow=True), j.intended(0, 0), j.lost(0, 0), j.answered(0, 0, allow=True)],
    ],
    ids=["said", "allowed", "begun", "allowed-begun", "repeated", "allowed-repeated"],
)
@pytest.mark.parametrize("tool", ["delete", "unheard"])
async def test_a_bundle_cannot_say_that_a_destructive_call_needs_nobody(
    other: Rig, history: list[Any], tool: str
) -> None:
    asked_there = bool(history) and history[0] == j.answered(0, 0, allow=True)
    call = j.call(name=tool, effect=READ_ONLY, needs_approval=asked_there)
    start = started(at=time.time())
    journals = await other.runtime.import_(bundle_of([start, j.replied(0, call), *history]))
    assert [journal.run.state for journal in journals] == [State.AWAITING_APPROVAL]
    await other.restart()
    assert other.state(RUN) == "AwaitingApproval"
    await other.runtime.approve(RUN, True)
    await other.settled(RUN)
    assert other.times("delete") == (tool == "delete")


async def test_calls_that_need_nobody_here_go_on_when_they_come_in(other: Rig) -> None:
    call = j.call(name="lookup", effect=EffectKind.AT_MOST_ONCE)
    start = msgspec.structs.replace(j.started(model="fake-1b"), at=time.time())
    await other.runtime.import_(bundle_of([start, j.replied(0, call), j.intended(0, 0)]))
    assert (await other.settled(RUN)).state is State.COMPLETED
    assert other.times("lookup") == 1


async def test_of_a_tree_that_is_not_right_nothing_is_taken_in(other: Rig) -> None:
    wrong = bundle_of([j.started()], [j.started("run-2", RUN)], [started("run-3", parent=RUN, caller="x")])
    with pytest.raises(InvalidArgumentError):
        await other.runtime.import_(wrong)
    assert await other.store.runs() == {}
    await other.restart()
    assert list(other.runtime.tree) == []


@pytest.mark.parametrize("named", ["\0 bob", "x" * 127 + " y", "ä" * 64 + "b", " \t", "bob"])
async def test_a_caller_that_was_taken_in_leaves_and_comes_in_again(r: Rig, other: Rig, named: str) -> None:
    handle = await r.spawn(ASKS, caller=named)
    await r.until(handle, "AwaitingApproval")
    (journal,) = await other.runtime.import_(await r.runtime.export(handle, BYTES_MAX))
    assert journal.run.caller == r.journal(handle).run.caller
