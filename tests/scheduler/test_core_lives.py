"""How turns, runs and streams come and go, told as short stories on the core."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from common.ids import Caller, DataplaneId, Model, RunId, TurnId
from scheduler import core
from scheduler.effects import LogExpiry, PlaceTurn, Reason, RefuseTurn, TellRunEnded
from scheduler.events import (
    DataplaneResynced,
    KnownRun,
    KnownTurn,
    Phase,
    ReplicaProbed,
    Request,
    RunEnded,
    StreamLost,
    TurnAbandoned,
    TurnArrived,
    TurnFailed,
    TurnsRenewed,
)
from scheduler.summary import summarize
from tests.scheduler.story import BATCH, DATAPLANE, INTERACTIVE, A, B, Story, placed, replica


def test_a_run_id_of_another_caller_is_refused() -> None:
    story = Story(replica("a"))
    story.arrive("one", "r", caller="x")
    (refusal,) = story.arrive("two", "r", caller="y")
    assert isinstance(refusal, RefuseTurn)
    assert refusal.reason is Reason.RUN_OF_OTHER_CALLER


def test_one_shot_turns_use_their_own_replicas_and_no_run() -> None:
    story = Story(replica("a"), replica("k", kind="one-shot", max_in_flight=1))
    (effect,) = story.arrive("one", "r", one_shot=True)
    assert isinstance(effect, PlaceTurn)
    assert (effect.replica, effect.run_id) == ("k", None)
    assert placed(story.arrive("two", one_shot=True)) == []
    assert story.end("one") == ["two@k"]
    assert not story.state.runs


def test_a_tool_call_id_identifies_the_run_of_its_caller() -> None:
    story = Story(replica("a"))
    story.arrive("one", caller="x")
    story.end("one", calls=["call-1"])
    (effect,) = story.arrive("two", caller="x", calls=["unknown", "call-1"])
    assert isinstance(effect, PlaceTurn)
    assert effect.run_id == "new-one"
    (other,) = story.arrive("three", caller="y", calls=["call-1"])
    assert isinstance(other, PlaceTurn)
    assert other.run_id == "new-three"


def test_a_tool_call_id_of_two_runs_identifies_none() -> None:
    story = Story(replica("a"))
    for turn in ("one", "two"):
        story.arrive(turn)
        story.end(turn, calls=["functions.f:0"])
    (effect,) = story.arrive("three", calls=["functions.f:0"])
    assert isinstance(effect, PlaceTurn)
    assert effect.run_id == "new-three"


def test_a_tool_call_id_is_forgotten_after_half_an_hour() -> None:
    story = Story(replica("a"))
    story.arrive("one")
    story.end("one", calls=["call-1"])
    story.tick(1740.0)
    assert story.state.tool_calls
    story.tick(180.0)
    assert not story.state.tool_calls
    assert not story.state.tool_call_minutes


@pytest.mark.parametrize("end", [TurnFailed(0.0, TurnId("one")), TurnAbandoned(0.0, DATAPLANE, TurnId("one"))])
def test_a_turn_that_comes_to_nothing_frees_its_slot_and_leaves_its_run_idle(
    end: TurnFailed | TurnAbandoned,
) -> None:
    story = Story(replica("a", max_in_flight=1))
    story.arrive("one", "r")
    story.arrive("next", "q")
    assert placed(story.tell(replace(end, at=story.at))) == ["next@a"]
    assert story.state.runs[RunId("r")].phase is Phase.IDLE


def test_a_client_that_leaves_while_held_leaves_nothing_behind() -> None:
    story = Story(replica("a", max_in_flight=1))
    story.arrive("one", "r")
    story.arrive("two", "q")
    story.tell(TurnAbandoned(story.at, DATAPLANE, TurnId("two")))
    assert story.end("one") == []
    assert not story.state.turns
    assert story.state.held == (0, 0)


def test_a_run_whose_held_turn_is_abandoned_is_idle_and_waited_for_no_longer() -> None:
    story = Story(replica("a", max_in_flight=1))
    story.arrive("one", "r")
    story.end("one", calls=["c"])
    story.arrive("other", "q", BATCH)
    story.arrive("two", "r")
    assert story.state.runs[RunId("r")].phase is Phase.PAUSED
    story.tell(TurnAbandoned(story.at, DATAPLANE, TurnId("two")))
    run = story.state.runs[RunId("r")]
    assert (run.phase, run.held, run.expected_as, story.state.replicas[A].reserved) == (Phase.IDLE, (), None, 0)


def test_the_same_turn_again_is_answered_with_the_same_placement() -> None:
    story = Story(replica("a"))
    first = story.arrive("one", "r")
    assert story.arrive("one", "r") == first


@pytest.mark.parametrize("in_flight", [True, False])
@pytest.mark.parametrize(("dataplane", "caller"), [(DATAPLANE, "y"), (DataplaneId("other"), "x")])
def test_the_turn_id_of_another_caller_or_dataplane_is_refused_and_the_turn_stays(
    dataplane: DataplaneId, caller: str, in_flight: bool
) -> None:
    story = Story(replica("a", max_in_flight=1))
    if not in_flight:
        story.arrive("first", "q", caller="x")
    story.arrive("one", "r", caller="x")
    before = story.state.turns[TurnId("one")]
    request = replace(before.request, caller=Caller(caller))
    (refusal,) = story.tell(TurnArrived(story.at, dataplane, request))
    assert isinstance(refusal, RefuseTurn)
    assert (refusal.dataplane, refusal.reason) == (dataplane, Reason.RUN_OF_OTHER_CALLER)
    assert story.tell(TurnAbandoned(story.at, dataplane, TurnId("one"), Caller(caller))) == ()
    assert story.state.turns[TurnId("one")] == before


def test_a_turn_that_nobody_reports_is_dropped_after_ten_minutes() -> None:
    story = Story(replica("a", max_in_flight=1))
    story.arrive("one", "r")
    story.arrive("two", "q")
    story.tick(590.0)
    story.tell(TurnsRenewed(story.at, (TurnId("one"),)))
    assert story.tick(590.0) == ()
    expiry, placement = story.tick(20.0)
    assert isinstance(expiry, LogExpiry)
    assert isinstance(placement, PlaceTurn)


def test_an_idle_run_is_forgotten_after_half_an_hour() -> None:
    story = Story(replica("a"))
    story.arrive("one", "r")
    story.end("one", paused=True)
    for _ in range(3):
        story.tick(599.0)
    assert story.state.runs
    story.tick(10.0)
    assert not story.state.runs
    assert not story.state.timers


def test_a_run_ends_by_its_own_caller_only() -> None:
    story = Story(replica("a"))
    story.arrive("one", "r", caller="x")
    story.end("one", paused=True)
    story.tell(RunEnded(story.at, RunId("r"), Caller("y")))
    assert story.state.runs
    story.tell(RunEnded(story.at, RunId("r"), Caller("x")))
    assert not story.state.runs


def test_a_run_that_ends_while_it_generates_is_forgotten_with_its_turn() -> None:
    story = Story(replica("a"))
    story.arrive("one", "r")
    story.tell(RunEnded(story.at, RunId("r"), Caller("")))
    assert story.state.runs
    story.end("one")
    assert not story.state.runs


def test_nothing_is_placed_before_the_first_probe_and_the_grace() -> None:
    story = Story(replica("a"), is_open=False)
    assert story.arrive("one", "r") == ()
    assert story.probe("a") == []
    assert story.tick(1.0) == ()
    assert placed(story.tick(1.0)) == ["one@a"]


def test_turns_of_a_lost_stream_are_dropped_if_held_and_kept_a_while_if_in_flight() -> None:
    story = Story(replica("a", max_in_flight=1))
    story.arrive("one", "r")
    story.arrive("two", "q")
    story.tell(StreamLost(story.at, DATAPLANE))
    assert set(story.state.turns) == {"one"}
    story.tick(14.0)
    assert set(story.state.turns) == {"one"}
    story.tick(1.0)
    assert not story.state.turns


def test_a_resync_after_a_restart_brings_back_homes_places_and_counts() -> None:
    story = Story(replica("a", max_in_flight=2), replica("b", max_in_flight=2))
    request = Request(TurnId("one"), RunId("r"), RunId(""), Caller("x"), INTERACTIVE, Model("m"))
    paused = KnownRun(RunId("p"), Caller("x"), INTERACTIVE, Phase.PAUSED, B, 5000, 3, 10.0, ("call-1",))
    running = KnownRun(RunId("r"), Caller("x"), INTERACTIVE, Phase.GENERATING, B, 5001, 1, 1.0)
    turns = (KnownTurn(request, B, 5001, 1.0, first_token=True),)
    story.tell(DataplaneResynced(story.at, DATAPLANE, (paused, running), turns))
    replicas = {one.name: one for one in summarize(story.state, story.at).replicas}
    assert (replicas[B].in_flight, replicas[B].reserved, replicas[A].in_flight) == (1, 1, 0)
    (effect,) = story.arrive("two", calls=["call-1"], caller="x")
    assert isinstance(effect, PlaceTurn)
    assert (effect.run_id, effect.replica) == ("p", B)
    assert effect.sequence > 5001


def test_a_run_at_work_that_a_resync_gives_to_another_caller_counts_for_that_one() -> None:
    story = Story(replica("a"))
    request = Request(TurnId("one"), RunId("r"), RunId(""), Caller("x"), BATCH, Model("m"))
    story.tell(DataplaneResynced(story.at, DATAPLANE, (), (KnownTurn(request, A, 5000, 1.0),)))
    assert [(caller, share.batch_runs) for caller, share in story.state.shares.items()] == [("x", 1)]
    later = KnownRun(RunId("r"), Caller("y"), BATCH, Phase.IDLE, A, 6000, 1, 1.0)
    story.tell(DataplaneResynced(story.at, DataplaneId("other"), (later,), ()))
    shares = {caller: share.batch_runs for caller, share in story.state.shares.items()}
    assert shares == {"x": 0, "y": 1}, "x has its turn in flight still"


def after_restart(*, learns: bool = False) -> Story:
    """A scheduler that has just started, and was told of runs at home on b: p is paused, q is idle."""
    options: dict[str, object] = {"models": None} if learns else {}
    story = Story(replica("a", max_in_flight=1), replica("b", max_in_flight=1, **options), is_open=False)
    runs = [
        KnownRun(RunId(run), Caller(""), INTERACTIVE, phase, B, sequence, 1, 1.0)
        for run, phase, sequence in (("p", Phase.PAUSED, 5000), ("q", Phase.IDLE, 5001))
    ]
    story.tell(DataplaneResynced(story.at, DATAPLANE, tuple(runs), ()))
    return story


@pytest.mark.parametrize("learns", [False, True])
def test_after_a_restart_a_paused_run_waits_for_its_home_to_be_probed(learns: bool) -> None:
    story = after_restart(learns=learns)
    assert story.probe("a") == []
    story.tick(3.0)
    assert story.arrive("one", "p") == ()
    known = ReplicaProbed(story.at, B, True, 0, 0, None, (Model("m"),) if learns else None)
    assert placed(story.tell(known)) == ["one@b"]


def test_after_a_restart_a_paused_run_moves_if_its_home_turns_out_ill() -> None:
    story = after_restart()
    story.probe("a")
    story.tick(3.0)
    story.arrive("one", "p")
    assert story.probe("b", healthy=False) == ["one@a"]


def test_when_it_opens_idle_runs_go_home_though_another_replica_has_room() -> None:
    story = after_restart()
    for name in ("a", "b"):
        story.probe(name)
    story.arrive("stranger", "s")
    story.arrive("one", "q")
    assert sorted(placed(story.tick(3.0))) == ["one@b", "stranger@a"]


def test_of_two_dataplanes_the_one_with_the_later_placement_is_right() -> None:
    story = Story(replica("a"), replica("b"))
    for sequence, home in ((7000, B), (6000, A)):
        known = KnownRun(RunId("r"), Caller(""), INTERACTIVE, Phase.PAUSED, home, sequence, 1, 1.0)
        story.tell(DataplaneResynced(story.at, DataplaneId(f"d{sequence}"), (known,), ()))
    assert placed(story.arrive("one", "r")) == ["one@b"]


def test_turns_that_a_resync_does_not_name_have_ended() -> None:
    story = Story(replica("a", max_in_flight=1))
    story.arrive("one", "r")
    story.tell(StreamLost(story.at, DATAPLANE))
    story.arrive("two", "q")
    assert placed(story.tell(DataplaneResynced(story.at, DATAPLANE, (), ()))) == ["two@a"]


def test_a_turn_admitted_again_keeps_its_age() -> None:
    story = Story(replica("a", max_in_flight=1))
    story.arrive("busy", "b")
    story.arrive("young", "y")
    story.arrive("old", "o", held_s=30.0)
    assert story.end("busy") == ["old@a"]


def test_a_clock_that_goes_back_changes_nothing() -> None:
    story = Story(replica("a"))
    story.arrive("one", "r")
    story.at -= 1000.0
    story.end("one")
    assert story.state.now >= 3.0


def test_the_summary_tells_who_waits_and_how_long() -> None:
    story = Story(replica("a", max_in_flight=1))
    story.arrive("one", "r", caller="x")
    story.arrive("two", "s", BATCH, caller="y")
    story.tick(5.0)
    story.arrive("three", "t", BATCH, caller="y")
    (held,) = summarize(story.state, story.at).held
    assert (held.run_class, held.caller, held.turns, held.oldest_wait_s) == (BATCH, "y", 2, 5.0)


ONE = Request(TurnId("one"), RunId("r"), RunId(""), Caller(""), INTERACTIVE, Model("m"))


def ended_while_away() -> Story:
    """A scheduler that lost a dataplane, and heard of the end of a run that this one remembers, from another."""
    story = Story(replica("a"))
    story.arrive("one", "r")
    story.end("one")
    story.tell(StreamLost(story.at, DATAPLANE))
    story.tell(RunEnded(story.at, RunId("r"), Caller("")))
    return story


def test_a_run_that_ended_while_a_dataplane_was_away_does_not_come_back_with_its_resync() -> None:
    story = ended_while_away()
    known = KnownRun(RunId("r"), Caller(""), INTERACTIVE, Phase.PAUSED, A, 1001, 1, 1.0)
    effects = story.tell(DataplaneResynced(story.at, DATAPLANE, (known,), ()))
    assert effects == (TellRunEnded(DATAPLANE, RunId("r"), Caller("")),)
    assert not story.state.runs
    assert not story.state.ended_runs


def test_a_run_that_ended_while_its_dataplane_was_away_is_forgotten_with_its_last_turn_there() -> None:
    story = ended_while_away()
    story.tell(DataplaneResynced(story.at, DATAPLANE, (), (KnownTurn(ONE, A, 1001, 1.0),)))
    assert story.state.runs
    story.end("one")
    assert not story.state.runs


def test_a_run_of_the_same_id_that_began_anew_meanwhile_stays() -> None:
    story = ended_while_away()
    story.arrive("two", "r")
    known = KnownRun(RunId("r"), Caller(""), INTERACTIVE, Phase.PAUSED, A, 1001, 1, 1.0)
    story.tell(DataplaneResynced(story.at, DATAPLANE, (known,), ()))
    story.end("two")
    assert story.state.runs[RunId("r")].phase is Phase.IDLE


def test_a_dataplane_that_never_comes_back_is_not_waited_for_for_ever() -> None:
    story = ended_while_away()
    assert story.state.ended_runs
    story.tick(1801.0)
    story.tick(60.0)
    assert not story.state.ended_runs
    assert not story.state.absent


def test_beyond_the_limit_the_oldest_idle_runs_are_forgotten_and_no_paused_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core, "IDLE_RUNS_MAX", 3)
    story = Story(replica("a"))
    for number in range(10):
        story.arrive(f"turn-{number}", f"run-{number}")
        story.end(f"turn-{number}", paused=number == 2)
        story.at += 1.0
    story.arrive("held", "run-0")
    story.tick()
    assert set(story.state.runs) == {"run-0", "run-2", "run-7", "run-8", "run-9"}
    for _ in range(4):
        story.tick(599.0)
    assert set(story.state.runs) <= {"run-0"}


def test_a_run_is_at_home_where_its_turn_went_when_its_home_fell_ill_while_that_was_held_elsewhere() -> None:
    story = Story(replica("a"), replica("b", models=("n",), max_in_flight=1))
    story.arrive("one", "r")
    story.end("one", calls=["c"])
    story.arrive("other", "q", model="n")
    story.arrive("two", "r", model="n")
    story.probe("a", healthy=False)
    assert story.state.runs[RunId("r")].home == "a"
    assert story.end("other") == ["two@b"]
    assert story.state.runs[RunId("r")].home == "b"
