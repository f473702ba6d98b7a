"""What becomes of turns for models that no replica is known to serve, told as short stories on the core."""

from __future__ import annotations

import pytest

from common.ids import Model, ReplicaName
from common.pool import Replica
from scheduler.effects import Effect, Reason, RefuseTurn
from scheduler.events import DataplaneResynced, KnownRun, Phase, ReplicaProbed
from tests.scheduler.story import DATAPLANE, INTERACTIVE, A, B, Story, placed, replica


def test_an_unknown_model_is_refused_and_nothing_of_it_is_kept() -> None:
    story = Story(replica("a"))
    before = story.state
    (refusal,) = story.arrive("one", "r", model="other")
    assert isinstance(refusal, RefuseTurn)
    assert refusal.message == "no generative replica serves model 'other'"
    assert (story.state.runs, story.state.turns, story.state.pools) == (before.runs, before.turns, before.pools)


def test_a_turn_waits_while_the_models_of_a_replica_are_not_known() -> None:
    story = Story(replica("a"), Replica(B, "http://b"))
    assert story.arrive("one", "r", model="other") == ()
    learned = ReplicaProbed(story.at, B, True, 0, 0, None, (Model("other"),))
    assert placed(story.tell(learned)) == ["one@b"]


def test_a_turn_that_waited_for_models_is_refused_when_nobody_turns_out_to_serve_its_own() -> None:
    story = Story(replica("a"), Replica(B, "http://b"))
    story.arrive("one", "r", model="other")
    (refusal,) = story.tell(ReplicaProbed(story.at, B, True, 0, 0, None, (Model("m"),)))
    assert isinstance(refusal, RefuseTurn)
    assert refusal.reason is Reason.UNKNOWN_MODEL


def silent(name: str, kind: str = "generative") -> Replica:
    """One whose models are to be learned."""
    return Replica(ReplicaName(name), f"http://{name}", kind=kind)  # type: ignore[arg-type]


def refusals(effects: tuple[Effect, ...]) -> list[tuple[str, Reason, str]]:
    return [(each.turn_id, each.reason, each.message) for each in effects if isinstance(each, RefuseTurn)]


NEVER_TOLD = "no generative replica serves model 'other'; these never told their models: b"


def test_nobody_waits_longer_than_a_minute_after_the_start_for_a_replica_that_does_not_tell_its_models() -> None:
    story = Story(replica("a"), silent("b"))
    story.arrive("one", "r", model="other")
    assert story.tick(56.0) == ()
    assert refusals(story.tick(1.0)) == [("one", Reason.UNKNOWN_MODEL, NEVER_TOLD)]
    assert refusals(story.arrive("two", "r", model="other")) == [("two", Reason.UNKNOWN_MODEL, NEVER_TOLD)]
    assert not story.state.turns


def test_where_no_replica_of_the_kind_has_told_its_models_it_is_not_the_model_that_is_unknown() -> None:
    story = Story(silent("b"), silent("c"), replica("k", kind="one-shot"))
    story.arrive("one", "r")
    said = "no generative replica has told its models yet: b, c"
    assert refusals(story.tick(57.0)) == [("one", Reason.MODELS_UNKNOWN, said)]
    (other,) = refusals(story.arrive("two", model="other", one_shot=True))
    assert other[1:] == (Reason.UNKNOWN_MODEL, "no one-shot replica serves model 'other'")


def test_a_replica_that_tells_its_models_late_gets_turns_from_then_on() -> None:
    story = Story(silent("b"))
    story.tick(60.0)
    assert refusals(story.arrive("one"))
    story.tell(ReplicaProbed(story.at, B, True, 0, 0, None, (Model("m"),)))
    assert placed(story.arrive("two")) == ["two@b"]
    assert refusals(story.arrive("three", model="other"))[0][1] is Reason.UNKNOWN_MODEL


def test_many_silent_replicas_are_counted_and_not_all_named() -> None:
    story = Story(*(silent(f"b{n:02}") for n in range(20)))
    story.tick(60.0)
    [(_, _, said)] = refusals(story.arrive("one"))
    assert said.endswith("yet: b00, b01, b02, b03, b04, b05, b06, b07 and 12 more")


@pytest.mark.parametrize(("model", "happens"), [("m", ["next@a"]), ("other", [])])
def test_a_paused_run_waits_a_minute_at_most_for_a_home_of_which_nothing_is_known(
    model: str, happens: list[str]
) -> None:
    """After a restart a dataplane tells of a run at home on a replica that was not probed yet."""
    story = Story(replica("a"), silent("b"), is_open=False)
    known = KnownRun("r", "", INTERACTIVE, Phase.PAUSED, B, 7, 1, 0.0)  # type: ignore[arg-type]
    story.tell(DataplaneResynced(0.0, DATAPLANE, (known,), ()))
    story.tick(3.0)
    story.probe(A)
    assert story.arrive("next", "r", model=model) == ()
    effects = story.tick(60.0)
    assert placed(effects) == happens
    assert refusals(effects) == ([] if happens else [("next", Reason.UNKNOWN_MODEL, NEVER_TOLD)])
