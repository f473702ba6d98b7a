"""What a run's journal is made of: frozen records, each of one kind and version, as lines of JSON. Pure.

A run is the fold of its records (`run`), so a record says what happened and never what to do. The order in which they
are written is what makes a run survive: the model's reply before the first intent of its calls, an intent before its
call starts, an outcome per call, an answer of a person before the tool that it allows.

Must not read what it does not know: a version or kind of another release is refused, since skipping it would silently
forget an effect.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec
from msgspec import Struct

from runtime.tool_specs import EffectKind

VERSION = 1
"""Of all records written now. It rises when a kind is added or a field changes its meaning."""


class JournalError(Exception):
    """A journal cannot be read: a record of another version, or one that cannot follow those before it."""


class State(StrEnum):
    """Where a run is. The last five are its ends."""

    RUNNING = "Running"
    AWAITING_APPROVAL = "AwaitingApproval"
    SLEEPING = "Sleeping"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    BUDGET_EXCEEDED = "BudgetExceeded"
    MOVED = "Moved"
    """It was exported: this store has it no longer, and it goes on elsewhere."""

    @property
    def is_end(self) -> bool:
        """Whether a run in this state goes on no more."""
        return self in _ENDS


_ENDS = frozenset((State.COMPLETED, State.FAILED, State.CANCELLED, State.BUDGET_EXCEEDED, State.MOVED))


class RunClass(StrEnum):
    """Whether a person waits for the run."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """A budget over a run and all below it; None: not limited."""

    tokens: int | None = None
    """Of prompts and completions."""
    tool_calls: int | None = None
    seconds: float | None = None
    """Since the run was started, downtime included."""


class Order(Struct, frozen=True, forbid_unknown_fields=True):
    """What a run was asked to do."""

    task: str
    model: str
    run_class: RunClass = RunClass.INTERACTIVE
    system: str | None = None
    tool_calls_max: int = 8
    """When spent, the model must answer. 0: no tools are offered."""
    tools: tuple[str, ...] | None = None
    """Names of the tools it is offered; None: all."""
    tokens_max: int = 256
    """Of one reply; 0: the engine decides."""
    parallel_tool_calls: bool = False
    limits: Limits = Limits()
    approve_tools: tuple[str, ...] = ()
    """Tools that a person must allow, beside those that say themselves that they destroy."""

    @property
    def tools_needed(self) -> tuple[str, ...] | None:
        """Names of the tools that its turns are offered; None: all."""
        return self.tools if self.tool_calls_max else ()


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call that a reply asked for, and what was decided about it before the reply was journaled."""

    id: str
    """Unique in its reply."""
    name: str
    arguments: str
    """A JSON object, as the tool will get it; `{}` where the model wrote none that can be read."""
    effect: EffectKind = EffectKind.AT_MOST_ONCE
    needs_approval: bool = False
    refusal: str | None = None
    """It will not be made; the model reads this instead of a result."""


class Record(Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """What all records have."""

    version: int = VERSION
    at: float
    """Seconds since 1970 on the wall clock: it must mean something after a restart."""


class Started(Record, frozen=True, kw_only=True, tag="started"):
    """The first record."""

    run_id: str
    parent: str | None
    root: str
    """The run at the top of its tree; itself, if it has no parent."""
    caller: str
    order: Order
    traceparent: str | None = None
    forked_from: str | None = None
    """The run whose first steps it has, with those records that follow at once."""


class Replied(Record, frozen=True, kw_only=True, tag="replied"):
    """A model turn ended with a whole reply. Begins step `step`."""

    step: int
    """From 0."""
    content: str
    calls: tuple[Call, ...] = ()
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    duration_s: float = 0.0
    missing_servers: tuple[str, ...] = ()
    """Tool servers whose tools it was not offered, since they were not connected and nothing was known of them."""


class Intended(Record, frozen=True, kw_only=True, tag="intended"):
    """A call is about to start. Whether it did is not known until `Returned`."""

    step: int
    call: int
    """Its position in the reply, from 0."""
    key: str
    """`effect_key` of the three."""


class Returned(Record, frozen=True, kw_only=True, tag="returned"):
    """A call ended, and this is what the model reads of it. It is never made again."""

    step: int
    call: int
    text: str
    failed: bool = False
    duration_s: float = 0.0


class LostTrack(Record, frozen=True, kw_only=True, tag="lost-track"):
    """Nobody knows whether a call took effect: a person has to say what is done about it."""

    step: int
    call: int
    known: str
    """What is known, in a sentence."""
    recovery_id: str | None = None
    """The start of a runtime that found this; None: it was found at once."""


class Answered(Record, frozen=True, kw_only=True, tag="answered"):
    """A person allowed or declined a call, or its repetition where its outcome is unknown."""

    step: int
    call: int
    allow: bool


class Ended(Record, frozen=True, kw_only=True, tag="ended"):
    """The last record."""

    state: State
    text: str
    """The answer if it completed, else why it did not."""


AnyRecord = Started | Replied | Intended | Returned | LostTrack | Answered | Ended


class _Head(Struct):
    version: int
    kind: str


_KINDS = {str(cls.__struct_config__.tag) for cls in AnyRecord.__args__}
_encoder = msgspec.json.Encoder()
_head_decoder = msgspec.json.Decoder(_Head)
_decoder = msgspec.json.Decoder(AnyRecord)


def encode(record: AnyRecord) -> bytes:
    """The record as it is stored."""
    return _encoder.encode(record)


def decode(raw: bytes) -> AnyRecord:
    """The record that `encode` stored. Raises JournalError where version, kind or any field is not of this release."""
    try:
        head = _head_decoder.decode(raw)
        if head.version != VERSION:
            raise JournalError(f"a record of version {head.version}; this release reads version {VERSION}")
        if head.kind not in _KINDS:
            raise JournalError(f"a record of unknown kind '{head.kind}'")
        return _decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise JournalError(f"a record that cannot be read: {error}") from None


def effect_key(run_id: str, step: int, call: int) -> str:
    """The idempotency key of a call: the same after any restart, and of no other call."""
    return hashlib.sha256(f"{run_id}/{step}/{call}".encode()).hexdigest()[:32]
