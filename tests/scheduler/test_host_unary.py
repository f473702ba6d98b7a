"""Admit, Report, Resync and Watch, as clients of any language call them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest

from protos import turn_pb2
from protos.scheduler_pb2 import AdmitRequest, ReportRequest, ResyncRequest, WatchRequest
from tests.scheduler.running_host import RunningHost, report, running_host, turn
from tests.waiting import wait_until


def held(running: RunningHost) -> int:
    """Turns held now."""
    return sum(entry.turns for entry in running.host.summary().held)


async def refused(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    """The status of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), str(error.value.details())


async def test_a_turn_is_placed_reported_and_frees_its_slot() -> None:
    async with running_host() as running:
        response = await running.stub.Admit(AdmitRequest(turn=turn("t1", traceparent="00-trace")))
        assert (response.placement.run_id, response.placement.traceparent) == ("run-of-t1", "00-trace")
        assert running.host.summary().replicas[0].in_flight == 1
        reports = [ReportRequest(report=report(kind, "t1")) for kind in ("STARTED", "FIRST_TOKEN", "ENDED", "ENDED")]
        assert (await running.stub.Report(iter(reports))).taken == 4
        assert running.host.summary().replicas[0].in_flight == 0


async def test_a_refusal_is_an_answer_not_an_error() -> None:
    async with running_host() as running:
        response = await running.stub.Admit(AdmitRequest(turn=turn("t1", model="other")))
        assert response.refusal.reason == turn_pb2.REFUSAL_REASON_UNKNOWN_MODEL


async def test_a_turn_that_breaks_the_contract_is_invalid_and_names_the_field() -> None:
    async with running_host() as running:
        code, details = await refused(running.stub.Admit(AdmitRequest(turn=turn("t1", run_id="no id!"))))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith("turn.run_id: expected 1 to 128 characters")


async def test_a_cancelled_admission_is_abandoned() -> None:
    async with running_host() as running:
        await running.stub.Admit(AdmitRequest(turn=turn("t1")))
        waiting = running.stub.Admit(AdmitRequest(turn=turn("t2")))
        await wait_until(lambda: held(running) == 1)
        waiting.cancel()
        await wait_until(lambda: held(running) == 0)
        await running.stub.Report(iter([ReportRequest(report=report("ENDED", "t1"))]))
        assert running.host.summary().replicas[0].in_flight == 0


async def test_two_admissions_of_one_turn_get_the_same_answer() -> None:
    async with running_host() as running:
        await running.stub.Admit(AdmitRequest(turn=turn("t1")))
        calls = [running.stub.Admit(AdmitRequest(turn=turn("t2"))) for _ in range(3)]
        await wait_until(lambda: running.host.tally.events["TurnArrived"] == 4)
        calls[0].cancel()
        await running.stub.Report(iter([ReportRequest(report=report("ENDED", "t1"))]))
        first, second = await asyncio.gather(*calls[1:])
        assert first == second
        assert first.placement.turn_id == "t2"
        assert (await running.stub.Admit(AdmitRequest(turn=turn("t2")))).placement.sequence == first.placement.sequence
        assert running.host.summary().replicas[0].in_flight == 1


async def test_nobody_takes_over_anothers_turn_or_learns_where_it_is() -> None:
    async with running_host() as running:
        placed = await running.stub.Admit(AdmitRequest(turn=turn("flying", caller="alice")))
        held_call = running.stub.Admit(AdmitRequest(turn=turn("held", caller="alice")))
        stream = running.dispatch()
        await stream.open()
        await stream.send(admits=[turn("streamed", caller="alice")])
        await wait_until(lambda: held(running) == 2)
        for name in ("flying", "held", "streamed"):
            answer = await running.stub.Admit(AdmitRequest(turn=turn(name, caller="bob")))
            assert answer.refusal.reason == turn_pb2.REFUSAL_REASON_RUN_OF_OTHER_CALLER
        again = await running.stub.Admit(AdmitRequest(turn=turn("streamed", caller="alice")))
        assert again.refusal.reason == turn_pb2.REFUSAL_REASON_RUN_OF_OTHER_CALLER
        for name in ("flying", "held", "streamed"):
            left = running.stub.Admit(AdmitRequest(turn=turn(name, caller="bob")))
            left.cancel()
        for name in ("flying", "held"):
            await running.stub.Report(iter([ReportRequest(report=report("ENDED", name))]))
            if name == "flying":
                assert (await held_call).placement.replica == placed.placement.replica
        await stream.until(lambda answers: any(answer.placements for answer in answers))


