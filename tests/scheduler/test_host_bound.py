"""Tokens that are bound to a caller or to classes, at the scheduler's own surfaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.auth import NOT_BOUND, Guard, bearer_metadata
from common.grants import Grant
from common.ids import Caller
from protos.scheduler_pb2 import AdmitRequest, ForecastRequest, ReportRequest, WatchRequest
from protos.scheduler_pb2_grpc import SchedulerStub
from scheduler import http
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


def reporting(port: int, report: ReportRequest, metadata: Any) -> tuple[grpc.StatusCode, str]:
    """How a report is refused. With threads: what a call is refused with while it writes is lost on grpc.aio's way."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = SchedulerStub(channel)
        with pytest.raises(grpc.RpcError) as error:
            stub.Report(iter([report]), metadata=metadata)
    return error.value.code(), str(error.value.details())


@pytest.mark.parametrize("metadata", [ALICE, NIGHTLY])
async def test_the_scheduler_itself_is_for_no_bound_token(running: RunningHost, metadata: Any) -> None:
    await running.stub.Admit(AdmitRequest(turn=turn("mine", caller="alice")), metadata=SHARED)
    limited = report("FAILED", "mine", status=429, limit_headers=[{"name": "retry-after", "value": "3600"}])
    calls = (
        running.stub.Admit(AdmitRequest(turn=turn("t", caller="alice")), metadata=metadata),
        running.stub.Forecast(ForecastRequest(run_id="run-of-mine", caller="alice"), metadata=metadata),
        running.stub.Watch(WatchRequest(), metadata=metadata),
        running.stub.Dispatch(metadata=metadata),
        running.stub.Resync(iter(()), metadata=metadata),
    )
    for call in calls:
        assert await code_of(call) == (grpc.StatusCode.PERMISSION_DENIED, NOT_BOUND)
    refused = await asyncio.to_thread(reporting, running.port, ReportRequest(report=limited), metadata)
    assert refused == (grpc.StatusCode.PERMISSION_DENIED, NOT_BOUND)
    assert set(running.host.state.turns) == {"mine"}
    assert running.host.state.replicas[B.name].healthy


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
