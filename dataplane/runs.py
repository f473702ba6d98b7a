"""What this dataplane remembers of runs, so that a scheduler that restarts can be told. Pure: every call carries its
time.

It decides nothing; the scheduler's own state is the truth while it lives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from protos import turn_pb2

RUN_IDLE_S_MAX = 30 * 60.0
"""An idle run is forgotten after this long; the scheduler's limit is the same."""

RUNS_MAX = 100_000
"""Most runs remembered; beyond it the one that was idle longest goes."""
_LOOKED_AT_MAX = 16
"""How many that are in flight or paused are passed over for one that is idle, before the oldest goes all the same."""


class _Run:
    __slots__ = (
        "caller",
        "in_flight",
        "paused",
        "replica",
        "run_class",
        "sequence",
        "tool_call_ids",
        "touched_at",
        "turns_done",
    )

    def __init__(self) -> None:
        self.caller = ""
        self.run_class = turn_pb2.RUN_CLASS_INTERACTIVE
        self.replica = ""
        self.sequence = 0
        self.in_flight = 0
        self.paused = False
        self.turns_done = 0
        self.touched_at = 0.0
        self.tool_call_ids: tuple[str, ...] = ()


class RunTable:
    """Runs by their ids, the one that was touched last at the end."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def placed(self, at: float, run_id: str, turn: turn_pb2.Turn, placement: turn_pb2.Placement) -> None:
        """A turn of the run was placed."""
        run = self._touch(at, run_id) or self._add(at, run_id)
        run.caller = turn.caller
        run.run_class = turn.run_class
        run.replica = placement.replica
        run.sequence = placement.sequence
        run.in_flight += 1

    def ended(self, at: float, run_id: str, has_tool_calls: bool, tool_call_ids: tuple[str, ...]) -> None:
        """A turn of the run ended: the run is paused if the reply had tool calls. A run that is forgotten stays so."""
        run = self._touch(at, run_id)
        if run is None:
            return
        run.in_flight = max(0, run.in_flight - 1)
        run.paused = has_tool_calls
        run.tool_call_ids = tool_call_ids
        run.turns_done += 1

    def failed(self, at: float, run_id: str) -> None:
        """A turn of the run failed: the run is idle. A run that is forgotten stays so."""
        run = self._touch(at, run_id)
        if run is None:
            return
        run.in_flight = max(0, run.in_flight - 1)
        run.paused = False

    def caller(self, run_id: str) -> str | None:
        """Whose run it is; None where it is not known here."""
        run = self._runs.get(run_id)
        return run.caller if run is not None else None

    def forget(self, run_id: str, caller: str, sequence: float = math.inf) -> None:
        """The run will not be continued. Only its own caller ends it; one placed after `sequence` is a new one."""
        run = self._runs.get(run_id)
        if run is not None and run.caller == caller and run.sequence <= sequence:
            del self._runs[run_id]

    def sweep(self, at: float) -> None:
        """Forgets runs that were idle too long; the time limit of one in flight is the turn's own."""
        for run_id, run in list(self._runs.items()):
            if at - run.touched_at <= RUN_IDLE_S_MAX:
                return
            if not run.in_flight:
                del self._runs[run_id]

    def known(self, at: float) -> Iterator[turn_pb2.KnownRun]:
        """Every run as the scheduler is told of it, oldest first. The table must not change meanwhile."""
        for run_id, run in self._runs.items():
            yield turn_pb2.KnownRun(
                run_id=run_id,
                caller=run.caller,
                run_class=run.run_class,
                phase=_phase(run),
                replica=run.replica,
                sequence=run.sequence,
                turns_done=run.turns_done,
                age_ms=max(0, round((at - run.touched_at) * 1000)),
                tool_call_ids=run.tool_call_ids,
            )

    def _touch(self, at: float, run_id: str) -> _Run | None:
        run = self._runs.pop(run_id, None)
        if run is not None:
            self._runs[run_id] = run
            run.touched_at = at
        return run

    def _add(self, at: float, run_id: str) -> _Run:
        runs = self._runs
        if len(runs) >= RUNS_MAX:
            self._make_room()
        run = runs[run_id] = _Run()
        run.touched_at = at
        return run

    def _make_room(self) -> None:
        """Forgets the run that was touched longest ago and has nothing to lose: a paused one has its place."""
        for _ in range(_LOOKED_AT_MAX):
            run_id, run = next(iter(self._runs.items()))
            if not run.in_flight and not run.paused:
                break
            del self._runs[run_id]
            self._runs[run_id] = run
        del self._runs[next(iter(self._runs))]


def _phase(run: _Run) -> turn_pb2.RunPhase.ValueType:
    if run.in_flight:
        return turn_pb2.RUN_PHASE_GENERATING
    return turn_pb2.RUN_PHASE_PAUSED if run.paused else turn_pb2.RUN_PHASE_IDLE
