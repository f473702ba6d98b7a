"""Turns that are larger than a whole rate limit: refused as such, and nobody else's concern."""

from __future__ import annotations

import pytest

from common.ids import Caller, RunId, TurnId
from common.ids import Model as ModelName
from scheduler.budgets.headers import Dimension, LimitsTold, Seen
from scheduler.budgets.sizes import BELIEVED_S
from scheduler.effects import Effect, Reason, RefuseTurn
from scheduler.events import Request, TurnArrived, TurnFailed
from tests.scheduler.story import DATAPLANE, INTERACTIVE, A, Story, placed, replica

LIMITED = {"limits": {"tokens_per_minute": 6000.0, "requests_per_minute": 30.0}}
LARGE, SMALL = 70_000, 100


def ask(story: Story, turn: str, max_tokens: int | None) -> tuple[Effect, ...]:
    """A turn of 400 bytes arrives, of a run of its own."""
    request = Request(
        TurnId(turn), None, RunId(f"run-{turn}"), Caller(""), INTERACTIVE, ModelName("m"),
        prompt_bytes=400, max_tokens=max_tokens,
    )  # fmt: skip
    return story.tell(TurnArrived(story.at, DATAPLANE, request))


def told(tokens: float | None, requests: float | None = 29.0) -> LimitsTold:
    """What a 429 tells is left, and to come again in ten minutes."""
    windows = ((Dimension.TOKENS, 6000.0, tokens), (Dimension.REQUESTS, 30.0, requests))
    return LimitsTold(tuple(Seen(d, "", limit, left) for d, limit, left in windows if left is not None), 620.0)


def refuse(story: Story, turn: str, limits: LimitsTold | None, status: int = 429) -> tuple[Effect, ...]:
    """A turn's replica refuses it."""
    return story.tell(TurnFailed(story.at, TurnId(turn), status=status, limits=limits))


def never_fits(effects: tuple[Effect, ...], turn: str) -> bool:
    return any(
        isinstance(effect, RefuseTurn) and effect.turn_id == turn and effect.reason is Reason.NEVER_FITS
        for effect in effects
    )


@pytest.mark.parametrize(("limits", "status"), [(told(6000.0), 429), (told(None, None), 429), (None, 429), (None, 413)])
def test_a_turn_refused_for_its_size_closes_the_replica_for_nobody(limits: LimitsTold | None, status: int) -> None:
    story = Story(replica("a", **LIMITED))
    assert placed(ask(story, "large", LARGE)) == ["large@a"], "a provider may count less than max_tokens"
    refuse(story, "large", limits, status)
    assert placed(ask(story, "one", SMALL)) == ["one@a"]
    assert placed(ask(story, "two", SMALL)) == ["two@a"]


def test_the_first_turn_of_all_may_be_too_large() -> None:
    story = Story(replica("a", limits={}))
    ask(story, "large", LARGE)
    refuse(story, "large", told(6000.0))
    assert placed(ask(story, "one", SMALL)) == ["one@a"]
    assert never_fits(ask(story, "again", LARGE), "again")


def test_another_turn_as_large_is_told_that_it_never_fits() -> None:
    story = Story(replica("a", **LIMITED))
    ask(story, "large", LARGE)
    refuse(story, "large", told(6000.0))
    effects = ask(story, "again", LARGE)
    assert never_fits(effects, "again")
    (effect,) = effects
    assert isinstance(effect, RefuseTurn)
    assert "max_tokens of 70000" in effect.message
    assert placed(ask(story, "near", 5000)) == ["near@a"]


def test_what_a_refusal_told_of_max_tokens_is_tried_again_some_day() -> None:
    story = Story(replica("a", **LIMITED))
    ask(story, "large", LARGE)
    refuse(story, "large", told(6000.0))
    story.tick(BELIEVED_S + 1)
    assert placed(ask(story, "again", LARGE)) == ["again@a"]


def test_turns_that_wait_behind_one_that_never_fits_go() -> None:
    story = Story(replica("a", **LIMITED))
    ask(story, "large", LARGE)
    assert placed(ask(story, "as-large", LARGE)) == []
    assert placed(ask(story, "small", SMALL)) == [], "it overtakes nobody"
    effects = refuse(story, "large", told(6000.0))
    assert never_fits(effects, "as-large")
    assert placed(effects) == ["small@a"]


@pytest.mark.parametrize("limits", [told(6000.0, 0.0), told(500.0)])
def test_a_large_turn_that_was_refused_for_something_else_too_says_nothing_of_sizes(limits: LimitsTold) -> None:
    story = Story(replica("a", **LIMITED))
    ask(story, "large", LARGE)
    refuse(story, "large", limits)
    assert placed(ask(story, "small", SMALL)) == []


def test_a_replica_rests_no_longer_than_the_longest_of_its_windows_takes() -> None:
    story = Story(replica("a", **LIMITED))
    ask(story, "one", SMALL)
    refuse(story, "one", told(5000.0))
    assert placed(ask(story, "two", SMALL)) == []
    assert placed(story.tick(59.0)) == []
    assert placed(story.tick(61.0)) == ["two@a"]


def test_a_replica_without_limits_does_not_rest_for_a_turn_that_was_too_large() -> None:
    story = Story(replica("a"))
    story.arrive("large", "r")
    refuse(story, "large", None, 413)
    assert placed(story.arrive("next", "q")) == ["next@a"]
    assert story.state.replicas[A].budget is None
