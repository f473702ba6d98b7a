"""The runtime's gRPC messages: read into what the service takes, written from what it tells. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import assert_never

from protos import runtime_pb2 as pb
from protos import turn_pb2
from runtime import approvals
from runtime.orders import SpawnRequest, check_count
from runtime.records import (
    Answered,
    AnyRecord,
    Ended,
    Intended,
    LostTrack,
    Replied,
    Returned,
    RunClass,
    Started,
    State,
)
from runtime.refusals import InvalidArgumentError
from runtime.run import SUMMARY_CHARS, RunState, Usage, apply, conversation

STATES = {
    State.RUNNING: pb.RUN_STATE_RUNNING,
    State.AWAITING_APPROVAL: pb.RUN_STATE_AWAITING_APPROVAL,
    State.SLEEPING: pb.RUN_STATE_SLEEPING,
    State.COMPLETED: pb.RUN_STATE_COMPLETED,
    State.FAILED: pb.RUN_STATE_FAILED,
    State.CANCELLED: pb.RUN_STATE_CANCELLED,
    State.BUDGET_EXCEEDED: pb.RUN_STATE_BUDGET_EXCEEDED,
    State.MOVED: pb.RUN_STATE_MOVED,
}
_CLASSES = {RunClass.INTERACTIVE: turn_pb2.RUN_CLASS_INTERACTIVE, RunClass.BATCH: turn_pb2.RUN_CLASS_BATCH}
_MODES = {pb.AWAIT_MODE_UNSPECIFIED: "all", pb.AWAIT_MODE_ALL: "all", pb.AWAIT_MODE_ANY: "any"}
_FIELDS = {
    "budgetTokens": "budget.tokens",
    "budgetToolCalls": "budget.tool_calls",
    "budgetSeconds": "budget.seconds",
    "timeout": "timeout_s",
    "tools": "tools.names",
}
"""Arguments whose field is not called the same."""


def field_of(argument: str) -> str:
    """The field of a request in `runtime.proto` that is an argument of the MCP tools."""
    return _FIELDS.get(argument) or re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", argument)


def read_spawn(message: pb.SpawnRequest) -> SpawnRequest:
    """The request to start a run; what it asks is checked by `orders`. Raises InvalidArgumentError."""
    defaults = SpawnRequest(message.task)
    budget = message.budget
    return SpawnRequest(
        task=message.task,
        model=message.model or None,
        service_class=_read_class(message.service_class),
        system=message.system if message.HasField("system") else None,
        max_tool_calls=message.max_tool_calls if message.HasField("max_tool_calls") else defaults.max_tool_calls,
        tools=tuple(message.tools.names) if message.HasField("tools") else None,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else defaults.max_tokens,
        parallel_tool_calls=message.parallel_tool_calls,
        parent=message.parent or None,
        budget_tokens=budget.tokens if budget.HasField("tokens") else None,
        budget_tool_calls=budget.tool_calls if budget.HasField("tool_calls") else None,
        budget_seconds=budget.seconds if budget.HasField("seconds") else None,
        approve_tools=tuple(message.approve_tools),
    )


def _read_class(number: int) -> str | None:
    if number == turn_pb2.RUN_CLASS_UNSPECIFIED:
        return None
    named = next((each for each, value in _CLASSES.items() if value == number), None)
    if named is None:
        raise InvalidArgumentError("serviceClass", "expected RUN_CLASS_INTERACTIVE or RUN_CLASS_BATCH")
    return named


def read_mode(number: int) -> str:
    """The mode of an await. Raises InvalidArgumentError."""
    if number not in _MODES:
        raise InvalidArgumentError("mode", "expected AWAIT_MODE_ALL or AWAIT_MODE_ANY")
    return _MODES[number]  # type: ignore[index]


def read_states(numbers: Sequence[int]) -> frozenset[State]:
    """The states named; empty if none are. Raises InvalidArgumentError."""
    check_count("states", numbers)
    named = {number: state for state, number in STATES.items()}
    unknown = [number for number in numbers if number not in named]
    if unknown:
        raise InvalidArgumentError("states", f"expected states of a run, not {unknown[0]}")
    return frozenset(named[number] for number in numbers)  # type: ignore[index]


def write_run(run: RunState, subtree: Usage, task_chars: int | None = SUMMARY_CHARS) -> pb.Run:
    """A run; its task cut to `task_chars`."""
    asked = approvals.question(run)
    limits = run.order.limits
    told = pb.Run(
        handle=run.run_id,
        parent=run.parent or "",
        root=run.root,
        state=STATES[run.state],
        task=run.order.task[:task_chars],
        model=run.order.model,
        service_class=_CLASSES[run.order.run_class],
        caller=run.caller,
        started_at=run.started_at,
        ended_at=run.end.at if run.end is not None else None,
        text=run.end.text if run.end is not None else "",
        own=_usage(run.usage),
        subtree=_usage(subtree),
        budget=pb.Budget(tokens=limits.tokens, tool_calls=limits.tool_calls, seconds=limits.seconds),
        forked_from=run.forked_from or "",
        waits_for=run.waits_for,
        missing_servers=run.missing_servers,
    )
    if asked is not None:
        told.pending_approval.CopyFrom(
            pb.PendingApproval(
                tool=asked.tool, arguments=asked.arguments, outcome_unknown=asked.known or "", question=asked.name
            )
        )
    return told


def write_messages(run: RunState) -> str:
    """The conversation, a JSON list."""
    return json.dumps(conversation(run), ensure_ascii=False)


def write_record(number: int, record: AnyRecord, subtree_of: Callable[[RunState], Usage]) -> pb.RunsWatchResponse:
    """One record of a run's journal."""
    told = pb.RunsWatchResponse(number=number, at=record.at)
    match record:
        case Started():
            run = apply(None, record)
            told.started.CopyFrom(write_run(run, subtree_of(run), task_chars=None))
        case Replied():
            told.reply.CopyFrom(_reply(record))
        case Intended():
            told.call_started.CopyFrom(pb.CallStarted(step=record.step, call=record.call, key=record.key))
        case Returned():
            told.call_ended.CopyFrom(
                pb.CallEnded(
                    step=record.step,
                    call=record.call,
                    text=record.text,
                    failed=record.failed,
                    duration_s=record.duration_s,
                )
            )
        case LostTrack():
            told.call_unknown.CopyFrom(pb.CallUnknown(step=record.step, call=record.call, known=record.known))
        case Answered():
            told.call_answered.CopyFrom(pb.CallAnswered(step=record.step, call=record.call, allow=record.allow))
        case Ended():
            told.end.CopyFrom(pb.RunEnd(state=STATES[record.state], text=record.text))
        case _:
            assert_never(record)
    return told


def _reply(record: Replied) -> pb.Reply:
    calls = (
        pb.ToolCall(
            id=call.id,
            name=call.name,
            arguments=call.arguments,
            needs_approval=call.needs_approval,
            refusal=call.refusal or "",
        )
        for call in record.calls
    )
    return pb.Reply(
        step=record.step,
        content=record.content,
        calls=calls,
        finish_reason=record.finish_reason,
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        cached_tokens=record.cached_tokens,
        duration_s=record.duration_s,
        missing_servers=record.missing_servers,
    )


def _usage(used: Usage) -> pb.Usage:
    return pb.Usage(
        turns=used.turns,
        tool_calls=used.tool_calls,
        failed_tool_calls=used.failed_tool_calls,
        prompt_tokens=used.prompt_tokens,
        completion_tokens=used.completion_tokens,
        cached_tokens=used.cached_tokens,
        turn_s=used.turn_s,
        tool_s=used.tool_s,
    )
