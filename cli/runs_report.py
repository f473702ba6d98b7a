"""What `runs` tells, as JSON, from what a runtime or its store says. Pure. For people: `runs_tables`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from protos import runtime_pb2 as pb
from protos import turn_pb2
from runtime import reports
from runtime.run import Usage
from runtime.wire import STATES

_STATES = {number: str(state) for state, number in STATES.items()}
_CLASSES = {turn_pb2.RUN_CLASS_INTERACTIVE: "interactive", turn_pb2.RUN_CLASS_BATCH: "batch"}
_USAGE = [field.name for field in dataclasses.fields(Usage)]


def listing(run: pb.Run, now: float) -> dict[str, Any]:
    """A run in the list of runs, in the words of the runtime's own status."""
    return {
        "handle": run.handle,
        "parent": run.parent or None,
        "forkedFrom": run.forked_from or None,
        "state": _STATES[run.state],
        "task": run.task,
        "model": run.model,
        "class": _CLASSES[run.service_class],
        "caller": run.caller,
        "startedAt": run.started_at,
        "seconds": round((run.ended_at if run.HasField("ended_at") else now) - run.started_at, 3),
        "pendingApproval": _pending(run.pending_approval) if run.HasField("pending_approval") else None,
        **reports.servers(run.waits_for, run.missing_servers),
        "own": _usage(run.own),
        "subtree": _usage(run.subtree),
    }


def whole(got: pb.GetResponse, records: Iterable[pb.RunsWatchResponse], now: float) -> dict[str, Any]:
    """A run with its conversation, step by step."""
    first = json.loads(got.messages)[0]
    return {
        **listing(got.run, now),
        "system": first["content"] if first["role"] == "system" else None,
        "steps": _steps(records),
        "text": got.run.text,
    }


def _steps(records: Iterable[pb.RunsWatchResponse]) -> list[dict[str, Any]]:
    """The steps in their order; times are seconds since 1970."""
    steps: list[dict[str, Any]] = []
    for record in records:
        match record.WhichOneof("record"):
            case "reply":
                steps.append(_step(record.at, record.reply))
            case "call_started":
                call = _call(steps, record.call_started)
                call |= {"startedAt": record.at, "key": record.call_started.key}
            case "call_ended":
                ended = record.call_ended
                call = _call(steps, ended)
                call |= {"result": ended.text, "failed": ended.failed, "toolS": round(ended.duration_s, 3)}
                call["outcomeUnknown"] = None
            case "call_unknown":
                _call(steps, record.call_unknown)["outcomeUnknown"] = record.call_unknown.known
            case "call_answered":
                answer = {"at": record.at, "allow": record.call_answered.allow}
                _call(steps, record.call_answered)["answers"].append(answer)
            case _:
                pass
    return steps


def _step(at: float, reply: pb.Reply) -> dict[str, Any]:
    calls = [
        {
            "name": call.name,
            "arguments": json.loads(call.arguments),
            "needsApproval": call.needs_approval,
            "refusal": call.refusal or None,
            "answers": [],
            "startedAt": None,
            "key": None,
            "result": None,
            "failed": bool(call.refusal),
            "toolS": None,
            "outcomeUnknown": None,
        }
        for call in reply.calls
    ]
    return {
        "step": reply.step,
        "at": at,
        "content": reply.content,
        "finishReason": reply.finish_reason,
        "promptTokens": reply.prompt_tokens,
        "completionTokens": reply.completion_tokens,
        "cachedTokens": reply.cached_tokens,
        "turnS": round(reply.duration_s, 3),
        "calls": calls,
    }


def _call(
    steps: list[dict[str, Any]], record: pb.CallStarted | pb.CallEnded | pb.CallUnknown | pb.CallAnswered
) -> dict[str, Any]:
    call: dict[str, Any] = steps[record.step]["calls"][record.call]
    return call


def _pending(asked: pb.PendingApproval) -> dict[str, Any]:
    told = {"question": asked.question, "tool": asked.tool, "arguments": json.loads(asked.arguments)}
    return told | {"outcomeUnknown": asked.outcome_unknown} if asked.outcome_unknown else told


def _usage(used: pb.Usage) -> dict[str, Any]:
    return reports.usage(Usage(**{name: getattr(used, name) for name in _USAGE}))
