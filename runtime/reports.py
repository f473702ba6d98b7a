"""What clients are told of runs, as JSON, in the same words by MCP, the status and the command line. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from runtime import approvals, budgets
from runtime.records import Limits, State
from runtime.run import SUMMARY_CHARS, RunState, Usage


def result(run: RunState, subtree: Usage, now: float) -> dict[str, Any]:
    """Where a run is, and its answer if it has one. `subtree` is what it and all below it have used."""
    told: dict[str, Any] = {"handle": run.run_id, "state": str(run.state)}
    if run.end is not None:
        told["answer" if run.state is State.COMPLETED else "error"] = run.end.text
    asked = approvals.question(run)
    if asked is not None:
        told["pendingApproval"] = pending(asked)
    told |= servers(run.waits_for, run.missing_servers)
    told |= {
        "turns": run.usage.turns,
        "toolCalls": run.usage.tool_calls,
        "failedToolCalls": run.usage.failed_tool_calls,
        "budget": budget(run, subtree, now),
    }
    return told


def servers(waits_for: Sequence[str], missing: Sequence[str]) -> dict[str, Any]:
    """The tool servers that a run waits for, and those that it went on without; only what there is."""
    named = {"waitsFor": waits_for, "missingServers": missing}
    return {name: list(names) for name, names in named.items() if names}


def pending(asked: approvals.Question) -> dict[str, Any]:
    """What a person is asked."""
    told = {"question": asked.name, "tool": asked.tool, "arguments": json.loads(asked.arguments)}
    return told if asked.known is None else told | {"outcomeUnknown": asked.known}


def budget(run: RunState, subtree: Usage, now: float) -> dict[str, Any]:
    """A run's limits, what of them is used by it and all below it, and whether that is too much."""
    limits = run.order.limits
    age_s = (run.end.at if run.end is not None else now) - run.started_at
    used = {"tokens": subtree.tokens, "toolCalls": subtree.tool_calls, "seconds": round(max(age_s, 0.0), 3)}
    is_over = run.state is State.BUDGET_EXCEEDED or budgets.exceeded(limits, subtree, age_s) is not None
    return {"limits": _limits(limits), "used": used, "exceeded": is_over}


def _limits(limits: Limits) -> dict[str, float]:
    named = {"tokens": limits.tokens, "toolCalls": limits.tool_calls, "seconds": limits.seconds}
    return {name: limit for name, limit in named.items() if limit is not None}


def listing(run: RunState, subtree: Usage, now: float) -> dict[str, Any]:
    """A run in a list of runs."""
    asked = approvals.question(run)
    return {
        "handle": run.run_id,
        "parent": run.parent,
        "state": str(run.state),
        "task": run.order.task[:SUMMARY_CHARS],
        "model": run.order.model,
        "class": str(run.order.run_class),
        "caller": run.caller,
        "startedAt": run.started_at,
        "seconds": round((run.end.at if run.end is not None else now) - run.started_at, 3),
        "pendingApproval": None if asked is None else pending(asked),
        **servers(run.waits_for, run.missing_servers),
        "own": usage(run.usage),
        "subtree": usage(subtree),
    }


def usage(used: Usage) -> dict[str, Any]:
    """Usage, by the names that clients know."""
    return {
        "turns": used.turns,
        "toolCalls": used.tool_calls,
        "failedToolCalls": used.failed_tool_calls,
        "promptTokens": used.prompt_tokens,
        "completionTokens": used.completion_tokens,
        "cachedTokens": used.cached_tokens,
        "turnS": round(used.turn_s, 3),
        "toolS": round(used.tool_s, 3),
    }


def counts(runs: Iterable[RunState]) -> dict[str, int]:
    """How many runs are in each state."""
    numbers = dict.fromkeys((str(state) for state in State), 0)
    for run in runs:
        numbers[str(run.state)] += 1
    return numbers
