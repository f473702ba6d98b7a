"""Any messages to the gRPC services, in any order: an answer or a status that is not our fault, a sound state, and
others are answered."""

from __future__ import annotations

import asyncio
import collections
import itertools
import pathlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import grpc
import pytest
from google.protobuf.message import Message

from common.auth import Guard
from protos import runtime_pb2, runtime_pb2_grpc
from protos.scheduler_pb2 import (
    AdmitRequest,
    DispatchRequest,
    ForecastRequest,
    ReportRequest,
    ResyncRequest,
    WatchRequest,
)
from runtime import grpc_server
from scheduler.invariants import check
from tests.fuzz.fuzzing import HANG_S, fuzz
from tests.fuzz.messages import Known, any_of
from tests.runtime.rig import rig
from tests.scheduler.running_host import A, B, RunningHost, running_host

T = TypeVar("T")

OURS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
"""Statuses that a client cannot have caused: a method that raised. INTERNAL is what gRPC's own client makes of a stream
that the other side ended while it was writing."""
PATIENCE_S = 0.25
"""A held admission waits for ever."""
MESSAGES = 4
"""Of a stream, on average."""

CROWD = 100
"""Calls at a time: the patience then costs a crowd as much as it costs one."""


async def status_of(call: Any) -> grpc.StatusCode:
    """How a call ends; one that has not ended in time is cancelled."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return grpc.StatusCode(await call.code())
    except TimeoutError:
        call.cancel()
        return grpc.StatusCode.CANCELLED


OF_THE_SCHEDULER: list[tuple[str, type[Message], int]] = [
    ("Admit", AdmitRequest, 1),
    ("Watch", WatchRequest, 1),
    ("Forecast", ForecastRequest, 1),
    ("Report", ReportRequest, 2 * MESSAGES),
    ("Resync", ResyncRequest, 3),
]
"""Its methods but Dispatch, and how many messages each may get."""
TURNS = [f"t-{number}" for number in range(300)]
SCHEDULERS: Known = {
    "model": ["m", "n"],
    **dict.fromkeys(("turn_id", "abandons", "renewals"), TURNS),
    "run_id": ["", *(f"r-{number}" for number in range(50))],
    "caller": ["", "a", "b"],
    "replica": ["a", "b"],
    "fallbacks": [],
    **dict.fromkeys(("wait_ms_max", "deadline_ms"), (60_000,)),
    "budget_usd": [10.0],
}
REPLICAS = (A, replace(B, max_in_flight=8))
"""Turns of a crowd are placed, and held where others of it are."""
_numbers = itertools.count(1)


class Stream(NamedTuple):
    """What is sent on one."""

    messages: list[DispatchRequest]
    """`MESSAGES` on average."""
    is_opened: bool
    """After a hello and a resync, and with right sequences."""
    stays: bool
    """It is not closed right after the last message."""


def stream(chance: random.Random) -> Stream:
    """Any."""
    count = chance.randint(1, 2 * MESSAGES - 1)
    messages = [any_of(chance, DispatchRequest, SCHEDULERS) for _ in range(count)]
    return Stream(messages, is_opened=chance.random() < 0.9, stays=chance.random() < 0.5)


def crowd_of(make: Callable[[random.Random], T]) -> Callable[[random.Random], list[T]]:
    """A crowd of what `make` makes."""
    return lambda chance: [make(chance) for _ in range(CROWD)]


async def dispatch(running: RunningHost, made: Stream) -> None:
    client = running.dispatch()
    if made.is_opened:
        client_id = f"d-{next(_numbers)}"
        await client.open(client_id, resync=ResyncRequest(complete=True))
        for number, each in enumerate(made.messages, 3):
            each.sequence = number
            each.ClearField("hello")
            each.ClearField("resync")
    try:
        for each in made.messages:
            await client.call.write(each)
        if not made.stays:
            await client.call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass  # it was refused before all was written
    assert await status_of(client.call) not in OURS
    assert not running.host.failed.is_set()


async def sound(running: RunningHost) -> None:
    """Whether the scheduler is sound and answers another dataplane."""
    check(running.host.state)
    another = running.dispatch()
    await another.open(f"d-{next(_numbers)}")
    await another.acknowledged()
    another.call.cancel()


def test_any_messages_of_a_dispatch_stream_leave_a_sound_state(request: pytest.FixtureRequest) -> None:
    with asyncio.Runner() as runner:
        context = running_host(REPLICAS)
        running = runner.run(context.__aenter__())

        were_held = 0

        async def crowd(made: list[Stream]) -> None:
            nonlocal were_held
            streams = asyncio.gather(*(dispatch(running, each) for each in made))
            while not streams.done():
                were_held += sum(running.host.state.held)
                await asyncio.wait([streams], timeout=0.01)
            await streams
            await sound(running)

        fuzz(request, crowd_of(stream), lambda made: runner.run(crowd(made)), each=MESSAGES * CROWD)
        assert were_held
        runner.run(context.__aexit__(None, None, None))


def call_of_the_scheduler(chance: random.Random) -> tuple[str, list[Any]]:
    """A method but Dispatch, and what is sent."""
    method, message, most = chance.choice(OF_THE_SCHEDULER)
    return method, [any_of(chance, message, SCHEDULERS) for _ in range(chance.randint(0, most) if most > 1 else 1)]


def test_any_calls_of_the_scheduler_leave_a_sound_state(request: pytest.FixtureRequest) -> None:
    with asyncio.Runner() as runner:
        context = running_host(REPLICAS)
        running = runner.run(context.__aenter__())

        async def ask(method: str, messages: list[Any]) -> None:
            streams = method in ("Report", "Resync")
            call = getattr(running.stub, method)(iter(messages) if streams else messages[0])
            assert await status_of(call) not in OURS
            assert not running.host.failed.is_set()

        async def crowd(made: list[tuple[str, list[Any]]]) -> None:
            await asyncio.gather(*(ask(*each) for each in made))
            await sound(running)

        fuzz(request, crowd_of(call_of_the_scheduler), lambda made: runner.run(crowd(made)), each=CROWD)
        runner.run(context.__aexit__(None, None, None))


KNOWN_MAX = 50
"""The latest runs and bundles that are asked for again."""
METHODS = [
    (method.name, getattr(runtime_pb2, method.input_type.name))
    for method in runtime_pb2.DESCRIPTOR.services_by_name["Runs"].methods
]


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

        handles, bundles = collections.deque(["none"], KNOWN_MAX), collections.deque([b""], KNOWN_MAX)
        tools = ["lookup", "save", "send", "delete"]
        known: Known = {
            **dict.fromkeys(("handle", "handles", "parent", "after", "root"), handles),
            **dict.fromkeys(("names", "approve_tools"), tools),
            "bundle": bundles,
            "model": ["fake-1b"],
            "task": ["a", *(f"CALL {name} {{}}" for name in tools)],
        }

        def make(chance: random.Random) -> tuple[str, Message]:
            name, message = chance.choice(METHODS)
            return name, any_of(chance, message, known)

        async def ask(method: str, message: Message) -> None:
            call = getattr(stub, method)(message)
            status = await status_of(call)
            assert status not in OURS
            if status is grpc.StatusCode.OK and method in ("Spawn", "Fork"):
                handles.append((await call).handle)
            if status is grpc.StatusCode.OK and method == "Export":
                bundles.append((await call).bundle)

        async def crowd(made: list[tuple[str, Message]]) -> None:
            await asyncio.gather(*(ask(*each) for each in made))
            await stub.List(runtime_pb2.ListRequest(limit=1), timeout=HANG_S)

        fuzz(request, crowd_of(make), lambda made: runner.run(crowd(made)), each=CROWD)
        runner.run(channel.close())
        runner.run(serving.__aexit__(None, None, None))
        runner.run(rigged.__aexit__(None, None, None))
