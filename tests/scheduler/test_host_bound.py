"""Tokens that are bound to a caller or to classes, at the scheduler's own surfaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.auth import Guard, bearer_metadata
from common.grants import Grant
from common.ids import Caller, TurnId
from protos import turn_pb2
from protos.scheduler_pb2 import AdmitRequest, ReportRequest, WatchRequest
from scheduler import http
from scheduler.events import RunClass
from tests.scheduler.running_host import B, RunningHost, report, running_host, turn

ALICE = bearer_metadata("of-alice")
NIGHTLY = bearer_metadata("of-nightly")
SHARED = bearer_metadata("shared")
GUARD = Guard("shared", {"of-alice": Grant("alice", Caller("alice")), "of-nightly": Grant("n", None, ("batch",))})


@pytest.fixture
async def running() -> AsyncIterator[RunningHost]:
    async with running_host((B,), GUARD) as made:
        yield made


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    return await call.code(), await call.details()


async def test_an_admission_gets_the_caller_and_class_of_its_token(running: RunningHost) -> None:
    await running.stub.Admit(AdmitRequest(turn=turn("t1")), metadata=ALICE)
    await running.stub.Admit(AdmitRequest(turn=turn("t2", caller="bob")), metadata=NIGHTLY)
    turns = running.host.state.turns
    asked = [turns[TurnId(name)].request for name in ("t1", "t2")]
    assert [(each.caller, each.run_class) for each in asked] == [
        ("alice", RunClass.INTERACTIVE),
        ("bob", RunClass.BATCH),
    ]


@pytest.mark.parametrize(
    ("fields", "metadata", "said"),
    [
        ({"caller": "bob"}, ALICE, "turn.caller: expected 'alice' or nothing"),
        ({"run_class": turn_pb2.RUN_CLASS_INTERACTIVE}, NIGHTLY, "turn.run_class: expected batch"),
    ],
)
async def test_an_admission_that_the_token_forbids_is_denied(
    running: RunningHost, fields: dict[str, Any], metadata: Any, said: str
) -> None:
    code, details = await code_of(running.stub.Admit(AdmitRequest(turn=turn("t", **fields)), metadata=metadata))
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert details.startswith(said)


async def test_reports_are_taken_of_the_tokens_own_turns_and_runs_only(running: RunningHost) -> None:
    for name, caller in (("mine", "alice"), ("theirs", "bob")):
        await running.stub.Admit(AdmitRequest(turn=turn(name, caller=caller)), metadata=SHARED)
    reports = [report("ENDED", "mine"), report("ENDED", "nobodys"), report("FAILED", "theirs")]
    call = running.stub.Report(iter([ReportRequest(report=each) for each in reports]), metadata=ALICE)
    assert (await code_of(call))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert set(running.host.state.turns) == {"theirs"}
    ended = turn_pb2.Report(kind=turn_pb2.REPORT_KIND_RUN_ENDED, run_id="run-of-theirs", caller="bob")
    call = running.stub.Report(iter([ReportRequest(report=ended)]), metadata=ALICE)
    assert (await code_of(call))[0] is grpc.StatusCode.PERMISSION_DENIED
    assert "run-of-theirs" in running.host.state.runs


async def test_what_speaks_for_all_callers_is_denied_to_a_bound_token(running: RunningHost) -> None:
    calls = (
        running.stub.Watch(WatchRequest(), metadata=ALICE),
        running.stub.Dispatch(metadata=ALICE),
        running.stub.Resync(iter(()), metadata=ALICE),
    )
    for call in calls:
        assert (await code_of(call))[0] is grpc.StatusCode.PERMISSION_DENIED


async def test_health_is_open_and_reflection_is_for_every_token(running: RunningHost) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        of_health: Any = health_pb2_grpc.HealthStub
        of_reflection: Any = reflection_pb2_grpc.ServerReflectionStub
        stubs = of_health(channel), of_reflection(channel)
        await stubs[0].Check(health_pb2.HealthCheckRequest())
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        assert [answer async for answer in stubs[1].ServerReflectionInfo(iter([asked]), metadata=ALICE)]
        for metadata in ((), bearer_metadata("wrong"), (*ALICE, *SHARED)):
            refused = stubs[1].ServerReflectionInfo(metadata=metadata)
            assert (await code_of(refused))[0] is grpc.StatusCode.UNAUTHENTICATED


async def test_status_and_page_are_not_for_a_bound_token(running: RunningHost) -> None:
    runner, port = await http.start(running.host, "127.0.0.1", 0, GUARD)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            for path in ("/status", "/"):
                for token, status in (("of-alice", 403), ("shared", 200), ("wrong", 401)):
                    async with session.get(path, headers={"Authorization": f"Bearer {token}"}) as answer:
                        assert answer.status == status
    finally:
        await runner.cleanup()
