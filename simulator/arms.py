"""What stands between the agents and the engines: a plain router, or luftpause's core."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

from common.ids import Caller, DataplaneId, Model, ReplicaName, RunId, TurnId
from common.pool import Replica as PoolReplica
from fakes.engine.batch import Request
from loadgen.workload import Group
from scheduler.beginning import initial
from scheduler.core import decide
from scheduler.effects import PlaceTurn
from scheduler.events import (
    Event,
    FirstTokenSeen,
    ReplicaProbed,
    RunClass,
    RunEnded,
    Ticked,
    TurnArrived,
    TurnEnded,
    TurnStarted,
)
from scheduler.events import Request as Asked
from scheduler.state import State
from simulator.agents import Turn
from simulator.clock import Clock
from simulator.engines import SimulatedEngine, Waiter
from simulator.naive import flying_turns, live_runs

PROBE_S = 2.0
TICK_S = 1.0
MODEL = Model("simulated")
DATAPLANE = DataplaneId("simulated")
_CLASSES = {"interactive": RunClass.INTERACTIVE, "batch": RunClass.BATCH}


class Arm(Protocol):
    """Decides where turns go, and when."""

    def submit(self, turn: Turn) -> None:
        """A turn has come."""

    def end_run(self, run_id: str, group: Group) -> None:
        """A run's end was told."""


ArmFactory = Callable[[Clock, Sequence[SimulatedEngine]], Arm]


class LeastConnections:
    """A router that gives each request to the engine with the fewest."""

    def __init__(self, _clock: Clock, engines: Sequence[SimulatedEngine]) -> None:
        self._engines = engines
        self._next = 0

    def submit(self, turn: Turn) -> None:
        """To the engine with the fewest requests; among equals in turn."""
        self._next += 1
        count = len(self._engines)
        order = [(self._next + i) % count for i in range(count)]
        at = min(order, key=lambda i: self._engines[i].load)
        self._engines[at].submit(turn.request, Waiter(turn.first_token, lambda _request: turn.ended()))

    def end_run(self, run_id: str, group: Group) -> None:
        """Runs mean nothing to it."""


class RoundRobin:
    """A router that gives each engine one request after another."""

    def __init__(self, _clock: Clock, engines: Sequence[SimulatedEngine]) -> None:
        self._engines = engines
        self._next = 0

    def submit(self, turn: Turn) -> None:
        """To the next engine."""
        self._next = (self._next + 1) % len(self._engines)
        self._engines[self._next].submit(turn.request, Waiter(turn.first_token, lambda _request: turn.ended()))

    def end_run(self, run_id: str, group: Group) -> None:
        """Runs mean nothing to it."""


class Luftpause:
    """The scheduler's core, with a host that probes and ticks in virtual time."""

    def __init__(self, clock: Clock, engines: Sequence[SimulatedEngine]) -> None:
        self._clock = clock
        self._engines = engines
        self._names = [ReplicaName(f"r{number}") for number in range(len(engines))]
        self._by_name = {name: number for number, name in enumerate(self._names)}
        self._turns: dict[TurnId, Turn] = {}
        self.check: Callable[[State], None] | None = None
        """What looks at the state after each decision."""
        self._costs_s = array("f")
        pool = tuple(PoolReplica(name=name, url="http://127.0.0.1:1", models=(MODEL,)) for name in self._names)
        self.state: State = initial(pool, at=-10.0, first_sequence=0)
        self._probe()
        self._tick()

    def submit(self, turn: Turn) -> None:
        """Asks for admission."""
        turn_id = TurnId(f"{turn.run_id}.{turn.number}")
        self._turns[turn_id] = turn
        asked = Asked(
            turn_id=turn_id,
            run_id=RunId(turn.run_id),
            new_run_id=RunId(turn.run_id),
            caller=Caller(turn.group.caller),
            run_class=_CLASSES[turn.group.run_class],
            model=MODEL,
        )
        self.tell(TurnArrived(self._clock.now, DATAPLANE, asked))

    def end_run(self, run_id: str, group: Group) -> None:
        """The client says that its run has ended."""
        self.tell(RunEnded(self._clock.now, RunId(run_id), Caller(group.caller)))

    def tell(self, event: Event) -> None:
        """One decision, and what it asks for."""
        begun_s = perf_counter()
        self.state, effects = decide(self.state, event)
        self._costs_s.append(perf_counter() - begun_s)
        if self.check is not None:
            self.check(self.state)
        for effect in effects:
            assert isinstance(effect, PlaceTurn), effect
            self._place(effect)

    def costs(self) -> dict[str, float]:
        """Decisions, the mean cost of the first and the last tenth of them in microseconds, and the runs known now.
        Real time: it says whether decisions get dearer as runs get more."""
        count = len(self._costs_s)
        tenth = max(1, count // 10)
        first, last = self._costs_s[:tenth], self._costs_s[-tenth:]
        return {
            "events": count,
            "first_us": 1e6 * sum(first) / len(first),
            "last_us": 1e6 * sum(last) / len(last),
            "runs": len(self.state.runs),
        }

    def _place(self, effect: PlaceTurn) -> None:
        turn_id = effect.turn_id
        turn = self._turns[turn_id]
        engine = self._engines[self._by_name[effect.replica]]

        def first_token() -> None:
            self.tell(FirstTokenSeen(self._clock.now, turn_id))
            turn.first_token()

        def ended(request: Request) -> None:
            del self._turns[turn_id]
            self.tell(
                TurnEnded(
                    self._clock.now,
                    turn_id,
                    turn.calls_tool,
                    (),
                    request.prompt_tokens,
                    request.reply_tokens,
                    request.cached_tokens,
                )
            )
            turn.ended()

        engine.submit(turn.request, Waiter(first_token, ended))
        self._clock.after(0.0, lambda: self.tell(TurnStarted(self._clock.now, turn_id)))

    def _probe(self) -> None:
        for name, simulated in zip(self._names, self._engines, strict=True):
            engine = simulated.engine
            self.tell(
                ReplicaProbed(
                    self._clock.now,
                    name,
                    True,
                    len(engine.running),
                    engine.waiting,
                    engine.cache.usage,
                    None,
                    engine.profile.kv_tokens,
                )
            )
        self._clock.after(PROBE_S, self._probe)

    def _tick(self) -> None:
        self.tell(Ticked(self._clock.now))
        self._clock.after(TICK_S, self._tick)


_ARMS: dict[str, ArmFactory] = {"router": LeastConnections, "round-robin": RoundRobin, "luftpause": Luftpause}
NAMES = (*_ARMS, "live-N", "flight-N")
"""Arms there are; N is a fixed limit, see `naive`. One of your own is a class with `submit` and `end_run`."""


def named(name: str) -> ArmFactory:
    """The arm of that name. Raises ValueError."""
    kind, _, limit = name.partition("-")
    if kind in ("live", "flight") and limit.isdecimal() and int(limit) > 0:
        return live_runs(int(limit)) if kind == "live" else flying_turns(int(limit))
    if name not in _ARMS:
        raise ValueError(f"--arms {name}: expected of {', '.join(NAMES)}")
    return _ARMS[name]
