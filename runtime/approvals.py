"""What a person is asked, and what the answer becomes. Pure.

All questions of a round are open at the same time, and may be answered in any order; where one is to be asked, it is
the first in the order of the calls. A question names its call, so that an answer which was meant for another one is
told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from runtime.agent import AskApproval, next_step
from runtime.records import Answered, AnyRecord
from runtime.run import RunState


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about one call."""

    step: int
    call: int
    tool: str
    arguments: str
    """A JSON object."""
    known: str | None
    """Asked since the call's outcome is unknown, and this is what is known; None: asked before its start."""
    number: int
    """How many questions about the call were answered before this one."""

    @property
    def name(self) -> str:
        """Names it among all questions of its run."""
        return _name(self.step, self.call, self.number)

    @property
    def text(self) -> str:
        """The question, for people."""
        if self.known is None:
            return f"Allow the tool call {self.tool} {self.arguments}?"
        return f"{self.known} Repeat the tool call {self.tool} {self.arguments}?"


def questions(run: RunState) -> tuple[Question, ...]:
    """All that people have to answer before `run` goes on."""
    step = next_step(run)
    if not isinstance(step, AskApproval):
        return ()
    return tuple(
        Question(step.step, position, each.call.name, each.call.arguments, each.unknown, each.answers)
        for position, each in enumerate(run.steps[step.step].calls)
        if each.awaits_answer
    )


def question(run: RunState) -> Question | None:
    """The first of `questions`; None: there is none."""
    return next(iter(questions(run)), None)


def given(records: Iterable[AnyRecord], name: str) -> bool | None:
    """The answer that a run's journal has to the question of this name; None: there is none."""
    answered: Counter[tuple[int, int]] = Counter()
    for record in records:
        if isinstance(record, Answered):
            about = record.step, record.call
            if _name(*about, answered[about]) == name:
                return record.allow
            answered[about] += 1
    return None


def _name(step: int, call: int, number: int) -> str:
    return f"{step}-{call}-{number}"


def answer(about: Question, allow: bool, now: float) -> Answered:
    """The record of a person's answer."""
    return Answered(at=now, step=about.step, call=about.call, allow=allow)


def is_needed(name: str, destructive: bool, approve_tools: Collection[str]) -> bool:
    """Whether a person must allow a call: the tool says that it destroys, or the run's owner asked for it."""
    return destructive or name in approve_tools
