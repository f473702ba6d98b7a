"""The parts of one resync, read and collected until they are applied together. No I/O. Read next: `wire`."""

from __future__ import annotations

from common.ids import DataplaneId
from protos.scheduler_pb2 import ResyncRequest
from scheduler import wire
from scheduler.events import KnownLimits, KnownRun, KnownTurn
from scheduler.state import State

RUNS_MAX = 1_000_000
TURNS_MAX = 200_000


class ResyncParts:
    """What one dataplane knows, as far as it has told."""

    limit = f"resync: expected at most {RUNS_MAX} runs and {TURNS_MAX} turns"

    def __init__(self) -> None:
        self._runs: list[KnownRun] = []
        self._turns: list[KnownTurn] = []
        self._limits: list[KnownLimits] = []

    def add(self, part: ResyncRequest) -> list[wire.Fault]:
        """Takes what is right of `part`; what is wrong is returned."""
        faults: list[wire.Fault] = []
        for known_run in part.runs:
            run = wire.read_known_run(known_run)
            if isinstance(run, wire.Fault):
                faults.append(run)
            else:
                self._runs.append(run)
        for known_turn in part.turns:
            turn = wire.read_known_turn(known_turn)
            if isinstance(turn, wire.Fault):
                faults.append(turn)
            else:
                self._turns.append(turn)
        for known_limits in part.limits:
            limits = wire.read_known_limits(known_limits)
            if isinstance(limits, wire.Fault):
                faults.append(limits)
            else:
                self._limits.append(limits)
        return faults

    @property
    def is_too_large(self) -> bool:
        """Whether it exceeds `limit`."""
        return len(self._runs) > RUNS_MAX or max(len(self._turns), len(self._limits)) > TURNS_MAX

    def whole(self) -> tuple[tuple[KnownRun, ...], tuple[KnownTurn, ...]]:
        """All runs and turns in flight."""
        return tuple(self._runs), tuple(self._turns)

    def limits(self) -> tuple[KnownLimits, ...]:
        """What replicas last told of their rate limits."""
        return tuple(self._limits)


def taken_over(
    state: State, dataplane: DataplaneId, runs: tuple[KnownRun, ...], turns: tuple[KnownTurn, ...]
) -> tuple[int, int]:
    """How many of `runs` and `turns` the `state`, to which they were applied, has as they were told."""
    runs_taken = sum(
        1
        for known in runs
        if (run := state.runs.get(known.run_id)) and (run.caller, run.sequence) == (known.caller, known.sequence)
    )
    turns_taken = sum(
        1
        for known in turns
        if (turn := state.turns.get(known.request.turn_id))
        and (turn.dataplane, turn.replica) == (dataplane, known.replica)
    )
    return runs_taken, turns_taken
