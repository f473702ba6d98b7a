"""What the scheduler's host has to do. Each effect is frozen and imperative; they are performed in order."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from common.ids import Caller, DataplaneId, ReplicaName, RunId, TurnId
from scheduler.budgets.spend import RunKey, Spend


class PlaceTurn(Struct, frozen=True, gc=False):
    """Tell the dataplane where its turn goes."""

    dataplane: DataplaneId
    turn_id: TurnId
    run_id: RunId | None
    """None for one-shot turns."""
    replica: ReplicaName
    sequence: int
    """Increasing in the order of decisions, also across restarts."""
    held_s: float


class Reason(IntEnum):
    """Why a turn is refused."""

    UNKNOWN_MODEL = 1
    RUN_OF_OTHER_CALLER = 2
    NOT_SOON = 3
    """It would be held for longer than its client waits."""
    NEVER_FITS = 4
    """It is larger than the window of every replica that serves its model."""
    DEADLINE = 5
    """It cannot be placed before its deadline."""
    OVER_BUDGET = 6
    """Its run has not enough money left."""
    NO_FALLBACK = 7
    """None of the replicas it may fall back to takes it now."""
    MODELS_UNKNOWN = 8
    """No replica of its kind has told its models: whether any serves its own is not known."""


class RefuseTurn(Struct, frozen=True, gc=False):
    """Tell the dataplane that its turn will not be placed."""

    dataplane: DataplaneId
    turn_id: TurnId
    reason: Reason
    message: str
    retry_after_s: float | None = None
    """NOT_SOON: when it would be placed, as far as can be known."""


class LogExpiry(Struct, frozen=True, gc=False):
    """Log that a turn in flight was dropped since nobody reported or renewed it in time."""

    turn_id: TurnId
    replica: ReplicaName


class RecordSpend(Struct, frozen=True, gc=False):
    """Make durable what a run has spent, and what limits it, before the report that tells of it is acknowledged."""

    turn_id: TurnId | None
    """The turn whose cost was added; None: none was."""
    run: RunKey
    spend: Spend
    """Of the run, altogether."""


class TellRunEnded(Struct, frozen=True, gc=False):
    """A dataplane told of a run that ended while its stream was lost: it need not tell of it again."""

    dataplane: DataplaneId
    run_id: RunId
    caller: Caller


Effect = PlaceTurn | RefuseTurn | LogExpiry | RecordSpend | TellRunEnded
