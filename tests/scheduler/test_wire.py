"""Messages to events and back: what is taken, what is a fault."""

from __future__ import annotations

from typing import Any

import pytest

from common.ids import Caller, DataplaneId, Model, ReplicaName, RunId, TurnId
from protos import turn_pb2
from scheduler import wire
from scheduler.effects import PlaceTurn
from scheduler.events import (
    FirstTokenSeen,
    Phase,
    Request,
    RunClass,
    RunEnded,
    TurnEnded,
    TurnFailed,
    TurnStarted,
)
from scheduler.summary import HeldSummary, ReplicaSummary, RunSummary, Summary


def turn(**fields: Any) -> turn_pb2.Turn:
    return turn_pb2.Turn(**{"turn_id": "t", "run_id": "r", "model": "m", **fields})


def test_a_turn_is_read_whole() -> None:
    read = wire.read_turn(turn(run_class=turn_pb2.RUN_CLASS_BATCH, caller="me", tool_call_ids=["b", "a"]))
    assert read == Request(
        TurnId("t"), RunId("r"), RunId("r"), Caller("me"), RunClass.BATCH, Model("m"), tool_call_ids=("b", "a")
    )


def test_a_turn_without_class_is_interactive_and_generative() -> None:
    read = wire.read_turn(turn(run_id="", new_run_id="n"))
    assert isinstance(read, Request)
    assert (read.run_class, read.one_shot, read.run_id, read.new_run_id) == (RunClass.INTERACTIVE, False, None, "n")


def test_a_one_shot_turn_needs_no_run() -> None:
    read = wire.read_turn(turn(run_id="", kind=turn_pb2.REPLICA_KIND_ONE_SHOT))
    assert isinstance(read, Request)
    assert read.one_shot


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"turn_id": ""}, "turn_id"),
        ({"turn_id": "a" * 129}, "turn_id"),
        ({"turn_id": "a\n"}, "turn_id"),
        ({"turn_id": "\u0661"}, "turn_id"),
        ({"run_id": "a b"}, "run_id"),
        ({"new_run_id": "a/b"}, "new_run_id"),
        ({"run_id": ""}, "new_run_id"),
        ({"run_class": 3}, "run_class"),
        ({"run_class": -1}, "run_class"),
        ({"kind": 3}, "kind"),
        ({"kind": -1}, "kind"),
        ({"model": ""}, "model"),
        ({"model": "m" * 513}, "model"),
    ],
)
def test_a_fault_names_the_field_and_what_was_expected(fields: dict[str, Any], field: str) -> None:
    read = wire.read_turn(turn(**fields))
    assert isinstance(read, wire.Fault)
    assert read.message.startswith(f"{field}: expected ")


def test_a_caller_is_cut_and_never_in_half_a_character() -> None:
    read = wire.read_turn(turn(caller="x" * 127 + "é"))
    assert isinstance(read, Request)
    assert read.caller == "x" * 127


def test_tool_call_ids_beyond_the_limits_count_as_not_sent() -> None:
    read = wire.read_turn(turn(tool_call_ids=["", "x" * 257, *(f"call-{number}" for number in range(300))]))
    assert isinstance(read, Request)
    assert read.tool_call_ids == tuple(f"call-{number}" for number in range(254))


def test_a_trace_context_that_cannot_be_one_is_dropped() -> None:
    assert wire.read_traceparent(turn(traceparent="00-a")) == "00-a"
    assert not wire.read_traceparent(turn(traceparent="x" * 129))


def test_an_absurd_age_is_cut() -> None:
    assert wire.read_age_s(1500) == 1.5
    assert wire.read_age_s(2**64 - 1) == 7 * 24 * 3600


def test_each_kind_of_report_is_its_event() -> None:
    def read(kind: int, **fields: Any) -> object:
        return wire.read_report(turn_pb2.Report(kind=kind, turn_id="t", **fields), 1.0)  # type: ignore[arg-type]

    assert read(turn_pb2.REPORT_KIND_STARTED) == TurnStarted(1.0, TurnId("t"))
    assert read(turn_pb2.REPORT_KIND_FIRST_TOKEN) == FirstTokenSeen(1.0, TurnId("t"))
    assert read(turn_pb2.REPORT_KIND_FAILED, error="broke off") == TurnFailed(1.0, TurnId("t"))
    assert read(turn_pb2.REPORT_KIND_RUN_ENDED, run_id="r", caller="c") == RunEnded(1.0, RunId("r"), Caller("c"))
    assert read(turn_pb2.REPORT_KIND_ENDED) == TurnEnded(1.0, TurnId("t"), has_tool_calls=False)
    assert read(turn_pb2.REPORT_KIND_ENDED, tool_call_ids=["a"], cached_tokens=0) == TurnEnded(
        1.0, TurnId("t"), has_tool_calls=True, tool_call_ids=("a",), cached_tokens=0
    )


