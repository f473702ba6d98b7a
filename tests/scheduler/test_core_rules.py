"""Each rule of placing and ordering turns, told as a short story on the core."""

from __future__ import annotations

import pytest

from scheduler.summary import summarize
from tests.scheduler.story import BATCH, Story, placed, replica


def test_a_continuation_goes_ahead_of_batch_turns_that_wait() -> None:
    story = Story(replica("a", max_in_flight=2))
    story.arrive("agent-1", "agent")
    story.end("agent-1", paused=True)
    story.arrive("flood-1", "flood", BATCH)
    assert placed(story.arrive("flood-2", "other", BATCH)) == []
    assert placed(story.arrive("agent-2", "agent")) == ["agent-2@a"]


def test_batch_turns_leave_room_for_interactive_runs_that_are_paused() -> None:
    story = Story(replica("a", max_in_flight=3))
    story.arrive("agent-1", "agent")
    story.end("agent-1", paused=True)
    assert placed(story.arrive("flood-1", "f1", BATCH)) == ["flood-1@a"]
    assert placed(story.arrive("flood-2", "f2", BATCH)) == ["flood-2@a"]
    assert placed(story.arrive("flood-3", "f3", BATCH)) == []
    assert summarize(story.state, story.at).replicas[0].reserved == 1


def test_a_place_is_kept_for_a_paused_run_for_a_minute_only() -> None:
    story = Story(replica("a", max_in_flight=2))
    story.arrive("agent-1", "agent")
    story.end("agent-1", paused=True)
    story.arrive("flood-1", "f1", BATCH)
    story.arrive("flood-2", "f2", BATCH)
    assert placed(story.tick(59.0)) == []
    assert placed(story.tick(2.0)) == ["flood-2@a"]


def test_reservations_alone_never_stop_batch_work() -> None:
    story = Story(replica("a", max_in_flight=2))
    for agent in ("x", "y", "z"):
        story.arrive(f"{agent}-1", agent)
        story.end(f"{agent}-1", paused=True)
    assert placed(story.arrive("flood-1", "f1", BATCH)) == ["flood-1@a"]
    assert placed(story.arrive("flood-2", "f2", BATCH)) == []


def test_a_paused_run_keeps_its_replica_even_if_another_has_room() -> None:
    story = Story(replica("a", max_in_flight=1), replica("b", max_in_flight=1))
    story.arrive("one", "r")
    home = story.where("one")
    story.end("one", paused=True)
    other = "b" if home == "a" else "a"
    story.arrive("other-home", "q")
    story.arrive("filler", "p")
    assert placed(story.arrive("two", "r")) == []
    busy = "other-home" if story.where("other-home") == home else "filler"
    free = "filler" if busy == "other-home" else "other-home"
    assert story.where(free) == other
    assert story.end(free) == []
    assert story.end(busy) == [f"two@{home}"]


def test_all_turns_of_a_generating_run_go_to_one_replica() -> None:
    story = Story(replica("a"), replica("b"))
    story.arrive("one", "r")
    story.arrive("noise", "q")
    story.arrive("two", "r")
    story.arrive("three", "r")
    assert {story.where("one"), story.where("two"), story.where("three")} == {story.where("one")}


def test_an_idle_run_prefers_its_home_but_moves_if_that_is_full() -> None:
    story = Story(replica("a", max_in_flight=1), replica("b", max_in_flight=1))
    story.arrive("one", "r")
    home = story.where("one")
    story.end("one")
    assert placed(story.arrive("two", "r")) == [f"two@{home}"]
    story.end("two")
    for other in ("x", "y"):
        story.arrive(other, other)
    story.end("y" if story.where("x") == home else "x")
    assert placed(story.arrive("three", "r")) == ["three@b" if home == "a" else "three@a"]


def test_a_run_whose_replica_is_ill_moves_at_once() -> None:
    story = Story(replica("a"), replica("b"))
    story.arrive("one", "r")
    home = story.where("one")
    assert home
    story.end("one", paused=True)
    story.probe(home, healthy=False)
    assert placed(story.arrive("two", "r")) == [f"two@{'b' if home == 'a' else 'a'}"]


def test_turns_held_for_a_replica_that_falls_ill_go_elsewhere() -> None:
    story = Story(replica("a", max_in_flight=1), replica("b", max_in_flight=1))
    story.arrive("one", "r")
    home = story.where("one")
    assert home
    story.end("one", paused=True)
    story.arrive("x", "x")
    story.arrive("y", "y")
    story.arrive("two", "r")
    elsewhere = "x" if story.where("x") != home else "y"
    other = story.where(elsewhere)
    story.probe(home, healthy=False)
    assert story.end(elsewhere) == [f"two@{other}"]


