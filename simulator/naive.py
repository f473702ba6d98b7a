"""Affinity proxies with one fixed limit, to compare with: live batch runs a replica, or turns in flight.

Interactive turns go first and are never held; a run stays where its first turn went. What no fixed limit can do is win
in both economies: few live runs win where prefill is dear, many turns in flight where steps are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fakes.engine.batch import Request
from loadgen.workload import Group
from simulator.agents import Turn
from simulator.clock import Clock
from simulator.engines import SimulatedEngine, Waiter


@dataclass(slots=True)
class _Replica:
    engine: SimulatedEngine
    in_flight: int = 0
    batch_runs: set[str] = field(default_factory=set)
    interactive_runs: set[str] = field(default_factory=set)


class FixedLimit:
    """At most `live_runs` batch runs a replica that have begun and not ended, and at most `flying_turns` turns in
    flight a replica as far as batch turns are concerned; None: no limit."""

    live_runs: int | None = None
    flying_turns: int | None = None

    def __init__(self, _clock: Clock, engines: Sequence[SimulatedEngine]) -> None:
        self._replicas = [_Replica(engine) for engine in engines]
        self._homes: dict[str, _Replica] = {}
        self._held: list[Turn] = []

    def submit(self, turn: Turn) -> None:
        """Holds it if there is no room."""
        self._held.append(turn)
        self._fill()

    def end_run(self, run_id: str, group: Group) -> None:
        """Its place is free."""
        home = self._homes.pop(run_id, None)
        if home is not None:
            (home.batch_runs if group.run_class == "batch" else home.interactive_runs).discard(run_id)
            self._fill()

    def _fill(self) -> None:
        # Interactive turns, then the runs with most turns done, then arrival: the sort is stable.
        self._held.sort(key=lambda turn: (turn.group.run_class == "batch", -turn.number))
        for turn in tuple(self._held):
            replica = self._choice(turn)
            if replica is not None:
                self._held.remove(turn)
                self._place(turn, replica)

    def _choice(self, turn: Turn) -> _Replica | None:
        home = self._homes.get(turn.run_id)
        among = self._replicas if home is None else [home]
        if turn.group.run_class == "interactive":
            return min(among, key=lambda replica: (len(replica.interactive_runs), replica.in_flight))
        roomy = [replica for replica in among if self._has_room(replica, turn)]
        return min(roomy, key=lambda replica: replica.in_flight, default=None)

    def _has_room(self, replica: _Replica, turn: Turn) -> bool:
        if self.flying_turns is not None and replica.in_flight >= self.flying_turns:
            return False
        is_new = turn.run_id not in replica.batch_runs
        return self.live_runs is None or not is_new or len(replica.batch_runs) < self.live_runs

    def _place(self, turn: Turn, replica: _Replica) -> None:
        self._homes[turn.run_id] = replica
        (replica.batch_runs if turn.group.run_class == "batch" else replica.interactive_runs).add(turn.run_id)
        replica.in_flight += 1

        def ended(_request: Request) -> None:
            replica.in_flight -= 1
            turn.ended()
            self._fill()

        replica.engine.submit(turn.request, Waiter(turn.first_token, ended))


def live_runs(limit: int) -> type[FixedLimit]:
    """An arm with at most so many live batch runs a replica."""
    return type("LiveRuns", (FixedLimit,), {"live_runs": limit})


def flying_turns(limit: int) -> type[FixedLimit]:
    """An arm with at most so many turns in flight a replica."""
    return type("FlyingTurns", (FixedLimit,), {"flying_turns": limit})
