"""A scheduler told as a story: what happens, one event after another, every step checked."""

from __future__ import annotations

from collections.abc import Sequence

from common.ids import Caller, DataplaneId, Model, ReplicaName, RunId, TurnId
from common.pool import Replica
from scheduler.beginning import initial
from scheduler.core import decide
from scheduler.effects import Effect, PlaceTurn
from scheduler.events import (
    DataplaneResynced,
    Event,
    ReplicaProbed,
    Request,
    RunClass,
    Ticked,
    TurnArrived,
    TurnEnded,
)
from scheduler.invariants import check, check_step
from scheduler.state import State

A, B = ReplicaName("a"), ReplicaName("b")
DATAPLANE = DataplaneId("d")
INTERACTIVE, BATCH = RunClass.INTERACTIVE, RunClass.BATCH


def replica(name: str, **options: object) -> Replica:
    return Replica(ReplicaName(name), f"http://{name}", **{"models": ("m",), **options})  # type: ignore[arg-type]


class Story:
    """A scheduler whose replicas are healthy and open, told what happens; every step is checked."""

    def __init__(self, *replicas: Replica, is_open: bool = True) -> None:
        self.at = 0.0
        self.state: State = initial(replicas, 0.0, 1000)
        self.turns = 0
        if is_open:
            self.tick(3.0)
            for one in replicas:
                self.probe(one.name)

    def tell(self, event: Event) -> tuple[Effect, ...]:
        before = self.state
        self.state, effects = decide(before, event)
        check(self.state)
        if not isinstance(event, DataplaneResynced):
            check_step(before, effects, self.state)
        return effects

    def tick(self, seconds: float = 1.0) -> tuple[Effect, ...]:
        self.at += seconds
        return self.tell(Ticked(self.at))

    def probe(self, name: str, healthy: bool = True, running: int | None = 0, waiting: int | None = 0) -> list[str]:
        return placed(self.tell(ReplicaProbed(self.at, ReplicaName(name), healthy, running, waiting)))

    def arrive(
        self,
        turn: str,
        run: str | None = None,
        run_class: RunClass = INTERACTIVE,
        caller: str = "",
        *,
        model: str = "m",
        one_shot: bool = False,
        calls: Sequence[str] = (),
        held_s: float = 0.0,
    ) -> tuple[Effect, ...]:
        request = Request(
            TurnId(turn),
            RunId(run) if run else None,
            RunId(f"new-{turn}"),
            Caller(caller),
            run_class,
            Model(model),
            one_shot,
            tuple(calls),
        )
        return self.tell(TurnArrived(self.at, DATAPLANE, request, held_s))

    def end(self, turn: str, paused: bool = False, calls: Sequence[str] = ()) -> list[str]:
        return placed(self.tell(TurnEnded(self.at, TurnId(turn), paused or bool(calls), tuple(calls))))

    def where(self, turn: str) -> str | None:
        return self.state.turns[TurnId(turn)].replica


def placed(effects: tuple[Effect, ...]) -> list[str]:
    """`turn@replica` of each placement."""
    return [f"{effect.turn_id}@{effect.replica}" for effect in effects if isinstance(effect, PlaceTurn)]
