"""Which failures another replica is asked after, and when."""

from __future__ import annotations

import asyncio

import pytest

from common.ids import ReplicaName
from common.pool import Pool, Replica
from protos import turn_pb2
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.dataplane.scripted_engine import Call, answer_ok, whole
from tests.waiting import wait_until

FAILURE = b'{"error": {"message": "as the engine says it"}}'


def pool(rig: Rig) -> Pool:
    """A replica that has another one to fall back to."""
    return Pool((Replica(name=ReplicaName("engine-0"), url=rig.scheduler.url, fallback=("engine-1",)),))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 422, 499])
async def test_a_4xx_is_told_as_it_is_and_no_other_replica_is_asked(rig: Rig, status: int) -> None:
    async def fail_once(call: Call) -> None:
        await (call.send(whole(FAILURE, f"{status} No")) if call.number == 1 else answer_ok(call))

    rig.engine.script = fail_once
    rig.pool = pool(rig)
    await rig.start()
    answer = await rig.ask(request(CHAT))
    assert (answer.status, answer.body) == (status, FAILURE)
    assert len(rig.scheduler.turns) == len(rig.engine.calls) == 1


async def test_turns_that_failed_together_ask_again_in_another_order(rig: Rig) -> None:
    """Each waits for a time of its own: of twelve, none keeps its place once in twelve factorial."""
    together, all_came = 12, asyncio.Event()

    async def fail_together(call: Call) -> None:
        if call.number > together:
            await answer_ok(call)
            return
        if call.number == together:
            rig.scheduler.holds = True
            all_came.set()
        await all_came.wait()
        await call.send(whole(FAILURE, "503 Service Unavailable"))

    rig.engine.script = fail_together
    rig.pool = pool(rig)
    await rig.start()
    asked = [asyncio.create_task(rig.ask(request(CHAT))) for _ in range(together)]
    await wait_until(lambda: len(rig.scheduler.turns) == 2 * together)
    run_of = {turn.turn_id: turn.new_run_id for turn in rig.scheduler.turns[:together]}
    failed = [r.turn_id for r in rig.scheduler.reports if r.kind == turn_pb2.REPORT_KIND_FAILED]
    again = rig.scheduler.turns[together:]
    rig.scheduler.replica = "engine-1"
    for turn in again:
        rig.scheduler.place(turn)
    assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * together
    assert sorted(turn.run_id for turn in again) == sorted(run_of.values())
    assert [turn.run_id for turn in again] != [run_of[turn_id] for turn_id in failed]
