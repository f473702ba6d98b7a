"""The wire format of decisions: `POST /v1/decide`, and what engines are asked for it. Pure.

Without labels a classifier is asked, as vLLM's `/classify` has it. With labels a generative model picks an option, and
its first token tells how likely it finds each. Labels may begin with the same token, or be the same but for their ends,
so it is not their own tokens that are compared: the prompt letters the options, and the letters' log probabilities are
read. Read next: `decide`, which performs it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from dataplane import bodies
from dataplane.chat import MODEL_CHARS_MAX
from dataplane.errors import ApiError, invalid

LABELS_MIN = 2
LABELS_MAX = 20
"""As many as engines report alternatives for a token."""
LABEL_CHARS_MAX = 256
_LABELS = f"{LABELS_MIN} to {LABELS_MAX} labels"
INPUT_CHARS_MAX = 1_000_000
"""More than any model reads."""
MARKS = "ABCDEFGHIJKLMNOPQRST"
"""One letter a label: each is a single token to every tokeniser, and no two share it."""

_NOT_TOLD = -9999.0
"""What engines write for a log probability that they do not know."""
_MARK = re.compile(r"[\W\u0120]*([A-T])\W*")
"""A token that says one option: its letter, with what may stand around it (`A`, ` A`, `(A`, `A)`). U+0120 is a space in
the raw vocabularies that some engines show."""


class DecideRequest(msgspec.Struct):
    """What is to be decided."""

    input: str
    labels: list[str] | None
    model: str | None


class _Raw(msgspec.Struct, forbid_unknown_fields=True):
    """Its fields as they are written: millions of labels would cost time before they could be counted."""

    input: msgspec.Raw
    labels: msgspec.Raw = msgspec.Raw(b"null")
    model: msgspec.Raw = msgspec.Raw(b"null")


class Decision(msgspec.Struct, omit_defaults=True):
    """The answer."""

    label: str
    probabilities: dict[str, float]
    """By label; they add up to 1 over the labels that were scored. Of a classifier, only that of the label it named."""
    unscored: list[str]
    """Labels that were not among the likeliest first tokens, in the order of the request."""
    model: str
    probs: list[float] | None = None
    """The classifier's probabilities in the order of its classes, whose names it does not tell."""


_RAW = msgspec.json.Decoder(_Raw)
_TEXT = msgspec.json.Decoder(str)
_LABEL_LIST = msgspec.json.Decoder(list[str] | None)
_MODEL = msgspec.json.Decoder(Annotated[str, msgspec.Meta(min_length=1, max_length=MODEL_CHARS_MAX)] | None)


_LABELS_BYTES_MAX = 64 * LABELS_MAX * LABEL_CHARS_MAX
"""Of the labels as they are written: more than 12 bytes for a character, which is an escaped one, and blanks."""


def parse(body: bytes) -> DecideRequest | ApiError:
    """The request in `body`, or an error that names the field and what was expected."""
    raw = bodies.read(body, _RAW)
    if isinstance(raw, ApiError):
        return raw
    text = bodies.read(bytes(raw.input), _TEXT, "input")
    if isinstance(text, ApiError):
        return text
    if not text.strip():
        return invalid("input", "expected a text that is not empty")
    if len(text) > INPUT_CHARS_MAX:
        return ApiError(413, f"input: expected at most {INPUT_CHARS_MAX} characters", "input_too_large")
    written = bytes(raw.labels)
    if len(written) > _LABELS_BYTES_MAX:
        return invalid("labels", f"expected {_LABELS}; they take {len(written)} bytes")
    labels = bodies.read(written, _LABEL_LIST, "labels")
    if isinstance(labels, ApiError):
        return labels
    model = bodies.read(bytes(raw.model), _MODEL, "model")
    if isinstance(model, ApiError):
        return model
    return (_check_labels(labels) if labels is not None else None) or DecideRequest(text, labels, model)


