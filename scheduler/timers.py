"""What has to be looked at when its time comes. Pure; works on a draft.

Timers are kept by the second, those of a client's patience by less, and are lazy: nothing is taken out when it becomes
pointless. A run has exactly one,
never later than TURN_LIMIT_S from now, so that no turn can outlive its limit unnoticed: when it comes, the run is
looked at and the timer set to the next moment that may matter. One-shot turns have one each. A pause has one, for
its reservation. So has a turn that is not to be held for ever.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from common.ids import RunId, TurnId
from scheduler.habits import USUAL
from scheduler.state import RUN_FORGOTTEN_S, TURN_LIMIT_S, Draft, Run, Turn

RunTimer = tuple[Literal["run"], RunId, int]
"""The run and `Run.born`."""
TurnTimer = tuple[Literal["turn"], TurnId, None]
PauseTimer = tuple[Literal["pause"], RunId, float]
"""The run, and when its pause began: a later pause is another one."""
PatienceTimer = tuple[Literal["patience"], TurnId, None]
PATIENCES_A_S = 16
"""A client that waits no longer is told within a sixteenth of a second, where other timers may be a second late."""
Timer = RunTimer | TurnTimer | PauseTimer | PatienceTimer


def set_run_timer(draft: Draft, run: Run) -> None:
    """Looks at the run when it may be forgotten or a turn of it may have passed its limit."""
    latest = draft.now + TURN_LIMIT_S
    if run.in_flight:
        due = min(draft.turns[turn_id].renewed_at for turn_id in run.in_flight) + TURN_LIMIT_S
    else:
        due = latest if run.held else run.active_at + RUN_FORGOTTEN_S
    _set(draft, min(due, latest), ("run", run.run_id, run.born))


def set_turn_timer(draft: Draft, turn: Turn) -> None:
    """Looks at a one-shot turn when it may have passed its limit."""
    _set(draft, turn.renewed_at + TURN_LIMIT_S, ("turn", turn.request.turn_id, None))


def set_pause_timer(draft: Draft, run: Run) -> None:
    """Looks at a run that is expected back when it is not waited for any longer."""
    _set(draft, run.paused_at + draft.habits.get(run.caller, USUAL).patience_s, ("pause", run.run_id, run.paused_at))


def set_patience_timer(draft: Draft, turn: Turn) -> None:
    """Looks at a held turn when it gives up."""
    assert turn.gives_up_at is not None
    at = patience_ends_at(turn.gives_up_at)
    timer: Timer = ("patience", turn.request.turn_id, None)
    draft.timers = draft.timers.set(at, (timer, draft.timers.get(at)))


def patience_ends_at(gives_up_at: float) -> float:
    """When a held turn is looked at that gives up then: what gives up at about the same time is one look."""
    return math.ceil(gives_up_at * PATIENCES_A_S) / PATIENCES_A_S


def take_due(draft: Draft) -> list[Timer]:
    """Takes out all timers whose time has come: by kind and then by their ids,
    so that the outcome depends on nothing else."""
    due: list[Any] = []
    for second in sorted(second for second in draft.timers if second <= draft.now):
        chain = draft.timers[second]
        draft.timers = draft.timers.delete(second)
        while chain is not None:
            due.append(chain[0])
            chain = chain[1]
    return sorted(due)


def is_due(draft: Draft, at: float) -> bool:
    """Whether the moment `at` has come, by the grain of the timers."""
    return math.ceil(at) <= draft.now


def _set(draft: Draft, at: float, timer: Timer) -> None:
    second = math.ceil(at)
    draft.timers = draft.timers.set(second, (timer, draft.timers.get(second)))
