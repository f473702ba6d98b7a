"""The Dispatch stream: batches, losses, and what a scheduler that restarts is told."""

from __future__ import annotations

import asyncio

import pytest

from dataplane import runs
from dataplane.meter import ReplyMeter
from dataplane.outbox import Outbox
from dataplane.scheduler_client import SchedulerClient
from dataplane.tickets import Ticket
from protos import scheduler_pb2, turn_pb2
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.dataplane.scripted_engine import DONE, LAST_CHUNK, STREAM, Call, chunk, delta, event, whole
from tests.dataplane.scripted_scheduler import ScriptedScheduler
from tests.waiting import wait_until

STREAMED = {**CHAT, "stream": True}


async def restart(rig: Rig) -> ScriptedScheduler:
    """A scheduler without any memory takes the place of the one before."""
    old = rig.scheduler
    await old.stop()
    rig.scheduler = new = ScriptedScheduler()
    new.url = old.url
    await new.start(old.port)
    await rig.connected()
    await wait_until(lambda: any(request.resync.complete for request in new.requests))
    return new


async def test_the_first_message_says_hello_and_the_next_ones_resync(rig: Rig) -> None:
    await rig.start()
    await rig.ask(request(CHAT))
    first, second, third, *_ = rig.scheduler.requests
    assert (first.sequence, first.hello.epoch, bool(first.hello.dataplane_id)) == (1, 1, True)
    assert (second.sequence, second.resync.complete) == (2, True)
    assert (third.sequence, len(third.admits)) == (3, 1)


async def test_turns_of_one_moment_go_out_as_few_messages(rig: Rig) -> None:
    await rig.start()
    await rig.connected()
    clients = [await rig.client() for _ in range(64)]
    await asyncio.gather(*(client.ask(request(CHAT)) for client in clients))
    assert len(rig.scheduler.turns) == 64
    assert len([r for r in rig.scheduler.requests if r.admits]) < 50


async def test_reports_that_nobody_waits_for_travel_with_the_end_and_tell_their_age(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.scheduler_client.LAZY_S", 60.0)
    await rig.start()
    await rig.ask(request(STREAMED))
    await rig.reported("STARTED", "FIRST_TOKEN", "ENDED")
    (told,) = (request.reports for request in rig.scheduler.requests if request.reports)
    ages_ms = [report.age_ms for report in told]
    assert ages_ms == sorted(ages_ms, reverse=True)
    assert ages_ms[-1] > 0, "the end waited too, for a moment"


async def test_a_held_turn_is_admitted_again_under_its_id(rig: Rig) -> None:
    rig.scheduler.holds = True
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT, "x-luftpause-run-id: r", "x-luftpause-caller: me"))
    held = (await wait_until(lambda: rig.scheduler.turns))[0]
    new = await restart(rig)
    assert (await client.response()).status == 200
    again = new.turns[0]
    assert (again.turn_id, again.run_id, again.caller) == (held.turn_id, "r", "me")
    assert again.held_ms > 0
    order = [bool(request.admits) for request in new.requests]
    complete = [request.resync.complete for request in new.requests]
    assert complete.index(True) < order.index(True), "the resync comes first"


async def test_a_turn_in_flight_and_its_run_are_told_after_a_restart(rig: Rig) -> None:
    released = asyncio.Event()

    async def wait(call: Call) -> None:
        await call.send(STREAM, chunk(event(delta(content="a"))))
        await released.wait()
        await call.send(chunk(DONE), LAST_CHUNK)

    rig.engine.script = wait
    await rig.start()
    client = await rig.client()
    await client.send(request(STREAMED, "x-luftpause-run-id: r", "x-luftpause-class: batch"))
    await client.head()
    await client.chunk()
    before = rig.scheduler.turns[0]
    new = await restart(rig)
    turns = [turn for message in new.requests for turn in message.resync.turns]
    runs = [run for message in new.requests for run in message.resync.runs]
    assert [(t.turn.turn_id, t.turn.run_id, t.replica, t.sequence, t.first_token) for t in turns] == [
        (before.turn_id, "r", "engine-0", 1, True)
    ]
    assert [(r.run_id, r.phase, r.replica, r.run_class) for r in runs] == [
        ("r", turn_pb2.RUN_PHASE_GENERATING, "engine-0", turn_pb2.RUN_CLASS_BATCH)
    ]
    released.set()
    await wait_until(lambda: new.last(turn_pb2.REPORT_KIND_ENDED))


async def test_a_paused_run_is_told_with_its_tool_calls(rig: Rig) -> None:
    async def call_tools(call: Call) -> None:
        calls = b'[{"id": "call_1"}]'
        await call.send(whole(b'{"choices": [{"message": {"tool_calls": %b}, "finish_reason": "stop"}]}' % calls))

    rig.engine.script = call_tools
    await rig.start()
    await rig.ask(request(CHAT, "x-luftpause-run-id: r"))
    await rig.reported("STARTED", "ENDED")
    new = await restart(rig)
    (run,) = [run for message in new.requests for run in message.resync.runs]
    assert (run.run_id, run.phase, list(run.tool_call_ids), run.turns_done) == (
        "r",
        turn_pb2.RUN_PHASE_PAUSED,
        ["call_1"],
        1,
    )


async def test_a_run_that_ended_elsewhere_is_not_told_after_a_restart(rig: Rig) -> None:
    """Its end may have been asked of another worker, or of another dataplane."""
    await rig.start()
    for run_id in ("kept", "ended"):
        await rig.ask(request(CHAT, f"x-luftpause-run-id: {run_id}", "x-luftpause-caller: me"))
    ends = [("ended", "me"), ("kept", "somebody else"), ("unknown", "me")]
    rig.scheduler.tell_ended(ends)
    await wait_until(lambda: rig.app is not None and rig.app.snapshot()["gauges"]["runs"] == 1)
    scheduler = await restart(rig)
    assert [run.run_id for request in scheduler.requests for run in request.resync.runs] == ["kept"]


