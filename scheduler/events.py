"""What the scheduler is told. Each event is frozen, in the past tense, and carries its time.

`at` is seconds on the host's monotonic clock; only differences mean anything. `core.decide` reads no other clock. That
of a report may be earlier than that of an event before it: it waited for company on its way.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from common.ids import Caller, DataplaneId, Model, ReplicaName, RunId, TurnId
from scheduler.budgets.headers import LimitsTold


class RunClass(IntEnum):
    """Whether a person waits. The lower value goes first."""

    INTERACTIVE = 0
    BATCH = 1


class Phase(IntEnum):
    """Where a run is between its turns."""

    GENERATING = 1
    PAUSED = 2
    IDLE = 3


class Request(Struct, frozen=True, gc=False):
    """What a turn asks for."""

    turn_id: TurnId
    run_id: RunId | None
    """The run that the client named."""
    new_run_id: RunId
    """The id of the run if the client named none and no tool call id identifies one."""
    caller: Caller
    run_class: RunClass
    model: Model
    one_shot: bool = False
    """Wants a one-shot replica; belongs to no run."""
    tool_call_ids: tuple[str, ...] = ()
    """Ids found in its messages, newest first."""
    prompt_bytes: int = 0
    """Size of the request's body, from which its prompt tokens are predicted."""
    max_tokens: int | None = None
    """Most completion tokens that it allows."""
    wait_s_max: float | None = None
    """It is refused rather than held for longer."""
    deadline_s: float | None = None
    """Seconds from its arrival after which nobody wants it any more."""
    budget_usd: float | None = None
    """What its run may cost altogether."""
    tool: str = ""
    """Name of the tool whose result its messages end with; empty: none."""
    fallbacks: tuple[ReplicaName, ...] = ()
    """Only these replicas, in this order, and at once: another one failed it."""


class TurnArrived(Struct, frozen=True, gc=False):
    """A client asks for a turn's admission; the same turn id again repeats the answer."""

    at: float
    dataplane: DataplaneId
    request: Request
    held_s: float = 0.0
    """Seconds it was held before, by a scheduler that is gone."""


class TurnAbandoned(Struct, frozen=True, gc=False):
    """The client left before it saw a placement. If the turn was placed meanwhile, its slot is freed."""

    at: float
    dataplane: DataplaneId
    """Who asked for the turn; another's is left alone."""
    turn_id: TurnId
    caller: Caller | None = None
    """Whose turn it was to be, which then is no other caller's; None: not told."""


class TurnStarted(Struct, frozen=True, gc=False):
    """The request was sent to the engine."""

    at: float
    turn_id: TurnId


class FirstTokenSeen(Struct, frozen=True, gc=False):
    """The first token arrived."""

    at: float
    turn_id: TurnId
    limits: LimitsTold | None = None
    """What the answer's headers told of its replica's limits; None: not told here."""


class TurnEnded(Struct, frozen=True, gc=False):
    """The reply is whole."""

    at: float
    turn_id: TurnId
    has_tool_calls: bool
    tool_call_ids: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    limits: LimitsTold | None = None
    """As in FirstTokenSeen."""


class TurnFailed(Struct, frozen=True, gc=False):
    """There is no whole reply: unreachable, refused, broken off, or the client left."""

    at: float
    turn_id: TurnId
    status: int | None = None
    """HTTP status that the engine answered; 0: it could not be reached; None: not about that."""
    limits: LimitsTold | None = None
    """As in FirstTokenSeen."""


class TurnsRenewed(Struct, frozen=True, gc=False):
    """These turns are still in flight: their time limit starts anew."""

    at: float
    turn_ids: tuple[TurnId, ...]


class RunEnded(Struct, frozen=True, gc=False):
    """The run will not be continued. Only its own caller ends it."""

    at: float
    run_id: RunId
    caller: Caller


class ReplicaProbed(Struct, frozen=True, gc=False):
    """What one probe of a replica told."""

    at: float
    replica: ReplicaName
    healthy: bool
    running: int | None = None
    """Requests its engines run, summed over `load_from`; None where no engine tells."""
    waiting: int | None = None
    """Requests its engines have queued."""
    kv_usage: float | None = None
    """Share of the KV cache in use, the mean over the engines, 0 to 1."""
    models: tuple[Model, ...] | None = None
    """Models it serves, where they are learned; None: not told this time."""
    kv_tokens: int | None = None
    """Tokens that the engines' KV caches hold together."""


class StreamLost(Struct, frozen=True, gc=False):
    """A dataplane's stream is gone: its held turns are dropped, those in flight wait for its resync."""

    at: float
    dataplane: DataplaneId


class KnownRun(Struct, frozen=True, gc=False):
    """A run as a dataplane remembers it."""

    run_id: RunId
    caller: Caller
    run_class: RunClass
    phase: Phase
    replica: ReplicaName
    sequence: int
    turns_done: int
    age_s: float
    """Seconds since its last turn was placed or ended."""
    tool_call_ids: tuple[str, ...] = ()


class KnownTurn(Struct, frozen=True, gc=False):
    """A turn in flight as its dataplane knows it; `request.run_id` is its run."""

    request: Request
    replica: ReplicaName
    sequence: int
    age_s: float
    """Seconds since its placement."""
    first_token: bool = False


class KnownLimits(Struct, frozen=True, gc=False):
    """What a replica last told a dataplane of its limits."""

    replica: ReplicaName
    limits: LimitsTold
    age_s: float
    """Seconds since then."""


class DataplaneResynced(Struct, frozen=True, gc=False):
    """All that a dataplane knows, at once. Its turns in flight that are not named here are dropped."""

    at: float
    dataplane: DataplaneId
    runs: tuple[KnownRun, ...]
    turns: tuple[KnownTurn, ...]
    limits: tuple[KnownLimits, ...] = ()


class Ticked(Struct, frozen=True, gc=False):
    """A second has passed, or a moment has come that `State.dry` names."""

    at: float


Event = (
    TurnArrived
    | TurnAbandoned
    | TurnStarted
    | FirstTokenSeen
    | TurnEnded
    | TurnFailed
    | TurnsRenewed
    | RunEnded
    | ReplicaProbed
    | StreamLost
    | DataplaneResynced
    | Ticked
)
