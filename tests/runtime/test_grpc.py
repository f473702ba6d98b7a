"""The gRPC surface: the same operations, for clients of any language."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import json
import math
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.auth import Guard
from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc, turn_pb2
from runtime import grpc_server, wire
from runtime.orders import SpawnRequest
from runtime.refusals import InvalidArgumentError, UnknownRunError
from tests.runtime.journals import assert_valid
from tests.runtime.rig import Hold, Rig, rig

Served = tuple[Rig, grpc.aio.Channel]


_REFUSALS = (InvalidArgumentError, UnknownRunError)


@pytest.fixture
async def served(tmp_path: pathlib.Path) -> AsyncIterator[Served]:
    """A runtime and a channel to it."""
    async with (
        rig(tmp_path) as r,
        grpc_server.serving(r.runtime, "127.0.0.1", 0, Guard()) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield r, channel


def stub(channel: grpc.aio.Channel, service: Any = runtime_pb2_grpc.RunsStub) -> Any:
    """A service of the channel; the stubs know no asynchronous one."""
    return service(channel)


async def test_a_run_is_spawned_awaited_and_read(served: Served) -> None:
    runs = stub(served[1])
    request = pb.SpawnRequest(
        task='CALL lookup {"query": "x"}',
        system="be brief",
        service_class=turn_pb2.RUN_CLASS_BATCH,
        caller="me",
        budget=pb.Budget(tokens=10_000),
    )
    handle = (await runs.Spawn(request)).handle
    (run,) = (await runs.Await(pb.AwaitRequest(handles=[handle]))).runs
    assert (run.state, run.caller, run.model) == (pb.RUN_STATE_COMPLETED, "me", "fake-1b")
    assert (run.own.turns, run.own.tool_calls, run.own.failed_tool_calls) == (2, 1, 0)
    assert run.budget.tokens == 10_000
    assert not run.budget.HasField("seconds")
    got = await runs.Get(pb.GetRequest(handle=handle))
    messages = json.loads(got.messages)
    assert_valid(messages)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[-1]["content"] == run.text


async def test_watch_streams_the_steps_until_the_end(served: Served) -> None:
    r, channel = served
    runs = stub(channel)
    hold = Hold()
    r.tools.behaves["lookup"] = hold
    handle = (await runs.Spawn(pb.SpawnRequest(task="CALL lookup {}\nCALL delete {}"))).handle
    kinds = []
    async for step in runs.Watch(pb.RunsWatchRequest(handle=handle)):
        kinds.append(step.WhichOneof("record"))
        assert step.number == len(kinds) - 1
        if kinds[-1] == "call_started":
            hold.go.set()
        if kinds[-1] == "reply" and kinds.count("reply") == 2:
            await r.until(handle, "AwaitingApproval")
            asked = (await runs.Get(pb.GetRequest(handle=handle))).run.pending_approval.question
            for allow in (False, True):  # sent again by a client that lost the reply, and by one with a mind of its own
                answer = pb.ApproveRequest(handle=handle, allow=allow, question=asked)
                assert not (await runs.Approve(answer)).allow
    expected = ["started", "reply", "call_started", "call_ended", "reply", "call_answered", "reply", "end"]
    assert kinds == expected


async def test_runs_are_listed_by_tree_and_state_and_in_parts(served: Served) -> None:
    r, channel = served
    runs = stub(channel)
    root = await r.spawn("CALL delete {}")
    child = await r.spawn("x", parent=root)
    other = await r.spawn("x")
    for handle in (root, child, other):
        await r.settled(handle)

    async def listed(**request: object) -> tuple[list[str], bool]:
        answer = await runs.List(pb.ListRequest(**request))  # type: ignore[arg-type]
        return [run.handle for run in answer.runs], answer.more

    assert await listed() == ([root, child, other], False)
    assert await listed(root=root) == ([root, child], False)
    assert await listed(states=[pb.RUN_STATE_COMPLETED]) == ([child, other], False)
    assert await listed(limit=1) == ([root], True)
    assert await listed(after=root, limit=1) == ([child], True)
    assert await listed(after=child) == ([other], False)
    cancelled = await runs.Cancel(pb.CancelRequest(handle=root))
    assert list(cancelled.handles) == [root]


@pytest.mark.parametrize(
    ("method", "request_", "status", "text"),
    [
        ("Spawn", pb.SpawnRequest(), grpc.StatusCode.INVALID_ARGUMENT, "task: expected a text"),
        ("Spawn", pb.SpawnRequest(task="x", service_class=7), grpc.StatusCode.INVALID_ARGUMENT, "service_class: "),  # type: ignore[arg-type]
        ("Spawn", pb.SpawnRequest(task="x", parent="no"), grpc.StatusCode.NOT_FOUND, "parent: there is no run 'no'"),
        ("Await", pb.AwaitRequest(), grpc.StatusCode.INVALID_ARGUMENT, "handles: expected 1 to 1000"),
        ("Await", pb.AwaitRequest(handles=["no"]), grpc.StatusCode.NOT_FOUND, "handles: there is no run 'no'"),
        (
            "Await",
            pb.AwaitRequest(handles=["no"], mode=9),  # type: ignore[arg-type]
            grpc.StatusCode.INVALID_ARGUMENT,
            "mode: expected AWAIT_MODE_",
        ),
        ("Get", pb.GetRequest(handle="no"), grpc.StatusCode.NOT_FOUND, "handle: there is no run 'no'"),
        ("Await", pb.AwaitRequest(handles=["no"], timeout_s=-1), grpc.StatusCode.INVALID_ARGUMENT, "timeout_s: "),
        (
            "Spawn",
            pb.SpawnRequest(task="x", budget=pb.Budget(seconds=math.nan)),
            grpc.StatusCode.INVALID_ARGUMENT,
            "budget.seconds: expected a number more than 0, at most ",
        ),
        ("List", pb.ListRequest(states=[99]), grpc.StatusCode.INVALID_ARGUMENT, "states: "),  # type: ignore[list-item]
        (
            "List",
            pb.ListRequest(states=[pb.RUN_STATE_RUNNING] * 1001),
            grpc.StatusCode.INVALID_ARGUMENT,
            "states: expected at most 1000",
        ),
        ("Decide", pb.DecideRequest(labels=["x"] * 1001), grpc.StatusCode.INVALID_ARGUMENT, "labels: expected at most"),
        (
            "Spawn",
            pb.SpawnRequest(task="x", approve_tools=["x"] * 1001),
            grpc.StatusCode.INVALID_ARGUMENT,
            "approve_tools: expected at most 1000",
        ),
        ("List", pb.ListRequest(limit=1001), grpc.StatusCode.INVALID_ARGUMENT, "limit: expected 1 to 1000"),
        ("List", pb.ListRequest(after="no"), grpc.StatusCode.NOT_FOUND, "after: there is no run 'no'"),
        ("List", pb.ListRequest(root="no"), grpc.StatusCode.NOT_FOUND, "root: there is no run 'no'"),
        ("Cancel", pb.CancelRequest(handle="no"), grpc.StatusCode.NOT_FOUND, "handle: there is no run 'no'"),
        ("Approve", pb.ApproveRequest(handle="no"), grpc.StatusCode.NOT_FOUND, "handle: there is no run 'no'"),
    ],
)
async def test_a_bad_request_is_refused_with_its_status(
    served: Served, method: str, request_: object, status: grpc.StatusCode, text: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await getattr(stub(served[1]), method)(request_)
    assert refused.value.code() is status
    assert (refused.value.details() or "").startswith(text)


async def test_every_argument_of_a_spawn_is_told_by_a_field_of_its_request() -> None:
    for field in dataclasses.fields(SpawnRequest):
        first, *others = field.name.split("_")
        message: Any = pb.SpawnRequest.DESCRIPTOR
        for part in wire.field_of(first + "".join(each.title() for each in others)).split("."):
            message = message.fields_by_name[part].message_type


async def test_a_caller_is_cut_and_stripped_as_a_header_of_the_dataplane(served: Served) -> None:
    r, channel = served
    handle = (await stub(channel).Spawn(pb.SpawnRequest(task="x", caller="me\n" + "é" * 400))).handle
    assert (await r.settled(handle)).caller == "me" + "é" * 63


async def test_a_traceparent_that_is_none_harms_no_run(served: Served) -> None:
    r, channel = served
    for told in ("a\r\nb", "x" * 100_000):
        handle = (await stub(channel).Spawn(pb.SpawnRequest(task="x", traceparent=told))).handle
        run = await r.settled(handle)
        assert (run.state, run.traceparent) == ("Completed", None)


async def test_what_the_state_of_a_run_forbids_is_a_failed_precondition(served: Served) -> None:
    r, channel = served
    handle = await r.spawn("x")
    await r.settled(handle)
    for call in (
        stub(channel).Approve(pb.ApproveRequest(handle=handle)),
        stub(channel).Spawn(pb.SpawnRequest(task="x", parent=handle)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_health_and_reflection_are_served(served: Served) -> None:
    channel = served[1]
    request = health_pb2.HealthCheckRequest(service="luftpause.v1.Runs")
    answer = await stub(channel, health_pb2_grpc.HealthStub).Check(request)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    answers = stub(channel, reflection_pb2_grpc.ServerReflectionStub).ServerReflectionInfo(asked)
    names = [service.name async for answer in answers for service in answer.list_services_response.service]
    assert "luftpause.v1.Runs" in names


async def test_without_the_token_only_health_answers(tmp_path: pathlib.Path) -> None:
    async with (
        rig(tmp_path) as r,
        grpc_server.serving(r.runtime, "127.0.0.1", 0, Guard("secret")) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        await stub(channel, health_pb2_grpc.HealthStub).Check(health_pb2.HealthCheckRequest())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub(channel).List(pb.ListRequest())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await stub(channel).List(pb.ListRequest(), metadata=(("authorization", "Bearer secret"),))


async def test_a_refused_request_is_let_go_at_once(served: Served) -> None:
    _, channel = served
    gc.collect()
    gc.disable()
    try:
        runs = stub(channel)
        for ask in (
            lambda: runs.Spawn(pb.SpawnRequest(task="x", approve_tools=["x"] * 2000)),
            lambda: runs.Get(pb.GetRequest(handle="nobody")),
            lambda: runs.Watch(pb.RunsWatchRequest(handle="nobody")).read(),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await ask()  # type: ignore[no-untyped-call]
        kept = [each for each in gc.get_objects() if isinstance(each, _REFUSALS)]
        assert not kept
        frames = [each for each in gc.get_objects() if inspect.isframe(each) and "request" in each.f_locals]
        held = [frame.f_locals["request"] for frame in frames]
        assert not [each for each in held if isinstance(each, pb.SpawnRequest | pb.GetRequest | pb.RunsWatchRequest)]
    finally:
        gc.enable()


async def test_a_handle_that_is_named_twice_is_awaited_once(served: Served) -> None:
    r, channel = served
    handle = await r.spawn("t")
    told = await stub(channel).Await(pb.AwaitRequest(handles=[handle] * 3))
    assert [run.handle for run in told.runs] == [handle]