async def test_a_run_that_begins_anew_right_after_its_end_is_told_after_a_restart(rig: Rig) -> None:
    """The scheduler tells all dataplanes of an end, also the one that asked, which may know the new run by then."""
    await rig.start()
    again = request(CHAT, "x-luftpause-run-id: r", "x-luftpause-caller: me")
    await rig.ask(again)
    await rig.ask(request(b"", "x-luftpause-caller: me", method="DELETE", path="/v1/runs/r"))
    ended = scheduler_pb2.EndedRun(run_id="r", caller="me", sequence=1)
    await rig.ask(again)
    rig.scheduler.tell(scheduler_pb2.DispatchResponse(ended_runs=[ended]))
    await rig.ask(request(CHAT))
    scheduler = await restart(rig)
    assert "r" in [run.run_id for message in scheduler.requests for run in message.resync.runs]


async def test_a_run_that_ends_in_flight_does_not_come_back_with_its_turns_end(rig: Rig) -> None:
    goes_on = asyncio.Event()

    async def wait(call: Call) -> None:
        await goes_on.wait()
        await call.send(whole(b"{}"))

    rig.engine.script = wait
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT, "x-luftpause-run-id: r"))
    await wait_until(lambda: rig.engine.calls)
    assert (await rig.ask(request(b"", method="DELETE", path="/v1/runs/r"))).status == 200
    goes_on.set()
    assert (await client.response()).status == 200
    assert rig.app is not None
    assert rig.app.snapshot()["gauges"]["runs"] == 0


async def test_reports_are_sent_again_until_they_are_acknowledged(rig: Rig) -> None:
    rig.scheduler.acknowledges = False
    await rig.start()
    await rig.ask(request(CHAT))
    await rig.reported("STARTED", "ENDED")
    turn_id = rig.scheduler.turns[0].turn_id
    new = await restart(rig)
    await wait_until(lambda: new.kinds(turn_id) == ["STARTED", "ENDED"])
    await rig.ask(request(CHAT))
    await rig.reported("STARTED", "ENDED")
    newer = await restart(rig)
    await rig.ask(request(CHAT))
    await rig.reported("STARTED", "ENDED")
    assert newer.kinds(turn_id) == [], "what was acknowledged is not sent again"


async def test_a_new_stream_has_a_higher_epoch(rig: Rig) -> None:
    await rig.start()
    await rig.connected()
    first = (await wait_until(lambda: rig.scheduler.requests))[0].hello
    new = await restart(rig)
    again = (await wait_until(lambda: new.requests))[0].hello
    assert (again.dataplane_id, again.epoch > first.epoch) == (first.dataplane_id, True)


async def test_a_turn_that_ends_while_the_scheduler_is_gone_is_reported_later(rig: Rig) -> None:
    released = asyncio.Event()

    async def wait(call: Call) -> None:
        await released.wait()
        await call.send(whole(b"{}"))

    rig.engine.script = wait
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT))
    await wait_until(lambda: rig.engine.calls)
    turn_id = rig.scheduler.turns[0].turn_id
    await rig.scheduler.stop()
    released.set()
    assert (await client.response()).status == 200
    new = await restart(rig)
    await wait_until(lambda: "ENDED" in new.kinds(turn_id))


async def test_runs_and_turns_of_a_resync_are_of_one_moment() -> None:
    """Telling it takes a while; a turn that ends meanwhile is told as in flight, and its end is reported after that."""
    client = SchedulerClient("127.0.0.1:1", "d", None)
    owner = Owner()
    ticket = Ticket(turn_pb2.Turn(turn_id="t", run_id="r", new_run_id="n"), owner, 0)
    client.admit(ticket)
    client._place(turn_pb2.Placement(turn_id="t", run_id="r", replica="engine-0", url="http://x", sequence=5))
    assert owner.placements == 1
    parts = client._resync_parts()
    (run,) = next(parts).runs
    assert run.phase == turn_pb2.RUN_PHASE_GENERATING
    client.ended(ticket, ReplyMeter())
    assert [turn.turn.turn_id for part in parts for turn in part.turns] == ["t"]


async def test_a_stream_that_cannot_be_written_to_is_opened_anew(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.start()
    await rig.connected()
    monkeypatch.setattr("dataplane.scheduler_client.RECONNECT_S", 0.01)

    def break_down(*_: object) -> None:
        raise ValueError("no message can be made")

    with monkeypatch.context() as broken:
        broken.setattr(Outbox, "batch", break_down)
        client = await rig.client()
        await client.send(request(CHAT))
        await wait_until(lambda: "stream to the scheduler failed" in caplog.text)
    assert (await client.response()).status == 200


class Owner:
    """An owner that counts."""

    def __init__(self) -> None:
        self.placements = 0

    def placed(self, _placement: turn_pb2.Placement) -> None:
        """Counts."""
        self.placements += 1

    def refused(self, _refusal: turn_pb2.Refusal) -> None:
        """Never here."""
        raise AssertionError


def test_a_full_table_forgets_idle_runs_before_paused_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RUNS_MAX", 3)
    table = runs.RunTable()
    turn = turn_pb2.Turn(caller="me")
    for number in range(6):
        run_id = f"run-{number}"
        table.placed(float(number), run_id, turn, turn_pb2.Placement(run_id=run_id, replica="a"))
        table.ended(float(number), run_id, has_tool_calls=number == 0, tool_call_ids=())
    assert {run.run_id for run in table.known(6.0)} == {"run-0", "run-4", "run-5"}
