"""Turns whose client waits only so long for a place: refused at the moment, and told what is known."""

from __future__ import annotations

import pytest

from common.ids import Caller, RunId, TurnId
from common.ids import Model as ModelName
from scheduler.effects import Effect, Reason, RecordSpend, RefuseTurn
from scheduler.events import Request, TurnArrived
from tests.scheduler.story import DATAPLANE, INTERACTIVE, Story, placed, replica


def ask(
    story: Story,
    turn: str,
    wait_s_max: float | None = None,
    deadline_s: float | None = None,
    *,
    run: str | None = None,
    held_s: float = 0.0,
) -> tuple[Effect, ...]:
    """A turn arrives, whose client waits so long at most."""
    request = Request(
        TurnId(turn),
        RunId(run) if run else None,
        RunId(f"new-{turn}"),
        Caller(""),
        INTERACTIVE,
        ModelName("m"),
        wait_s_max=wait_s_max,
        deadline_s=deadline_s,
    )
    return story.tell(TurnArrived(story.at, DATAPLANE, request, held_s))


def refusal(effects: tuple[Effect, ...]) -> tuple[Reason, str, float | None]:
    """The one refusal: why, what it says, and when to come again."""
    (effect,) = (each for each in effects if not isinstance(each, RecordSpend))
    assert isinstance(effect, RefuseTurn)
    return effect.reason, effect.message, effect.retry_after_s


def full(**options: object) -> Story:
    """One replica, whose only place is taken by the turn `first` of the run `r`."""
    story = Story(replica("a", max_in_flight=1, **options))
    story.arrive("first", "r")
    return story


@pytest.mark.parametrize("options", [{}, {"limits": {"requests_per_minute": 100.0}}])
def test_who_waits_no_longer_for_a_place_is_told_how_long_it_was_and_that_no_more_is_known(
    options: dict[str, object],
) -> None:
    story = full(**options)
    assert ask(story, "second", wait_s_max=3.0) == ()
    assert story.tick(2.9) == ()
    assert refusal(story.tick(0.17)) == (
        Reason.NOT_SOON,
        "it waited 3.1 s for a place; when one will be is not known",
        5.0,
    )


def test_who_waited_long_may_come_again_after_as_long() -> None:
    story = full()
    ask(story, "second", wait_s_max=20.0)
    assert refusal(story.tick(20.0))[2] == pytest.approx(20.0)


def test_a_deadline_that_comes_while_a_turn_waits_is_told_as_one() -> None:
    story = full()
    ask(story, "second", deadline_s=3.0)
    assert refusal(story.tick(3.0)) == (
        Reason.DEADLINE,
        "it waited 3.0 s for a place, until its deadline; when one will be is not known",
        None,
    )


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(("deadline_s", "held_s"), [(0.0, 0.0), (2.0, 2.5)])
def test_a_deadline_that_has_passed_is_refused_though_there_is_room(
    is_open: bool, deadline_s: float, held_s: float
) -> None:
    story = Story(replica("a"), is_open=is_open)
    effects = ask(story, "late", deadline_s=deadline_s, run="r", held_s=held_s)
    assert refusal(effects)[:2] == (Reason.DEADLINE, "its deadline, x-luftpause-deadline, has passed already")
    assert not story.state.runs


def test_who_does_not_wait_at_all_is_placed_or_refused_at_once() -> None:
    story = full()
    assert refusal(ask(story, "second", wait_s_max=0.0)) == (
        Reason.NOT_SOON,
        "no place is free; when one will be is not known",
        5.0,
    )
    story.end("first", paused=True)
    assert placed(ask(story, "third", wait_s_max=0.0, run="r")) == ["third@a"]
    assert refusal(ask(story, "fourth", wait_s_max=0.0, run="r"))[0] is Reason.NOT_SOON, "it is tied to its home"


def test_what_rate_limits_let_through_later_is_told_with_its_time() -> None:
    story = Story(replica("a", limits={"requests_per_minute": 1.0}))
    assert placed(ask(story, "first")) == ["first@a"]
    story.end("first")
    reason, message, again_s = refusal(ask(story, "second", wait_s_max=5.0))
    assert (reason, message.partition(" in about ")[0]) == (Reason.NOT_SOON, "no place is free; it would get one")
    assert again_s is not None
    assert 30 < again_s <= 60


def test_turns_held_for_another_model_are_not_ahead() -> None:
    story = Story(replica("a", limits={"tokens_per_minute": 6000.0}), replica("b", models=("n",), max_in_flight=1))
    for number in range(12):
        story.arrive(f"other{number}", f"o{number}", model="n")
    assert placed(ask(story, "one", wait_s_max=5.0)) == ["one@a"]
    story.arrive("large", "l")
    assert placed(ask(story, "two", wait_s_max=1.0)) == ["two@a"]
