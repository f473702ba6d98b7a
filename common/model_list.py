"""Reading the model list that an engine answers to `GET /v1/models`. Pure."""

from __future__ import annotations

import json

from common.ids import Model

MODEL_CHARACTERS_MAX = 512
MODELS_MAX = 1_000
SHAPE = '{"data": [{"id": "…"}, …]}'
"""What an engine is expected to answer, for people."""


def read_models(text: bytes) -> tuple[Model, ...] | None:
    """The model names of an OpenAI model list, or None if `text` is no such list. Names that nobody could ask for are
    passed over, those beyond MODELS_MAX too."""
    try:
        names = [model["id"] for model in json.loads(text)["data"]]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    right = (name for name in names if isinstance(name, str) and _is_name(name))
    return tuple(Model(name) for name in dict.fromkeys(right))[:MODELS_MAX]


def _is_name(text: str) -> bool:
    # Half of a surrogate pair is no text, and neither protobuf nor JSON in UTF-8 can tell of it.
    return 0 < len(text) <= MODEL_CHARACTERS_MAX and not any("\ud800" <= each <= "\udfff" for each in text)