def test_a_replica_that_queues_is_limited_to_what_it_runs() -> None:
    story = Story(replica("a"))
    for number in range(4):
        story.arrive(f"t{number}", f"r{number}")
    story.probe("a", running=3, waiting=1)
    assert placed(story.arrive("t4", "r4")) == []
    story.end("t0")
    assert placed(story.arrive("t5", "r5")) == []
    assert story.end("t1") == ["t4@a"]


def test_a_limit_is_probed_upwards_when_it_is_full_and_lifted_when_the_replica_is_empty() -> None:
    story = Story(replica("a"))
    for number in range(6):
        story.arrive(f"t{number}", f"r{number}")
    story.probe("a", running=2, waiting=4)
    for number in range(4):
        story.end(f"t{number}")
    story.arrive("t6", "r6")
    assert story.probe("a", running=2, waiting=0) == ["t6@a"]
    for turn in ("t4", "t5", "t6"):
        story.end(turn)
    story.probe("a", running=0, waiting=0)
    assert summarize(story.state, story.at).replicas[0].capacity is None


def test_an_engine_that_tells_no_load_is_limited_by_configuration_only() -> None:
    story = Story(replica("a"), replica("b", max_in_flight=1))
    story.probe("a", running=None, waiting=None)
    story.probe("b", running=None, waiting=None)
    where = [placed(story.arrive(f"t{number}", f"r{number}")) for number in range(5)]
    assert sum(p == [f"t{n}@b"] for n, p in enumerate(where)) == 1
    assert all(where)


def test_the_caller_with_the_fewest_running_turns_is_next() -> None:
    story = Story(replica("a", max_in_flight=3))
    for number in range(3):
        story.arrive(f"x{number}", f"x{number}", caller="x")
    story.arrive("x3", "x3", caller="x")
    story.arrive("y0", "y0", caller="y")
    assert story.end("x0") == ["y0@a"]
    assert story.end("x1") == ["x3@a"]


def test_interactive_turns_go_before_batch_turns_of_a_caller_with_less() -> None:
    story = Story(replica("a", max_in_flight=1))
    story.arrive("x0", "x0", caller="x")
    story.arrive("b0", "b0", BATCH, caller="y")
    story.arrive("x1", "x1", caller="x")
    assert story.end("x0") == ["x1@a"]


def test_started_runs_go_before_new_ones_and_longer_ones_first() -> None:
    story = Story(replica("a", max_in_flight=3))
    story.arrive("one", "long", BATCH)
    story.end("one")
    story.arrive("two", "long", BATCH)
    story.end("two", paused=True)
    story.arrive("only", "short", BATCH)
    story.end("only", paused=True)
    for number in range(3):
        story.arrive(f"f{number}", f"f{number}", BATCH)
    story.arrive("new", "new", BATCH)
    story.arrive("short-2", "short", BATCH)
    story.arrive("long-3", "long", BATCH)
    assert story.end("f0") == ["long-3@a"]
    assert story.end("f1") == ["short-2@a"]
    assert story.end("f2") == ["new@a"]


@pytest.mark.parametrize(("later_s", "first"), [(15.0, "long-2"), (25.0, "new")])
def test_where_only_rate_limits_are_waited_for_a_turn_done_counts_as_twenty_seconds(later_s: float, first: str) -> None:
    story = Story(replica("a", max_in_flight=1, limits={"requests_per_minute": 100}))
    story.arrive("one", "long", BATCH)
    story.end("one", paused=True)
    story.arrive("f0", "f0", BATCH)
    story.arrive("new", "new", BATCH)
    story.tick(later_s)
    story.arrive("long-2", "long", BATCH)
    assert story.end("f0") == [f"{first}@a"]


@pytest.mark.parametrize("first", ["x", "y"])
def test_of_callers_with_as_many_running_turns_the_one_that_waits_longer_at_a_home_is_next(first: str) -> None:
    story = Story(replica("a", max_in_flight=2))
    for caller in ("x", "y"):
        story.arrive(f"{caller}1", caller, caller=caller)
        story.end(f"{caller}1", calls=[caller])
    story.arrive("o1", caller="other")
    story.arrive("o2", caller="other")
    second = "y" if first == "x" else "x"
    for caller in (first, second):
        story.arrive(f"{caller}2", caller, caller=caller)
    assert story.end("o1") == [f"{first}2@a"]
    assert story.end("o2") == [f"{second}2@a"]