def _check_labels(labels: Sequence[str]) -> ApiError | None:
    if not LABELS_MIN <= len(labels) <= LABELS_MAX:
        return invalid("labels", f"expected {_LABELS}, or none to ask a classifier; there are {len(labels)}")
    for number, label in enumerate(labels):
        if not label.strip() or len(label) > LABEL_CHARS_MAX or not label.isprintable():
            return invalid(f"labels[{number}]", f"expected a line of 1 to {LABEL_CHARS_MAX} printable characters")
        if label in labels[:number]:
            return invalid(f"labels[{number}]", f"expected labels that differ, '{label}' is there twice")
    return None


def classify_body(text: str, model: str) -> bytes:
    """The body that a classifier is sent."""
    return msgspec.json.encode({"model": model, "input": text})


def choose_body(text: str, labels: Sequence[str], model: str) -> bytes:
    """The body that a generative model is sent: one token, with its alternatives.

    One message of the user, since some chat templates know no system. The options come first, so that decisions with
    the same labels share a prefix.
    """
    options = "\n".join(f"{mark}) {label}" for mark, label in zip(MARKS, labels, strict=False))
    prompt = (
        "Which option fits the text? Answer with the letter of one option alone.\n\n"
        f"Options:\n{options}\n\nText:\n{text}\n\nThe letter of the option that fits the text:"
    )
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": LABELS_MAX,
        }
    )


class _Row(msgspec.Struct):
    label: str | None = None
    probs: list[float] | None = None


class _Classification(msgspec.Struct):
    data: Annotated[list[_Row], msgspec.Meta(min_length=1)]


class _Alternative(msgspec.Struct):
    token: str
    logprob: float


class _FirstToken(_Alternative):
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_FirstToken] | None = None


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None


class _Completion(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]


_CLASSIFICATION = msgspec.json.Decoder(_Classification)
_COMPLETION = msgspec.json.Decoder(_Completion)


def read_classification(reply: bytes, model: str) -> Decision | None:
    """The classifier's decision; None where `reply` is none. A class without a name is `LABEL_<number>`, as usual."""
    try:
        row = _CLASSIFICATION.decode(reply).data[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not row.probs:
        return Decision(row.label, {}, [], model) if row.label is not None else None
    likeliest = max(row.probs)
    label = row.label if row.label is not None else f"LABEL_{row.probs.index(likeliest)}"
    return Decision(label, {label: likeliest}, [], model, row.probs)


def read_choice(reply: bytes, labels: Sequence[str], model: str, replica: str) -> Decision | ApiError | None:
    """The decision that the first token of a completion tells; None where `reply` is none.

    422 where the engine gives no log probabilities, or none of the labels is among them: another engine may do.
    """
    try:
        logprobs = _COMPLETION.decode(reply).choices[0].logprobs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if logprobs is None or not logprobs.content:
        problem = f"engine {replica} gives no log probabilities (logprobs), by which labels are scored"
        return ApiError(422, f"labels: {problem}", "no_logprobs")
    first = logprobs.content[0]
    likelihoods = [0.0] * len(labels)
    for alternative in _alternatives(first):
        found = _MARK.fullmatch(alternative.token)
        number = MARKS.index(found[1]) if found else len(labels)
        if number < len(labels):
            likelihoods[number] += math.exp(min(alternative.logprob, 0.0))
    total = sum(likelihoods)
    if not total:
        problem = f"none of them is among the likeliest first tokens of engine {replica}, which began with"
        return ApiError(422, f"labels: {problem} '{first.token[:_SHOWN_CHARS_MAX]}'", "labels_unscored")
    scored = {label: share / total for label, share in zip(labels, likelihoods, strict=True) if share}
    return Decision(max(scored, key=scored.__getitem__), scored, [each for each in labels if each not in scored], model)


_SHOWN_CHARS_MAX = 40


def _alternatives(first: _FirstToken) -> Iterator[_Alternative]:
    """The first token and what might have stood in its place, each once."""
    others = first.top_logprobs or []
    if all(other.token != first.token for other in others):
        yield first
    yield from (other for other in others if other.logprob > _NOT_TOLD)
