"""What is kept of a run, and how it is written: JSON with a version and a checksum. Pure; `files` does the writing."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from luftpause_client.errors import CheckpointError
from luftpause_client.prediction import HISTORY_MAX, Cost

FORMAT = "luftpause-checkpoint"
VERSION = 1
ANSWERS_MAX = 16
"""Replies kept between two checkpoints; the oldest go."""


class Answer(NamedTuple):
    """A reply that no checkpoint has followed yet."""

    asked: str
    """Digest of the messages."""
    reply: str
    """As JSON."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run as it was when it was last saved."""

    run_id: str
    state: dict[str, Any] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)
    spent_tokens: int = 0
    turns: int = 0
    history: tuple[Cost, ...] = ()
    not_before_unix_s: float = 0.0
    """When a rate limit said to come again, in seconds since 1970."""
    completed: bool = False
    answers: tuple[Answer, ...] = ()
    """Since the last checkpoint: a run that was killed gets them again without asking."""


def encode(checkpoint: Checkpoint) -> bytes:
    """The bytes of a checkpoint. Raises CheckpointError where they would not give the same back."""
    kept = {name: _kept(name, getattr(checkpoint, name)) for name in ("state", "messages")}
    document = {
        "run_id": checkpoint.run_id,
        **kept,
        "spent_tokens": checkpoint.spent_tokens,
        "turns": checkpoint.turns,
        "history": [list(cost) for cost in checkpoint.history],
        "not_before_unix_s": checkpoint.not_before_unix_s,
        "completed": checkpoint.completed,
        "answers": [list(answer) for answer in checkpoint.answers],
    }
    envelope = {"format": FORMAT, "version": VERSION, "sha256": _sum(document), "run": document}
    return json.dumps(envelope).encode("ascii") + b"\n"


def decode(data: bytes, run_id: str) -> Checkpoint:
    """The checkpoint of run `run_id` in `data`. Raises CheckpointError that tells what is wrong with it."""
    try:
        envelope = json.loads(data)
    except ValueError as problem:
        raise CheckpointError(f"torn, or not a checkpoint: {problem}") from problem
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        raise CheckpointError(f"not a checkpoint: expected a JSON object with the format {FORMAT!r}")
    if envelope.get("version") != VERSION:
        raise CheckpointError(f"version: expected {VERSION}, got {envelope.get('version')!r}")
    document = envelope.get("run")
    if not isinstance(document, dict) or envelope.get("sha256") != _sum(document):
        raise CheckpointError("torn or changed by hand: sha256 does not fit the content")
    if document.get("run_id") != run_id:
        raise CheckpointError(f"run_id: expected {run_id!r}, got {document.get('run_id')!r}")
    try:
        history = tuple(Cost(*pair) for pair in document.pop("history"))
        answers = tuple(Answer(*pair) for pair in document.pop("answers", ()))
        return Checkpoint(history=history[-HISTORY_MAX:], answers=answers[-ANSWERS_MAX:], **document)
    except (KeyError, TypeError) as problem:
        raise CheckpointError(f"not a checkpoint of version {VERSION}: {problem}") from problem


def copied(checkpoint: Checkpoint) -> Checkpoint:
    """The same, with `state` and `messages` of its own, which whoever changes the originals does not change."""
    return replace(checkpoint, state=copy.deepcopy(checkpoint.state), messages=copy.deepcopy(checkpoint.messages))


def digest(messages: list[Any]) -> str | None:
    """What tells the same messages again; None where JSON cannot hold them."""
    try:
        return _sum(messages)
    except (TypeError, ValueError, RecursionError):
        return None


def answer_to(asked: str | None, reply: object) -> Answer | None:
    """A reply to keep; None where JSON would not give it back as it is."""
    if asked is None:
        return None
    try:
        return Answer(asked, json.dumps(_kept("reply", reply)))
    except CheckpointError:
        return None


def _kept(name: str, value: object) -> object:
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise CheckpointError(f"{name}: expected what JSON can hold: {problem}") from problem
    kept: object = json.loads(text)
    if kept != value:
        raise CheckpointError(f"{name}: would not come back as it is; expected lists, not tuples, and texts as keys")
    return kept


def _sum(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode("ascii")).hexdigest()