def test_a_report_that_waited_for_company_tells_of_an_earlier_time() -> None:
    report = turn_pb2.Report(kind=turn_pb2.REPORT_KIND_FIRST_TOKEN, turn_id="t", age_ms=250)
    assert wire.read_report(report, 10.0) == FirstTokenSeen(9.75, TurnId("t"))


@pytest.mark.parametrize(
    ("report", "field"),
    [
        (turn_pb2.Report(turn_id="t"), "kind"),
        (turn_pb2.Report(turn_id="t", kind=9), "kind"),  # type: ignore[arg-type]
        (turn_pb2.Report(kind=turn_pb2.REPORT_KIND_ENDED), "turn_id"),
        (turn_pb2.Report(kind=turn_pb2.REPORT_KIND_RUN_ENDED, turn_id="t"), "run_id"),
    ],
)
def test_a_malformed_report_is_a_fault(report: turn_pb2.Report, field: str) -> None:
    read = wire.read_report(report, 0.0)
    assert isinstance(read, wire.Fault)
    assert read.message.startswith(f"{field}: expected ")


def known_run(**fields: Any) -> turn_pb2.KnownRun:
    return turn_pb2.KnownRun(**{"run_id": "r", "phase": turn_pb2.RUN_PHASE_PAUSED, "replica": "a", **fields})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"run_id": "?"}, "runs.run_id"),
        ({"replica": ""}, "runs.replica"),
        ({"run_class": 7}, "runs.run_class"),
        ({"phase": 0}, "runs.phase"),
        ({"sequence": 2**64 - 1}, "runs.sequence"),
    ],
)
def test_a_malformed_known_run_is_a_fault(fields: dict[str, Any], field: str) -> None:
    read = wire.read_known_run(known_run(**fields))
    assert isinstance(read, wire.Fault)
    assert read.message.startswith(f"{field}: expected ")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"turn": turn(turn_id="")}, "turns.turn.turn_id"),
        ({"turn": turn(run_id="", new_run_id="n")}, "turns.turn.run_id"),
        ({"replica": ""}, "turns.replica"),
        ({"sequence": 2**63}, "turns.sequence"),
    ],
)
def test_a_malformed_known_turn_is_a_fault(fields: dict[str, Any], field: str) -> None:
    read = wire.read_known_turn(turn_pb2.KnownTurn(**{"turn": turn(), "replica": "a", **fields}))
    assert isinstance(read, wire.Fault)
    assert read.message.startswith(f"{field}: expected ")


def test_a_resync_tells_ages_in_milliseconds() -> None:
    run = wire.read_known_run(known_run(age_ms=2500, turns_done=3, sequence=5))
    in_flight = wire.read_known_turn(turn_pb2.KnownTurn(turn=turn(), replica="a", age_ms=1500, first_token=True))
    assert not isinstance(run, wire.Fault)
    assert (run.age_s, run.phase, run.turns_done, run.sequence) == (2.5, Phase.PAUSED, 3, 5)
    assert not isinstance(in_flight, wire.Fault)
    assert (in_flight.age_s, in_flight.first_token) == (1.5, True)


def test_a_one_shot_placement_names_no_run() -> None:
    effect = PlaceTurn(DataplaneId("d"), TurnId("t"), None, ReplicaName("a"), 7, 0.0426)
    message = turn_pb2.Placement()
    wire.write_placement(message, effect, "http://a", "")
    assert message == turn_pb2.Placement(turn_id="t", replica="a", url="http://a", sequence=7, held_ms=43)


def test_the_status_keeps_what_is_unknown_apart_from_zero() -> None:
    summary = Summary(
        replicas=(
            ReplicaSummary(ReplicaName("a"), "one-shot", None, True, 1, 0, 0, 0, None, 0.0),
            ReplicaSummary(ReplicaName("b"), "generative", (Model("m"),), False, 0, None, 0, None, 2, None),
        ),
        held=(HeldSummary(RunClass.BATCH, Caller("c"), 2, 1.25, "full"),),
        runs=(RunSummary(Phase.IDLE, RunClass.INTERACTIVE, 4),),
    )
    message = wire.write_status(summary)
    first, second = message.replicas
    assert first.kind == turn_pb2.REPLICA_KIND_ONE_SHOT
    assert [first.HasField(name) for name in ("capacity", "engine_running", "engine_waiting", "kv_usage")] == [
        True,
        True,
        False,
        True,
    ]
    assert [second.HasField(name) for name in ("capacity", "engine_running", "engine_waiting", "kv_usage")] == [
        False,
        False,
        True,
        False,
    ]
    assert (message.held[0].run_class, message.held[0].oldest_wait_ms) == (turn_pb2.RUN_CLASS_BATCH, 1250)
    assert (message.runs[0].phase, message.runs[0].runs) == (turn_pb2.RUN_PHASE_IDLE, 4)
