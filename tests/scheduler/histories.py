"""Histories of the scheduler, made by chance from a seed: arrivals, endings, failures, probes, lost streams, time."""

from __future__ import annotations

import random

from common.ids import Caller, DataplaneId, Model, ReplicaName, RunId, TurnId
from common.pool import Replica
from scheduler.events import (
    DataplaneResynced,
    Event,
    FirstTokenSeen,
    KnownRun,
    KnownTurn,
    Phase,
    ReplicaProbed,
    Request,
    RunClass,
    RunEnded,
    StreamLost,
    Ticked,
    TurnAbandoned,
    TurnArrived,
    TurnEnded,
    TurnFailed,
    TurnsRenewed,
    TurnStarted,
)
from scheduler.state import State

POOL = (
    Replica(ReplicaName("a"), "http://a", models=("m",), max_in_flight=2),
    Replica(ReplicaName("b"), "http://b", models=("m", "n"), max_in_flight=3),
    Replica(ReplicaName("c"), "http://c", models=("m",)),
    Replica(ReplicaName("k"), "http://k", kind="one-shot", models=("m",), max_in_flight=1),
    Replica(ReplicaName("l"), "http://l", max_in_flight=2),
    Replica(ReplicaName("o"), "http://o", kind="one-shot"),
)
KV_TOKENS = {"b": 900, "c": 2_500}
LEARNED = ((), (Model("learned"),), (Model("m"), Model("learned")))
"""What the replicas l and o tell, which learn their models."""
DATAPLANES = (DataplaneId("d1"), DataplaneId("d2"))
CALLERS = tuple(map(Caller, ("", "x", "y")))


class History:
    """Draws one event after another; looks at the state only to name turns and runs that exist (mostly)."""

    def __init__(self, chance: random.Random, *, resyncs: bool) -> None:
        self._chance = chance
        self._resyncs = resyncs
        self._turns = 0
        self._at = 0.0

    def next(self, state: State) -> Event:
        """The next event after `state`."""
        chance = self._chance
        self._at += chance.choice((0.0, 0.01, 0.5, 1.0, 30.0) if chance.random() < 0.95 else (700.0, 2000.0))
        kind = chance.choices(
            (
                "arrive",
                "again",
                "start",
                "first",
                "end",
                "fail",
                "abandon",
                "renew",
                "over",
                "probe",
                "tick",
                "lost",
                "resync",
            ),
            (30, 2, 4, 4, 24, 4, 4, 2, 3, 12, 12, 1.5, 2 if self._resyncs else 0),
        )[0]
        return self._make(kind, state)

    def _make(self, kind: str, state: State) -> Event:  # noqa: PLR0912 - a line a kind
        at, chance = self._at, self._chance
        flying = sorted(turn_id for turn_id, turn in state.turns.items() if turn.replica is not None)
        known = sorted(state.turns)
        turn_id = chance.choice(flying) if flying and chance.random() < 0.95 else TurnId("t1")
        match kind:
            case "again" if known:
                turn = state.turns[chance.choice(known)]
                dataplane = turn.dataplane if chance.random() < 0.8 else chance.choice(DATAPLANES)
                return TurnArrived(at, dataplane, turn.request)
            case "start":
                return TurnStarted(at, turn_id)
            case "first":
                return FirstTokenSeen(at - chance.choice((0.0, 0.005, 0.3)), turn_id)
            case "end":
                calls = tuple(f"call{chance.randrange(12)}" for _ in range(chance.randrange(3)))
                usage = (chance.randrange(50, 600), chance.randrange(60), chance.choice((None, 0, 40)))
                told = usage if chance.random() < 0.8 else (None, None, None)
                return TurnEnded(
                    at - chance.choice((0.0, 0.005)), turn_id, chance.random() < 0.6 or bool(calls), calls, *told
                )
            case "fail":
                return TurnFailed(at, turn_id)
            case "abandon":
                turn_id = chance.choice(known) if known else turn_id
                dataplane = state.turns[turn_id].dataplane if known and chance.random() < 0.9 else DATAPLANES[0]
                return TurnAbandoned(at, dataplane, turn_id, chance.choice((None, None, None, Caller("z"))))
            case "renew":
                return TurnsRenewed(at, tuple(flying[:2]))
            case "over":
                run_id = chance.choice(sorted(state.runs)) if state.runs else RunId("r1")
                caller = state.runs[run_id].caller if run_id in state.runs and chance.random() < 0.9 else Caller("z")
                return RunEnded(at, run_id, caller)
            case "probe":
                return self._probe(at)
            case "tick":
                return Ticked(at)
            case "lost":
                return StreamLost(at, chance.choice(DATAPLANES))
            case "resync":
                return self._resync(state)
            case _:
                return TurnArrived(at, chance.choice(DATAPLANES), self._request(), chance.choice((0.0, 0.0, 5.0)))

    def _request(self) -> Request:
        chance = self._chance
        self._turns += 1
        named = chance.random() < 0.7
        number = chance.randrange(8)
        return Request(
            turn_id=TurnId(f"t{self._turns}"),
            run_id=RunId(f"r{number}") if named else None,
            new_run_id=RunId(f"n{self._turns}"),
            caller=CALLERS[number % 3] if named and chance.random() < 0.95 else chance.choice(CALLERS),
            run_class=chance.choice((RunClass.INTERACTIVE, RunClass.BATCH)),
            model=Model(chance.choices(("m", "n", "learned", "nobody"), (60, 20, 15, 5))[0]),
            one_shot=chance.random() < 0.1,
            tool_call_ids=tuple(f"call{chance.randrange(12)}" for _ in range(chance.randrange(3))),
        )

    def _probe(self, at: float) -> ReplicaProbed:
        chance = self._chance
        told = chance.random() < 0.7
        name = ReplicaName(chance.choice("abcklo"))
        learned = chance.choice(LEARNED) if name in "lo" and chance.random() < 0.3 else None
        return ReplicaProbed(
            at,
            name,
            healthy=chance.random() < 0.85,
            running=chance.randrange(4) if told else None,
            waiting=chance.choice((0, 0, 2)) if told else None,
            kv_usage=chance.choice((0.3, 0.95)) if told else None,
            models=learned,
            kv_tokens=KV_TOKENS.get(name) if told else None,
        )

    def _resync(self, state: State) -> DataplaneResynced:
        """What a dataplane would tell that knows some of the state, and something else of the rest."""
        chance = self._chance
        name = chance.choice(DATAPLANES)
        runs = [
            KnownRun(
                run_id,
                run.caller,
                run.run_class,
                chance.choice(tuple(Phase)),
                ReplicaName(chance.choice("abclq")),
                run.sequence + chance.choice((-1, 0, 1)),
                run.turns_done + chance.randrange(2),
                age_s=chance.choice((0.0, 5.0, 100.0, 3000.0)),
                tool_call_ids=(f"call{chance.randrange(12)}",),
            )
            for run_id, run in sorted(state.runs.items())
            if chance.random() < 0.5
        ]
        turns = [
            KnownTurn(
                _with_run(turn.request, turn.run_id),
                turn.replica or ReplicaName(chance.choice("abckl")),
                turn.sequence,
                1.0,
            )
            for _, turn in sorted(state.turns.items())
            if turn.dataplane == name and chance.random() < 0.7 and turn.request.one_shot == (turn.replica == "k")
        ]
        return DataplaneResynced(self._at, name, tuple(runs), tuple(turns))


def _with_run(request: Request, run_id: RunId | None) -> Request:
    return Request(
        request.turn_id, run_id, request.new_run_id, request.caller, request.run_class, request.model, request.one_shot
    )
