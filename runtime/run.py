"""A run as the fold of its journal records. Pure.

    run = fold(records)          a run as its journal tells it
    run = apply(run, record)     one record later
    conversation(run)            what the model is shown

Theory of operation. A run is a list of steps; a step is a reply and the calls it asked for. A call is open until it has
an outcome: what it returned, why it was refused, or that a person declined it. The model's next turn comes when no call
of the last step is open, so a conversation consists of whole rounds and is valid for every provider; where a run ended
in the middle of a round, its open calls are closed with a text that says so.

Must not decide what comes next: that is `agent`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, assert_never

import msgspec

from runtime.records import (
    Answered,
    AnyRecord,
    Call,
    Ended,
    Intended,
    JournalError,
    LostTrack,
    Order,
    Replied,
    Returned,
    Started,
    State,
    effect_key,
)

DECLINED = "Error: the user declined this tool call"
NOT_REPEATED = "Error: it is unknown whether this tool call took effect, and the user declined to repeat it"
LEFT_OPEN = "Error: the run ended before this tool call was made"
LEFT_IN_PROGRESS = "Error: the run ended while this tool call was in progress; it is unknown whether it took effect"


SUMMARY_CHARS = 200
"""How much of a task lists of runs show, and is kept in memory of an ended run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended: what the model reads."""

    text: str
    failed: bool


@dataclass(frozen=True, slots=True)
class CallState:
    """One call of a step."""

    call: Call
    outcome: Outcome | None = None
    """None: the call is open."""
    intended: bool = False
    """It may have been started."""
    allowed: bool = False
    """A person allowed it."""
    unknown: str | None = None
    """Whether it took effect is unknown, and this is what is known."""
    answers: int = 0
    """How often a person has answered about it."""

    @property
    def awaits_answer(self) -> bool:
        """Whether a person has to answer before anything is done about it."""
        if self.outcome is not None:
            return False
        return self.unknown is not None or (self.call.needs_approval and not self.allowed)

    @property
    def in_doubt(self) -> bool:
        """Whether it may have had its effect: it has begun, or a person allowed to repeat what is unknown."""
        return self.intended or self.answers > int(self.call.needs_approval)


@dataclass(frozen=True, slots=True)
class StepState:
    """A reply and what became of its calls."""

    content: str
    calls: tuple[CallState, ...]
    finish_reason: str

    @property
    def open_calls(self) -> tuple[int, ...]:
        """Positions of the calls without outcome."""
        return tuple(position for position, each in enumerate(self.calls) if each.outcome is None)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run has used, by its journal."""

    turns: int = 0
    tool_calls: int = 0
    """Calls that replies asked for, refused and declined ones too."""
    failed_tool_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    turn_s: float = 0.0
    tool_s: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.turns + other.turns,
            self.tool_calls + other.tool_calls,
            self.failed_tool_calls + other.failed_tool_calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.turn_s + other.turn_s,
            self.tool_s + other.tool_s,
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.turns - other.turns,
            self.tool_calls - other.tool_calls,
            self.failed_tool_calls - other.failed_tool_calls,
            self.prompt_tokens - other.prompt_tokens,
            self.completion_tokens - other.completion_tokens,
            self.cached_tokens - other.cached_tokens,
            self.turn_s - other.turn_s,
            self.tool_s - other.tool_s,
        )

    @property
    def tokens(self) -> int:
        """Of prompts and completions."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class RunState:
    """A run after `length` records."""

    run_id: str
    parent: str | None
    root: str
    caller: str
    order: Order
    traceparent: str | None
    forked_from: str | None
    started_at: float
    updated_at: float
    """Time of the last record."""
    length: int = 1
    steps: tuple[StepState, ...] = ()
    usage: Usage = Usage()
    end: Ended | None = None
    missing_servers: tuple[str, ...] = ()
    """Tool servers whose tools a turn of it lacked, since they were not connected and nothing was known of them."""
    waits_for: tuple[str, ...] = ()
    """Tool servers that it waits for now, before it goes on. In no record: whoever goes on with it finds out anew."""

    @property
    def state(self) -> State:
        """Where it is."""
        if self.end is not None:
            return self.end.state
        if self.steps and any(each.awaits_answer for each in self.steps[-1].calls):
            return State.AWAITING_APPROVAL
        return State.SLEEPING if self.waits_for else State.RUNNING

    @property
    def waiting_calls(self) -> int:
        """Calls that its last reply asked for and that have neither begun nor an outcome."""
        last = self.steps[-1].calls if self.steps else ()
        return sum(each.outcome is None and not each.intended for each in last)

    def summary(self) -> RunState:
        """What is kept in memory of an ended run: all but its conversation, which stays in the journal."""
        order = msgspec.structs.replace(self.order, task=self.order.task[:SUMMARY_CHARS], system=None)
        return replace(self, steps=(), order=order)


def fold(records: Iterable[AnyRecord]) -> RunState:
    """The run that `records` tell. Raises JournalError if they are no journal."""
    run: RunState | None = None
    for record in records:
        run = apply(run, record)
    if run is None:
        raise JournalError("a journal without records")
    return run


def apply(run: RunState | None, record: AnyRecord) -> RunState:
    """The run one record later; `run` is None before the first. Raises JournalError if it cannot follow."""
    if isinstance(record, Started):
        if run is not None:
            raise JournalError(f"record {run.length}: a run starts once")
        return RunState(
            run_id=record.run_id,
            parent=record.parent,
            root=record.root,
            caller=record.caller,
            order=record.order,
            traceparent=record.traceparent,
            forked_from=record.forked_from,
            started_at=record.at,
            updated_at=record.at,
        )
    if run is None:
        raise JournalError("record 0: expected the start of the run")
    if run.end is not None:
        raise JournalError(f"record {run.length}: the run has ended")
    match record:
        case Replied():
            run = _replied(run, record)
        case Ended():
            run = replace(run, end=record)
        case Intended() | Returned() | LostTrack() | Answered():
            run = _called(run, record)
        case _:
            assert_never(record)
    return replace(run, length=run.length + 1, updated_at=record.at, waits_for=())


def conversation(run: RunState) -> list[dict[str, Any]]:
    """The messages of the run's whole rounds, as a chat completion takes them: each tool call has its result.

    A round in progress is left out; in a run that ended in the middle of one, it is closed.
    """
    messages: list[dict[str, Any]] = []
    if run.order.system is not None:
        messages.append({"role": "system", "content": run.order.system})
    messages.append({"role": "user", "content": run.order.task})
    for step in run.steps:
        if step.open_calls and run.end is None:
            break
        messages.extend(_messages(step))
    return messages


def _messages(step: StepState) -> Iterable[dict[str, Any]]:
    assistant: dict[str, Any] = {"role": "assistant", "content": step.content}
    if step.calls:
        assistant["tool_calls"] = [
            {
                "id": each.call.id,
                "type": "function",
                "function": {"name": each.call.name, "arguments": each.call.arguments},
            }
            for each in step.calls
        ]
    yield assistant
    for each in step.calls:
        left = LEFT_IN_PROGRESS if each.intended else LEFT_OPEN
        text = left if each.outcome is None else each.outcome.text
        yield {"role": "tool", "tool_call_id": each.call.id, "content": text}


def _replied(run: RunState, record: Replied) -> RunState:
    if record.step != len(run.steps):
        raise JournalError(f"record {run.length}: a reply of step {record.step} where step {len(run.steps)} is next")
    if run.steps and (run.steps[-1].open_calls or not run.steps[-1].calls):
        raise JournalError(f"record {run.length}: a reply where no turn was due")
    calls = tuple(CallState(call, Outcome(call.refusal, True) if call.refusal else None) for call in record.calls)
    usage = Usage(
        turns=1,
        tool_calls=len(calls),
        failed_tool_calls=sum(each.outcome is not None for each in calls),
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        cached_tokens=record.cached_tokens,
        turn_s=record.duration_s,
    )
    step = StepState(record.content, calls, record.finish_reason)
    missing = tuple(sorted({*run.missing_servers, *record.missing_servers}))
    return replace(run, steps=(*run.steps, step), usage=run.usage + usage, missing_servers=missing)


def _called(run: RunState, record: Intended | Returned | LostTrack | Answered) -> RunState:
    """The run after a record of one open call of its last step."""
    where = f"record {run.length}: {type(record).__name__} of step {record.step}, call {record.call}"
    if record.step != len(run.steps) - 1 or not 0 <= record.call < len(run.steps[-1].calls):
        raise JournalError(f"{where}, which is not of the last step")
    before = run.steps[-1].calls[record.call]
    if before.outcome is not None:
        raise JournalError(f"{where}, which has its outcome")
    match record:
        case Intended():
            if record.key != effect_key(run.run_id, record.step, record.call):
                raise JournalError(f"{where} has the key of another call")
            if before.intended or before.awaits_answer:
                raise JournalError(f"{where}, which must not start")
            after = replace(before, intended=True)
        case Returned():
            if not before.intended:
                raise JournalError(f"{where}, which was never started")
            after = replace(before, outcome=Outcome(record.text, record.failed), unknown=None)
        case LostTrack():
            if not before.intended:
                raise JournalError(f"{where}, which was never started")
            after = replace(before, unknown=record.known)
        case Answered():
            if not before.awaits_answer:
                raise JournalError(f"{where}, of which nothing was asked")
            after = _answered(before, record.allow)
        case _:
            assert_never(record)
    return _with_call(run, record.call, after, record.duration_s if isinstance(record, Returned) else 0.0)


def _answered(before: CallState, allow: bool) -> CallState:
    if allow:
        # An intent of before belongs to the start that nobody knows about: a repetition needs its own.
        return replace(before, allowed=True, unknown=None, intended=False, answers=before.answers + 1)
    return replace(before, outcome=Outcome(DECLINED if before.unknown is None else NOT_REPEATED, True))


def _with_call(run: RunState, position: int, after: CallState, duration_s: float) -> RunState:
    last = run.steps[-1]
    calls = (*last.calls[:position], after, *last.calls[position + 1 :])
    failed = after.outcome is not None and after.outcome.failed
    usage = run.usage + Usage(failed_tool_calls=int(failed), tool_s=duration_s)
    return replace(run, steps=(*run.steps[:-1], replace(last, calls=calls)), usage=usage)
