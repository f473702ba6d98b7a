"""Decisions: one small question to a model, through the dataplane. No run, no journal: who asks waits for the answer.

Arguments are checked by the dataplane, whose words these are too; what it refuses is told as a refusal here. Read next:
`llm`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from runtime.chat import BrokenReplyError
from runtime.llm import Model, TurnFailedError
from runtime.orders import check_count, check_text
from runtime.refusals import InvalidArgumentError, NoAnswerError


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of `decide`, as they came."""

    input: str
    labels: tuple[str, ...] | None = None
    model: str | None = None


class Decision(msgspec.Struct, omit_defaults=True):
    """The answer, as the dataplane gives it."""

    label: str
    probabilities: dict[str, float]
    unscored: list[str]
    model: str
    probs: list[float] | None = None


_decoder = msgspec.json.Decoder(Decision)
_REFUSED = (400, 404, 413, 422)
"""What the dataplane answers where an argument is not what was expected."""


async def decide(
    model: Model, question: Question, caller: str, run_class: str, traceparent: str | None = None
) -> Decision:
    """The answer to `question`. Raises InvalidArgumentError, or NoAnswerError where an engine gives none."""
    check_count("labels", question.labels or ())
    texts = (("input", question.input), ("model", question.model or ""))
    for argument, text in (*texts, *(("labels", label) for label in question.labels or ())):
        check_text(argument, text)
    body = {"input": question.input, "labels": question.labels, "model": question.model}
    headers = {"x-luftpause-caller": caller, "x-luftpause-class": run_class}
    if traceparent:
        headers["traceparent"] = traceparent
    try:
        return await model.ask("decide", msgspec.json.encode(body), headers, _read)
    except TurnFailedError as error:
        if error.status in _REFUSED:
            raise _refusal(error.status, error.said) from None
        raise NoAnswerError(str(error)) from None


def _read(body: bytes) -> Decision:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenReplyError(f"the answer is no decision: {error}") from None


def _refusal(status: int, said: str) -> InvalidArgumentError:
    """The dataplane names the argument, as a rule; an engine's own refusal is about the input."""
    argument, _, expected = said.partition(": ")
    if argument.partition("[")[0] in ("input", "labels", "model"):
        return InvalidArgumentError(argument, expected)
    return InvalidArgumentError("model" if status == 404 else "input", said)
