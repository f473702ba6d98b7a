"""Rules for replicas that tell the size of their KV cache, as stories."""

from __future__ import annotations

import pytest

from common.ids import Caller, Model, ReplicaName, RunId, TurnId
from scheduler.admission import SEATS_SEEN, Obstacle
from scheduler.events import ReplicaProbed, RunClass, RunEnded, TurnEnded
from scheduler.placement import _takes
from scheduler.state import STARVES_AFTER, Replica
from scheduler.summary import summarize
from tests.scheduler.story import BATCH, Story, placed, replica

KV_TOKENS = 10_000
A = ReplicaName("a")


def cached(**options: object) -> Story:
    story = Story(replica("a", **options))
    story.tell(ReplicaProbed(story.at, A, True, 0, 0, 0.1, None, KV_TOKENS))
    return story


def known(story: Story) -> Replica:
    return story.state.replicas[A]


def end(story: Story, turn: str) -> None:
    """A turn of 2,000 tokens ends with a tool call."""
    story.tell(TurnEnded(story.at, TurnId(turn), True, (), 1_950, 50, 0))


def waits(story: Story, turn: str) -> bool:
    return story.where(turn) is None


@pytest.mark.parametrize("options", [{}, {"limits": {"requests_per_minute": 1000}}], ids=["plain", "limited"])
def test_runs_are_admitted_until_their_prefixes_fill_the_cache_and_started_ones_go_on(
    options: dict[str, object],
) -> None:
    story = cached(**options)
    for number in range(6):
        story.arrive(f"first{number}", f"r{number}", BATCH)
        if not waits(story, f"first{number}"):
            end(story, f"first{number}")
    placed = [number for number in range(6) if TurnId(f"first{number}") not in story.state.turns]
    assert 2 <= len(placed) < 6
    story.arrive("second", "r0", BATCH)
    assert not waits(story, "second"), "its prefix is there, so its next turn goes on at once"
    (held,) = summarize(story.state, story.at).held
    assert held.reason == Obstacle.RUNS_KEPT


def test_interactive_turns_are_not_held_for_the_cache() -> None:
    story = cached()
    for number in range(40):
        story.arrive(f"t{number}", f"r{number}")
    assert not any(waits(story, f"t{number}") for number in range(40))


def test_under_interactive_load_batch_gets_a_place_from_time_to_time() -> None:
    story = Story(replica("a", max_in_flight=1))
    story.arrive("i0", "i0")
    story.arrive("b", "b", BATCH)
    for number in range(1, STARVES_AFTER + 2):
        story.arrive(f"i{number}", f"i{number}")
    ended = 0
    while waits(story, "b"):
        story.end(f"i{ended}")
        ended += 1
        assert ended <= STARVES_AFTER
    assert ended == STARVES_AFTER
    story.end("b")
    assert not waits(story, f"i{STARVES_AFTER}"), "then it is the others' turn again"


def test_a_place_owed_to_batch_work_that_has_no_tokens_left_is_no_obstacle_to_interactive_turns() -> None:
    owing = Replica(
        A, False, None, False, (Model("m"),), healthy=True, since_batch=STARVES_AFTER, dry_for=RunClass.BATCH
    )
    assert RunClass.INTERACTIVE in _takes(owing, (1, 0))


def test_a_run_that_ends_leaves_nothing_behind() -> None:
    story = cached()
    for number in range(3):
        story.arrive(f"t{number}", f"r{number}", BATCH)
        end(story, f"t{number}")
        story.tell(RunEnded(story.at, RunId(f"r{number}"), Caller("")))
    assert (known(story).batch_tokens, known(story).batch_flight_tokens, known(story).paused) == (0, 0, 0)


def test_a_queue_that_stays_before_a_cache_that_is_not_full_may_not_grow() -> None:
    story = cached()
    for usage, limit in ((0.3, None), (0.3, 5), (0.95, 2)):
        story.tell(ReplicaProbed(story.at, A, True, 2, 3, usage, None, KV_TOKENS))
        assert known(story).limit == limit


def seen(story: Story, running: int, waiting: int) -> int | None:
    """The limit after a probe of an engine whose cache is not full."""
    story.tick(2.0)
    story.tell(ReplicaProbed(story.at, A, True, running, waiting, 0.1, None, KV_TOKENS))
    return known(story).limit


def test_an_engine_that_runs_no_more_though_others_wait_is_limited_to_what_it_runs() -> None:
    story = cached()
    for number in range(6):
        story.arrive(f"t{number}", f"r{number}", BATCH)
    assert [seen(story, 2, 4) for _ in range(2 + SEATS_SEEN)] == [None, *[6] * (SEATS_SEEN - 1), 2, 2]
    assert placed(story.arrive("late", "late", BATCH)) == []
    assert placed(story.arrive("i", "i")) == ["i@a"], "interactive turns wait for a seat, not for the queue"
    for number in range(6):
        assert story.end(f"t{number}") == ([] if number < 5 else ["late@a"])
    assert seen(story, 2, 0) == 3, "then it is tried whether there is one more"
    assert seen(story, 3, 0) is None, "there is"


def test_an_engine_that_runs_more_and_more_has_prefill_in_its_queue() -> None:
    story = cached()
    for number in range(6):
        story.arrive(f"t{number}", f"r{number}", BATCH)
    assert [seen(story, *load) for load in ((1, 5), (2, 4), (2, 4), (3, 3), (2, 4), (4, 2))] == [None, 6, 6, 6, 6, 6]


def probe(story: Story) -> None:
    story.tell(ReplicaProbed(story.at, A, True, 0, 0, 0.1, None, KV_TOKENS))


def test_a_caller_with_many_runs_leaves_room_where_one_with_few_is() -> None:
    story = cached()
    for number in range(30):
        story.arrive(f"many{number}", f"many{number}", BATCH, "many")
    story.arrive("few", "few", BATCH, "few")
    ended = 0
    while waits(story, "few"):
        story.end(f"many{ended}")
        ended += 1
    probe(story)
    flying = [number for number in range(ended, 30) if not waits(story, f"many{number}")]
    for number in flying:
        story.end(f"many{number}")
    resident = {caller: taken.resident for caller, taken in known(story).takings.items()}
    assert 0 < resident[Caller("many")] <= known(story).parts[Caller("many")] < KV_TOKENS / 4
    assert Caller("few") not in known(story).parts
    assert {held.reason for held in summarize(story.state, story.at).held} == {Obstacle.PART_TAKEN}
    story.arrive("few2", "few2", BATCH, "few")
    assert not waits(story, "few2"), "the room that is left is for a caller like this"
    story.end("few")
    story.end("few2")
    probe(story)
    assert not known(story).parts, "then it is alone, and takes all there is"
    assert known(story).takings[Caller("many")].resident > KV_TOKENS / 2


def test_callers_with_as_much_to_do_are_held_to_nothing() -> None:
    story = cached()
    for number in range(8):
        story.arrive(f"x{number}", f"x{number}", BATCH, "x")
        story.arrive(f"y{number}", f"y{number}", BATCH, "y")
    probe(story)
    assert len(known(story).takings) == 2
    assert not known(story).parts
