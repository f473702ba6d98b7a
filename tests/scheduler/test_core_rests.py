"""A replica without limits that answers 429 is left alone for a while, then asked with one turn."""

from __future__ import annotations

import pytest

from common.ids import TurnId
from scheduler.budgets.headers import LimitsTold
from scheduler.events import TurnFailed
from tests.scheduler.story import A, Story, placed, replica


def refuse(story: Story, turn: str, retry_after_s: float | None = None) -> list[str]:
    """Its replica answers a turn 429."""
    told = LimitsTold(retry_after_s=retry_after_s) if retry_after_s is not None else None
    return placed(story.tell(TurnFailed(story.at, TurnId(turn), status=429, limits=told)))


def pair() -> Story:
    """Two replicas; the run `r` has its home, and its first turn, at `a`."""
    story = Story(replica("a"), replica("b"))
    story.arrive("r-1", "r")
    assert story.where("r-1") == "a"
    return story


def test_turns_go_elsewhere_for_as_long_as_it_said() -> None:
    story = pair()
    refuse(story, "r-1", 7.0)
    for number in range(6):
        assert placed(story.arrive(f"t-{number}", f"run-{number}")) == [f"t-{number}@b"]
        story.tick(1.0)
    story.tick(2.0)
    assert placed(story.arrive("again", "run-x")) == ["again@a"]
    assert placed(story.arrive("beside", "run-y")) == ["beside@b"], "one turn asks, the others do not wait for it"


def test_the_retry_of_a_run_goes_elsewhere_at_once_and_has_its_home_there() -> None:
    story = pair()
    refuse(story, "r-1", 60.0)
    assert placed(story.arrive("r-2", "r")) == ["r-2@b"]
    story.end("r-2", paused=True)
    assert placed(story.arrive("r-3", "r")) == ["r-3@b"]


def test_a_paused_run_does_not_wait_for_a_home_that_rests() -> None:
    story = pair()
    story.end("r-1", paused=True)
    story.arrive("q-1", "q")
    story.end("q-1", paused=True)
    home = {"a": "r", "b": "q"}
    story.arrive("r-2", home["a"])
    assert story.where("r-2") == "a"
    refuse(story, "r-2", 60.0)
    assert placed(story.arrive("r-3", home["a"])) == ["r-3@b"]


def test_a_turn_that_waits_for_its_home_waits_no_longer_when_that_rests() -> None:
    story = Story(replica("a", max_in_flight=1), replica("b", max_in_flight=1))
    story.arrive("r-1", "r")
    story.end("r-1", paused=True)
    story.arrive("r-2", "r")
    assert placed(story.arrive("r-3", "r")) == [], "it waits for its home"
    assert refuse(story, "r-2", 60.0) == ["r-3@b"]


@pytest.mark.parametrize(("told_s", "wait_s"), [(None, 1.0), (30.0, 30.0), (3600.0, 60.0)])
def test_the_only_replica_is_asked_again_with_one_turn_and_then_with_all(told_s: float | None, wait_s: float) -> None:
    story = Story(replica("a"))
    story.arrive("r-1", "r")
    refuse(story, "r-1", told_s)
    for number in range(3):
        assert placed(story.arrive(f"t-{number}", f"run-{number}")) == []
    assert placed(story.tick(wait_s - 0.5)) == []
    assert placed(story.tick(0.5)) == ["t-0@a"]
    assert placed(story.tick(5.0)) == []
    assert story.end("t-0") == ["t-1@a", "t-2@a"]
    assert story.state.replicas[A].budget is None
    assert story.state.histories is None


def test_without_a_word_it_is_left_alone_twice_as_long_each_time() -> None:
    story = Story(replica("a"))
    story.arrive("t-0", "r")
    waited = []
    for number in range(1, 9):
        refuse(story, f"t-{number - 1}")
        began_at = story.at
        assert placed(story.arrive(f"t-{number}", "r")) == []
        while not placed(story.tick()):
            pass
        waited.append(story.at - began_at)
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60]


def test_turns_that_are_refused_together_count_as_one() -> None:
    story = Story(replica("a"))
    for number in range(8):
        story.arrive(f"t-{number}", f"run-{number}")
    for number in range(8):
        refuse(story, f"t-{number}")
    assert placed(story.arrive("next", "r")) == []
    assert placed(story.tick(1.0)) == ["next@a"]


def test_turns_that_were_in_flight_before_end_as_they_would() -> None:
    story = Story(replica("a"))
    for number in range(3):
        story.arrive(f"t-{number}", f"run-{number}")
    refuse(story, "t-0", 5.0)
    story.end("t-1")
    story.tell(TurnFailed(story.at, TurnId("t-2")))
    assert story.state.replicas[A].in_flight == 0
    assert placed(story.arrive("next", "r")) == []
    assert placed(story.tick(5.0)) == ["next@a"]
