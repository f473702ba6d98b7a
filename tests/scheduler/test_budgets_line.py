"""Turns that are refused for a while: each is told when its own turn would be, and that mostly holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from common.ids import Caller, Model, ReplicaName, RunId, TurnId
from fakes.provider.windows import Bucket
from scheduler.budgets.line import EMPTY_LINE, KEPT_S, PLACES_MAX, due_of, with_place, without_place
from scheduler.budgets.spend import RunKey
from scheduler.core import decide
from scheduler.effects import PlaceTurn, RefuseTurn
from scheduler.events import Event, Request, RunClass, Ticked, TurnArrived
from tests.scheduler.test_budgets_bars import agents, lognormal
from tests.scheduler.virtual_provider import DATAPLANE, Agent, Provider, World

UNTIL_S = 1200.0
TICK_S = 1 / 16


def run(name: str, caller: str = "c") -> RunKey:
    return RunId(name), Caller(caller)


@dataclass
class Impatient(World):
    """Agents that wait for a second and come again when they were told, or after `early` times as long."""

    early: float = 1.0
    refused: int = 0
    in_a_row: dict[str, int] = field(default_factory=dict)
    worst: int = 0

    def tell(self, event: Event) -> None:
        self.state, effects = decide(self.state, event)
        for effect in effects:
            if isinstance(effect, PlaceTurn):
                self.in_a_row[self.asked[effect.turn_id].name] = 0
                self.placed(effect)
            elif isinstance(effect, RefuseTurn):
                self.refuse(effect)

    def refuse(self, effect: RefuseTurn) -> None:
        agent = self.asked.pop(effect.turn_id)
        self.refused += 1
        self.in_a_row[agent.name] = self.in_a_row.get(agent.name, 0) + 1
        self.worst = max(self.worst, self.in_a_row[agent.name])
        assert effect.retry_after_s is not None
        self.later(effect.retry_after_s * self.early, lambda: self.ask(agent))

    def ask(self, agent: Agent) -> None:
        self.turns += 1
        turn_id = TurnId(f"t{self.turns}")
        self.asked[turn_id] = agent
        request = Request(
            turn_id, RunId(agent.name), RunId(""), Caller("c"), RunClass.BATCH, Model("m"),
            prompt_bytes=self.body_bytes(agent), max_tokens=agent.max_tokens, wait_s_max=1.0,
        )  # fmt: skip
        self.tell(TurnArrived(self.at, DATAPLANE, request))

    def beat(self) -> None:
        self.tell(Ticked(self.at))
        self.later(TICK_S, self.beat)

    def play(self) -> None:
        self.later(0, self.beat)
        self.run(UNTIL_S)

    @property
    def done(self) -> int:
        return sum(agent.done for agent in self.agents)


def steady(count: int = 16) -> list[Agent]:
    return agents(count, steps=2000)


def growing() -> list[Agent]:
    return [Agent(f"r{number}", 30, 150, 1500, lognormal) for number in range(16)]


def mixed() -> list[Agent]:
    return [*steady(15), *(Agent(f"large-{number}", 2000, 2000, 2000, lognormal) for number in range(3))]


@pytest.mark.parametrize("crowd", [steady, growing, mixed])
def test_who_comes_again_when_it_was_told_is_mostly_let_in(crowd: object) -> None:
    assert callable(crowd)
    world = Impatient({"a": Provider(Bucket(6000), Bucket(30))}, crowd())
    world.play()
    assert world.refused <= 1.15 * world.done, "each is told once, and comes once more"
    assert world.worst <= 3
    assert min(agent.done for agent in world.agents) >= max(agent.done for agent in world.agents) / 3
    provider = world.providers["a"]
    assert not provider.refused_at
    assert provider.served_tokens >= 0.93 * (6000 + 100 * (UNTIL_S - 10))


def test_who_comes_early_keeps_its_place() -> None:
    world = Impatient({"a": Provider(Bucket(6000), Bucket(30))}, steady(), early=0.5)
    world.play()
    assert world.worst <= 8
    assert world.done > 500


def test_a_place_is_kept_until_it_was_used_or_for_a_while() -> None:
    name = ReplicaName("a"), RunClass.BATCH
    line = with_place(EMPTY_LINE, run("r"), name, 50.0, 10.0)
    assert due_of(line, run("r"), 20.0) == due_of(line, run("r"), 50 + KEPT_S) == 50.0
    assert due_of(line, run("r"), 51 + KEPT_S) is due_of(line, run("s"), 20.0) is due_of(line, None, 20.0) is None
    assert due_of(line, run("r", "another"), 20.0) is None
    assert due_of(without_place(line, run("r", "another")), run("r"), 20.0) == 50.0
    assert due_of(without_place(line, run("r")), run("r"), 20.0) is None
    assert with_place(line, run("s"), name, 40.0, 10.0).ends[name] == 50.0


def test_an_interactive_run_goes_before_batch_runs_in_line() -> None:
    batch, interactive = ((ReplicaName("a"), run_class) for run_class in (RunClass.BATCH, RunClass.INTERACTIVE))
    line = with_place(EMPTY_LINE, run("r"), batch, 50.0, 10.0)
    assert interactive not in line.ends
    line = with_place(line, run("s"), interactive, 60.0, 10.0)
    assert line.ends[interactive] == line.ends[batch] == 60.0


def test_places_are_bounded_and_those_that_are_past_make_room() -> None:
    line, name = EMPTY_LINE, (ReplicaName("a"), RunClass.BATCH)
    for number in range(PLACES_MAX + 5):
        line = with_place(line, run(f"r{number}"), name, float(number), 0.0)
    assert len(line.due) == PLACES_MAX
    assert line.ends[name] == PLACES_MAX + 4
    line = with_place(line, run("late"), name, 9000.0, 1000.0 + KEPT_S)
    assert due_of(line, run("late"), 1000.0) == 9000.0
    assert len(line.due) < PLACES_MAX
