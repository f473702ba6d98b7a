"""Any messages to the gRPC services, in any order: an answer or a status that is not our fault, and a sound state."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import strategies as st

from common.auth import Guard
from protos import runtime_pb2, runtime_pb2_grpc, scheduler_pb2, turn_pb2
from protos.scheduler_pb2 import DispatchRequest, ResyncRequest
from runtime import grpc_server
from scheduler.invariants import check
from tests.fuzz.fuzzing import fuzz
from tests.fuzz.messages import fields
from tests.runtime.rig import rig
from tests.scheduler.running_host import A, B, RunningHost, running_host

OURS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
"""Statuses that a client cannot have caused: a method that raised. INTERNAL is what gRPC's own client makes of a stream
that the other side ended while it was writing."""
PATIENCE_S = 0.02
"""A held admission waits for ever."""
MESSAGES_MAX = 8

_NAMED = {
    each.full_name: getattr(module, each.name)
    for module in (turn_pb2, scheduler_pb2, runtime_pb2)
    for each in module.DESCRIPTOR.message_types_by_name.values()
}


def any_of(message: type[Message]) -> st.SearchStrategy[Any]:
    return fields(message.DESCRIPTOR).map(lambda made: message(**made))


async def status_of(call: Any) -> grpc.StatusCode:
    """How a call ends; one that has not ended in time is cancelled."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return grpc.StatusCode(await call.code())
    except TimeoutError:
        call.cancel()
        return grpc.StatusCode.CANCELLED


_numbers = itertools.count(1)
batches = st.lists(any_of(DispatchRequest), min_size=1, max_size=MESSAGES_MAX)


async def dispatch(running: RunningHost, made: list[DispatchRequest], opened: bool) -> None:
    """One stream with these messages; `opened`: after a hello and a resync, and with right sequences."""
    client = running.dispatch()
    if opened:
        client_id = f"d-{next(_numbers)}"
        await client.open(client_id, resync=ResyncRequest(complete=True))
        for number, each in enumerate(made, 3):
            each.sequence = number
            each.ClearField("hello")
            each.ClearField("resync")
    try:
        for each in made:
            await client.call.write(each)
        await client.call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # it was refused before all was written
    assert await status_of(client.call) not in OURS
    assert not running.host.failed.is_set()


def test_any_messages_of_a_dispatch_stream_leave_a_sound_state(request: pytest.FixtureRequest) -> None:
    with asyncio.Runner() as runner:
        context = running_host((A, B))
        running = runner.run(context.__aenter__())

        def run(value: tuple[list[DispatchRequest], bool]) -> None:
            runner.run(dispatch(running, *value))
            check(running.host.state)

        fuzz(request, st.tuples(batches, st.booleans()), run, each=MESSAGES_MAX // 2)
        runner.run(context.__aexit__(None, None, None))


unary = st.one_of(
    st.tuples(st.just("Admit"), any_of(scheduler_pb2.AdmitRequest).map(lambda each: [each])),
    st.tuples(st.just("Watch"), any_of(scheduler_pb2.WatchRequest).map(lambda each: [each])),
    st.tuples(st.just("Report"), st.lists(any_of(scheduler_pb2.ReportRequest), max_size=MESSAGES_MAX)),
    st.tuples(st.just("Resync"), st.lists(any_of(ResyncRequest), max_size=3)),
)


def test_any_calls_of_the_scheduler_leave_a_sound_state(request: pytest.FixtureRequest) -> None:
    with asyncio.Runner() as runner:
        context = running_host((A, B))
        running = runner.run(context.__aenter__())

        async def ask(method: str, messages: list[Any]) -> None:
            streams = method in ("Report", "Resync")
            call = getattr(running.stub, method)(iter(messages) if streams else messages[0])
            assert await status_of(call) not in OURS
            assert not running.host.failed.is_set()

        def run(value: tuple[str, list[Any]]) -> None:
            runner.run(ask(*value))
            check(running.host.state)

        fuzz(request, unary, run, each=2)
        runner.run(context.__aexit__(None, None, None))


def _requests_of_runs() -> st.SearchStrategy[tuple[str, Any]]:
    service = runtime_pb2.DESCRIPTOR.services_by_name["Runs"]
    methods = [
        st.tuples(st.just(method.name), any_of(_NAMED[method.input_type.full_name])) for method in service.methods
    ]
    return st.one_of(methods)


def test_any_calls_of_the_runtime_are_answered_without_a_fault_of_ours(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> None:
    with asyncio.Runner() as runner:
        rigged = rig(tmp_path)
        r = runner.run(rigged.__aenter__())
        serving = grpc_server.serving(r.runtime, "127.0.0.1", 0, Guard())
        port = runner.run(serving.__aenter__())

        async def connect() -> tuple[Any, Any]:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            make: Any = runtime_pb2_grpc.RunsStub
            return channel, make(channel)

        channel, stub = runner.run(connect())

        async def ask(method: str, message: Any) -> None:
            assert await status_of(getattr(stub, method)(message)) not in OURS

        fuzz(request, _requests_of_runs(), lambda value: runner.run(ask(*value)), each=4)
        runner.run(channel.close())
        runner.run(serving.__aexit__(None, None, None))
        runner.run(rigged.__aexit__(None, None, None))
