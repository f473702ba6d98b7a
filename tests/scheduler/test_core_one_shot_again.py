"""A one-shot turn whose id comes again after it had been in flight."""

from __future__ import annotations

from common.ids import TurnId
from scheduler.events import DataplaneResynced, StreamLost, TurnsRenewed
from tests.scheduler.story import DATAPLANE, Story, placed, replica


def test_a_one_shot_turn_whose_placement_was_lost_may_be_held_for_long() -> None:
    """The stream breaks while a placement is on its way; the dataplane, which never saw it, admits the turn again."""
    story = Story(replica("c", kind="one-shot", max_in_flight=1))
    assert placed(story.arrive("t", one_shot=True)) == ["t@c"]
    story.tell(StreamLost(story.at, DATAPLANE))
    story.tell(DataplaneResynced(story.at, DATAPLANE, (), ()))
    assert placed(story.arrive("other", one_shot=True)) == ["other@c"]
    assert placed(story.arrive("t", one_shot=True)) == []
    for _ in range(61):
        story.tick(10.0)
        story.tell(TurnsRenewed(story.at, (TurnId("other"),)))
    assert story.where("t") is None