async def test_a_malformed_report_is_invalid_and_those_before_it_count() -> None:
    async with running_host() as running:
        await running.stub.Admit(AdmitRequest(turn=turn("t1")))
        reports = [ReportRequest(report=report("ENDED", "t1")), ReportRequest()]
        code, details = await refused(running.stub.Report(iter(reports)))
        assert (code, details) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "report 2: turn_id: expected 1 to 128 characters of A-Z a-z 0-9 . _ : -",
        )
        assert running.host.summary().replicas[0].in_flight == 0


async def test_only_a_runs_own_caller_ends_it() -> None:
    async with running_host() as running:
        await running.stub.Admit(AdmitRequest(turn=turn("t1", run_id="r", caller="me")))
        await running.stub.Report(iter([ReportRequest(report=report("ENDED", "t1"))]))
        for caller, left in (("you", 1), ("me", 0)):
            ends = report("RUN_ENDED", "", run_id="r", caller=caller)
            await running.stub.Report(iter([ReportRequest(report=ends)]))
            assert len(running.host.state.runs) == left


async def test_a_resync_tells_how_much_was_taken_over() -> None:
    async with running_host() as running:
        newer, older = (
            turn_pb2.KnownRun(run_id="r", phase=turn_pb2.RUN_PHASE_PAUSED, replica="a", sequence=sequence)
            for sequence in (9, 8)
        )
        known = turn_pb2.KnownTurn(turn=turn("t1", run_id="q"), replica="a", sequence=10)
        lost = turn_pb2.KnownTurn(turn=turn("t2", run_id="p"), replica="gone", sequence=11)
        parts = [
            ResyncRequest(dataplane_id="me", runs=[newer]),
            ResyncRequest(dataplane_id="me", turns=[known, lost]),
        ]
        response = await running.stub.Resync(iter(parts))
        assert (response.runs, response.turns) == (1, 1)
        assert running.host.summary().replicas[0].in_flight == 1
        response = await running.stub.Resync(iter([ResyncRequest(dataplane_id="you", runs=[older])]))
        assert (response.runs, response.turns) == (0, 0)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([], "dataplane_id: expected at least one part"),
        ([ResyncRequest()], "dataplane_id: expected 1 to 128"),
        ([ResyncRequest(dataplane_id="a"), ResyncRequest(dataplane_id="b")], "dataplane_id: expected the same"),
        ([ResyncRequest(dataplane_id="a", runs=[turn_pb2.KnownRun()])], "runs.run_id: expected"),
    ],
)
async def test_a_malformed_resync_is_invalid(parts: list[ResyncRequest], problem: str) -> None:
    async with running_host() as running:
        code, details = await refused(running.stub.Resync(iter(parts)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith(problem)
        assert not running.host.tally.events["DataplaneResynced"]


async def test_a_resync_cannot_speak_for_a_dataplane_with_an_open_stream() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.open("dp")
        await client.acknowledged()
        code, _ = await refused(running.stub.Resync(iter([ResyncRequest(dataplane_id="dp")])))
        assert code is grpc.StatusCode.FAILED_PRECONDITION


async def test_watch_tells_the_status_again_and_again() -> None:
    async with running_host() as running:
        call = running.stub.Watch(WatchRequest(interval_ms=100))
        first = await anext(aiter(call))
        await running.stub.Admit(AdmitRequest(turn=turn("t1")))
        async with asyncio.timeout(5):
            async for status in call:
                if status.replicas[0].in_flight:
                    break
        replica = first.replicas[0]
        assert (replica.name, replica.healthy, replica.in_flight, list(replica.models)) == ("a", True, 0, ["m"])
        assert (replica.capacity, replica.HasField("engine_running")) == (1, False)
        call.cancel()


async def test_watch_refuses_an_interval_out_of_bounds() -> None:
    async with running_host() as running:
        code, details = await refused(anext(aiter(running.stub.Watch(WatchRequest(interval_ms=99)))))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith("interval_ms: expected 100 to")
