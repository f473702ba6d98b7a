"""What a run does next. Pure: the same run, the same step; `executor` performs it.

Must not know budgets, which are of the whole tree (`budgets`), nor how a call is made (`toolbox`).
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.run import RunState


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model for the reply that begins step `step`."""

    step: int
    may_call: bool
    """Whether the reply may ask for tool calls; where none is left, it must be an answer."""


@dataclass(frozen=True, slots=True)
class CallTools:
    """Make these calls of the last reply at the same time."""

    step: int
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskApproval:
    """Rest until a person answers about this call of the last reply."""

    step: int
    call: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is done, with this answer."""

    answer: str


@dataclass(frozen=True, slots=True)
class Rest:
    """The run has ended."""


NextStep = CallModel | CallTools | AskApproval | Finish | Rest


def next_step(run: RunState) -> NextStep:
    """What `run` does next. Approvals come before any call of their round, calls before the next turn."""
    if run.end is not None:
        return Rest()
    number = len(run.steps) - 1
    if run.steps:
        last = run.steps[-1]
        waiting = [position for position, each in enumerate(last.calls) if each.awaits_answer]
        if waiting:
            return AskApproval(number, waiting[0])
        if last.open_calls:
            together = last.open_calls if run.order.parallel_tool_calls else last.open_calls[:1]
            return CallTools(number, together)
        if not last.calls:
            return Finish(last.content)
    return CallModel(number + 1, run.usage.tool_calls < run.order.tool_calls_max)
