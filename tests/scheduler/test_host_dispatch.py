"""Dispatch streams: order, fencing, acknowledgement, loss."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest

from common.ids import DataplaneId
from protos import turn_pb2
from protos.scheduler_pb2 import DispatchRequest, DispatchResponse, Hello, ResyncRequest
from scheduler import streams
from scheduler.events import Ticked
from scheduler.state import ORPHAN_LIMIT_S
from tests.scheduler.running_host import A, B, report, running_host, turn
from tests.waiting import wait_until

DP = DataplaneId("dp")


async def test_a_turn_is_placed_with_url_and_trace_context() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1", run_id="r", traceparent="00-trace", caller="me")])
        placement = await client.placement("t1")
        assert (placement.run_id, placement.replica, placement.url) == ("r", "a", A.url)
        assert placement.traceparent == "00-trace"
        assert placement.sequence > 1000


async def test_hello_resync_and_admits_may_share_the_first_message() -> None:
    async with running_host() as running:
        client = running.dispatch()
        hello = Hello(dataplane_id="dp", epoch=1)
        await client.send(hello=hello, resync=ResyncRequest(complete=True), admits=[turn("t1")])
        assert (await client.placement("t1")).replica == "a"


async def test_a_batch_is_answered_by_one_message() -> None:
    async with running_host((B,)) as running:
        client = running.dispatch()
        await client.open()
        await client.acknowledged()
        seen = len(client.answers)
        await client.send(admits=[*(turn(f"t{n}") for n in range(50)), turn("t50", model="unknown")])
        await client.placement("t49")
        (answer,) = client.answers[seen:]
        assert (len(answer.placements), len(answer.refusals)) == (50, 1)
        assert answer.acknowledged == client.sequence


async def test_a_report_alone_is_acknowledged_soon() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1")])
        await client.placement("t1")
        await client.send(reports=[report("STARTED", "t1")])
        async with asyncio.timeout(1):
            await client.acknowledged()
        assert [answer.sequence for answer in client.answers] == list(range(1, len(client.answers) + 1))


async def test_an_ended_turn_frees_its_slot_for_a_held_one_and_resent_reports_do_no_harm() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1"), turn("t2"), turn("t3")])
        await client.placement("t1")
        ended = report("ENDED", "t1", finish_reason="stop", prompt_tokens=10)
        await client.send(reports=[ended])
        await client.placement("t2")
        await client.send(reports=[ended, report("FAILED", "t1"), report("STARTED", "t1")])
        await client.acknowledged()
        assert running.host.summary().replicas[0].in_flight == 1
        assert not any(p.turn_id == "t3" for answer in client.answers for p in answer.placements)


async def test_reports_of_a_batch_count_before_its_admits() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1", run_id="r")])
        await client.placement("t1")
        await client.send(reports=[report("ENDED", "t1", has_tool_calls=True)], admits=[turn("t2", run_id="r")])
        assert (await client.placement("t2")).held_ms == 0


async def test_an_abandoned_turn_is_not_placed() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1"), turn("t2"), turn("t3")])
        await client.send(abandons=["t2", "no id!"])
        await client.send(reports=[report("ENDED", "t1")])
        await client.placement("t3")
        assert not any(p.turn_id == "t2" for answer in client.answers for p in answer.placements)


async def test_a_malformed_turn_is_refused_and_the_rest_of_its_batch_is_not() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.open()
        malformed = turn_pb2.Turn(turn_id="x" * 1000, model="m", traceparent="00-trace")
        await client.send(admits=[malformed, turn("t1")], reports=[report("UNSPECIFIED", "t1")], renewals=["", "t1"])
        await client.placement("t1")
        refusal = await client.refusal("x" * 128)
        assert refusal.reason == turn_pb2.REFUSAL_REASON_INVALID
        assert refusal.message.startswith("turn_id: expected 1 to 128 characters")
        assert refusal.traceparent == "00-trace"
        assert running.host.tally.invalid == 2


async def test_an_unknown_model_and_a_run_of_another_caller_are_refused() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1", model="other"), turn("t2", run_id="r", caller="me")])
        await client.send(admits=[turn("t3", run_id="r", caller="you")])
        unknown, other = await client.refusal("t1"), await client.refusal("t3")
        assert (unknown.reason, unknown.message) == (
            turn_pb2.REFUSAL_REASON_UNKNOWN_MODEL,
            "no generative replica serves model 'other'",
        )
        assert other.reason == turn_pb2.REFUSAL_REASON_RUN_OF_OTHER_CALLER


@pytest.mark.parametrize(
    ("requests", "problem"),
    [
        ([DispatchRequest(sequence=1)], "hello: expected in the first message"),
        ([DispatchRequest(sequence=2)], "sequence: expected 1"),
        ([DispatchRequest(sequence=1, hello=Hello(dataplane_id="no id!"))], "hello.dataplane_id: expected"),
        (
            [
                DispatchRequest(sequence=1, hello=Hello(dataplane_id="dp", epoch=1)),
                DispatchRequest(sequence=2, hello=Hello(dataplane_id="dp", epoch=1)),
            ],
            "hello: expected in the first message only",
        ),
        (
            [DispatchRequest(sequence=1, hello=Hello(dataplane_id="dp", epoch=1), admits=[turn("t1")])],
            "resync: expected a complete one before",
        ),
        (
            [
                DispatchRequest(sequence=1, hello=Hello(dataplane_id="dp"), resync=ResyncRequest(complete=True)),
                DispatchRequest(sequence=2, resync=ResyncRequest()),
            ],
            "resync: expected no part after the complete one",
        ),
    ],
)
async def test_a_stream_that_breaks_the_order_ends_and_says_why(requests: list[DispatchRequest], problem: str) -> None:
    async with running_host() as running:
        client = running.dispatch()
        for request in requests:
            await client.call.write(request)
        code, details = await client.end()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details.startswith(problem)
        await wait_until(lambda: not running.host.is_attached(DP))


async def test_a_message_that_is_none_ends_the_stream_as_invalid() -> None:
    async with running_host() as running, grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        dispatch: grpc.aio.StreamStreamMultiCallable[bytes, bytes]
        dispatch = channel.stream_stream("/luftpause.v1.Scheduler/Dispatch")
        call = dispatch()
        await call.write(b"\xff\xff")
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_higher_epoch_fences_the_older_stream_and_takes_its_turns() -> None:
    async with running_host() as running:
        older, newer = running.dispatch(), running.dispatch()
        await older.open(epoch=1)
        await older.send(admits=[turn("t1"), turn("t2")])
        placement = await older.placement("t1")
        known = turn_pb2.KnownTurn(
            turn=turn("t1", run_id=placement.run_id), replica="a", sequence=placement.sequence, age_ms=5
        )
        await newer.open(epoch=2, resync=ResyncRequest(turns=[known], complete=True))
        assert await older.end() == (grpc.StatusCode.ABORTED, "fenced by epoch 2")
        await newer.send(admits=[turn("t2", held_ms=700)], reports=[report("ENDED", "t1")])
        assert (await newer.placement("t2")).held_ms >= 700
        assert running.host.is_attached(DP)


@pytest.mark.parametrize("epoch", [4, 5])
async def test_an_epoch_that_is_not_higher_is_refused_and_the_open_stream_stays(epoch: int) -> None:
    async with running_host() as running:
        first, second = running.dispatch(), running.dispatch()
        await first.open(epoch=5)
        await first.acknowledged()
        await second.send(hello=Hello(dataplane_id="dp", epoch=epoch))
        code, details = await second.end()
        assert (code, details.partition(",")[0]) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "hello.epoch: expected more than 5",
        )
        await first.send(admits=[turn("t1")])
        await first.placement("t1")


async def test_a_lost_stream_drops_its_held_turns_and_keeps_those_in_flight_for_the_resync() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1"), turn("t2")])
        await client.placement("t1")
        client.call.cancel()
        await wait_until(lambda: set(running.host.state.turns) == {"t1"})
        running.host.tell((Ticked(running.host.now() + ORPHAN_LIMIT_S + 5),))
        assert not running.host.state.turns
        assert running.host.tally.expiries == 1


async def test_a_client_that_closes_its_side_loses_the_stream_in_order() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.open()
        await client.acknowledged()
        await client.call.done_writing()
        assert (await client.end())[0] is grpc.StatusCode.OK
        assert not running.host.is_attached(DP)


async def test_malformed_parts_of_a_resync_are_ignored_and_counted() -> None:
    async with running_host() as running:
        client = running.dispatch()
        right = turn_pb2.KnownRun(run_id="r", phase=turn_pb2.RUN_PHASE_IDLE, replica="a", sequence=7)
        await client.open(resync=ResyncRequest(runs=[turn_pb2.KnownRun(), right], complete=True))
        await client.acknowledged()
        assert set(running.host.state.runs) == {"r"}
        assert running.host.tally.invalid == 1


async def test_a_resync_is_applied_as_a_whole_when_its_last_part_came() -> None:
    async with running_host() as running:
        client = running.dispatch()
        await client.send(hello=Hello(dataplane_id="dp", epoch=1))
        for number in range(3):
            run = turn_pb2.KnownRun(run_id=f"r{number}", phase=turn_pb2.RUN_PHASE_PAUSED, replica="a", sequence=number)
            await client.send(resync=ResyncRequest(runs=[run]))
        await client.acknowledged()
        assert not running.host.state.runs
        await client.send(resync=ResyncRequest(complete=True))
        await client.acknowledged()
        assert set(running.host.state.runs) == {"r0", "r1", "r2"}


async def test_a_resync_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.resync_parts.RUNS_MAX", 1)
    async with running_host() as running:
        client = running.dispatch()
        runs = [
            turn_pb2.KnownRun(run_id=f"r{number}", phase=turn_pb2.RUN_PHASE_IDLE, replica="a") for number in range(2)
        ]
        await client.open(resync=ResyncRequest(runs=runs))
        assert (await client.end())[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_many_answers_go_out_in_messages_that_clients_take() -> None:
    async with running_host((B,)) as running:
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn(f"t{n}", traceparent="0" * 55) for n in range(5000)])
        answers = await client.until(lambda seen: sum(len(answer.placements) for answer in seen) == 5000)
        assert max(len(answer.placements) for answer in answers) == streams.ANSWERS_A_MESSAGE_MAX


async def test_a_stream_that_does_not_read_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "ANSWERS_A_MESSAGE_MAX", 100)
    monkeypatch.setattr(streams, "ANSWERS_WAITING_MAX", 1000)
    async with running_host((B,)) as running:
        client = running.dispatch()
        await client.open()

        async def flood() -> None:
            for batch in range(1000):
                await client.send(admits=[turn(f"{batch}-{n}", caller="c" * 100) for n in range(500)])

        flooding = asyncio.create_task(flood())
        await wait_until(lambda: client.sequence > 2 and not running.host.is_attached(DP), timeout_s=20)
        # A client that writes while the stream ends may see its own failed write in place of the status.
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(await client.call.read(), DispatchResponse):
                pass
        assert await client.call.code() is not grpc.StatusCode.OK
        assert "code=RESOURCE_EXHAUSTED" in caplog.text
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)


async def test_every_dataplane_is_told_which_runs_ended() -> None:
    """Any of them may have been asked to end it, and any of them may remember it."""
    async with running_host() as running:
        first, second = running.dispatch(), running.dispatch()
        await first.open("dp")
        await second.open("dp-2")
        await wait_until(lambda: running.host.is_attached(DataplaneId("dp-2")))
        await first.send(reports=[report("RUN_ENDED", "", run_id="r", caller="me")])
        for client in (first, second):
            answers = await client.until(lambda answers: [run for each in answers for run in each.ended_runs])
            (ended,) = (run for each in answers for run in each.ended_runs)
            assert (ended.run_id, ended.caller) == ("r", "me")


async def test_a_client_that_waits_no_longer_is_told_without_a_tick() -> None:
    """Nothing ticks here: only the turn's own moment can end its wait."""
    async with running_host((A,)) as running:
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1"), turn("t2", prompt_bytes=0, wait_ms_max=200)])
        refusal = await client.refusal("t2")
        assert refusal.reason == turn_pb2.REFUSAL_REASON_NOT_SOON
        assert refusal.retry_after_ms == 5000
