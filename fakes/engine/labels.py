"""`POST /classify` as vLLM answers it: each input gets one of the labels, always the same. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fakes.engine.chat import parse_object
from fakes.engine.errors import bad_field


@dataclass(frozen=True, slots=True)
class Classify:
    """What is asked."""

    model: str
    inputs: tuple[str, ...]


def parse_classify(raw: bytes) -> Classify:
    """The request in `raw`. Raises ApiError 400 naming the field."""
    body = parse_object(raw)
    model = body.get("model")
    if not isinstance(model, str):
        raise bad_field("model", "a string")
    given = body.get("input")
    inputs = [given] if isinstance(given, str) else given
    if not isinstance(inputs, list) or not inputs or not all(isinstance(text, str) for text in inputs):
        raise bad_field("input", "a string or a non-empty list of strings")
    return Classify(model, tuple(inputs))


def classify(inputs: Sequence[str], labels: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """One row an input: `index`, `label`, `probs` in the order of `labels`, `num_classes`."""
    rows = []
    for index, text in enumerate(inputs):
        scores = [math.exp(6.0 * _share(f"{seed}\0{label}\0{text}")) for label in labels]
        probs = [score / sum(scores) for score in scores]
        label = labels[probs.index(max(probs))]
        rows.append({"index": index, "label": label, "probs": probs, "num_classes": len(labels)})
    return rows


def _share(text: str) -> float:
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
