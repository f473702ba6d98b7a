"""Forecasts of runs that share a window: what is told before a turn, against how long it was held."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from common.ids import Caller, RunId, TurnId
from fakes.provider.windows import Bucket
from scheduler.budgets.forecast import Forecast
from scheduler.effects import PlaceTurn
from scheduler.events import TurnArrived
from scheduler.money import forecast_of
from tests.scheduler.story import DATAPLANE, Story, replica
from tests.scheduler.test_budgets_bars import agents
from tests.scheduler.test_budgets_money import RUN, arrive, end, request
from tests.scheduler.virtual_provider import Agent, Provider, World

LONG_S = 15.0


@dataclass
class Asking(World):
    """Agents that ask for a forecast of one step before each turn."""

    asked_before: dict[TurnId, Forecast | None] = field(default_factory=dict)
    told: list[tuple[Forecast, float]] = field(default_factory=list)
    """What was told before a turn, and how long it was held."""

    def ask(self, agent: Agent) -> None:
        turn_id = TurnId(f"t{self.turns + 1}")
        self.asked_before[turn_id] = forecast_of(self.state, RunId(agent.name), Caller("c"), 1, self.at)
        super().ask(agent)

    def placed(self, effect: PlaceTurn) -> None:
        found = self.asked_before.pop(effect.turn_id)
        if found is not None:
            self.told.append((found, effect.held_s))
        super().placed(effect)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("count", "steps"), [(1, 2000), (5, 2000), (20, 2000), (5, 12), (20, 12)])
def test_what_is_told_of_waits_is_what_comes_however_many_share_the_window(count: int, steps: int, seed: int) -> None:
    world = Asking({"a": Provider(Bucket(6000), Bucket(30))}, agents(count, steps), seed)
    world.run(until=1800)
    told = sum(found.wait_s.mean for found, _ in world.told) / len(world.told)
    true = sum(held_s for _, held_s in world.told) / len(world.told)
    assert true / 1.5 <= told <= true * 1.5
    within = sum(held_s <= found.wait_s.p95 + 1 for found, held_s in world.told)
    assert within >= 0.85 * len(world.told)
    wrong = sum((found.wait_s.mean > LONG_S) != (held_s > LONG_S) for found, held_s in world.told)
    assert wrong <= 0.1 * len(world.told), "it suspends itself where it should"


def test_who_shares_a_window_that_lasts_waits_for_nobody() -> None:
    idle = agents(5, steps=100)
    for agent in idle:
        agent.tool_s = 30.0
    world = Asking({"a": Provider(Bucket(6000), Bucket(30))}, idle)
    world.run(until=1800)
    assert max(found.wait_s.mean for found, _ in world.told) < 1


def test_who_waits_is_told_of_all_that_are_before_it() -> None:
    story = Story(replica("a", limits={"tokens_per_minute": 6000}))
    for number in range(3):
        arrive(story, f"t{number}")
        end(story, f"t{number}")
    alone = forecast_of(story.state, RUN, Caller(""), 1, story.at)
    for number in range(20):
        story.tell(TurnArrived(story.at, DATAPLANE, replace(request(f"o{number}"), run_id=RunId(f"o{number}"))))
    assert sum(story.state.held) > 10
    later = forecast_of(story.state, RUN, Caller(""), 1, story.at)
    many = forecast_of(story.state, RUN, Caller(""), 10, story.at)
    assert alone is not None
    assert later is not None
    assert many is not None
    assert alone.wait_s.mean < later.wait_s.mean < many.wait_s.mean
    assert alone.suspensions.mean < 0.1


def test_steps_behind_a_window_that_is_used_up_wait_though_the_first_ones_do_not() -> None:
    story = Story(replica("a", limits={"tokens_per_minute": 4300}))
    arrive(story, "t")
    end(story, "t")
    found = forecast_of(story.state, RUN, Caller(""), 6, story.at)
    assert found is not None
    assert 5 < found.wait_s.mean / 6 < LONG_S, "which is 20 s for some, and nothing for the others"
    assert 2.5 < found.suspensions.mean < 5.0
