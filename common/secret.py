"""The shape of tokens and API keys. Pure, and light enough for the command line."""

from __future__ import annotations

import re

SECRET_SHAPE = "printable ASCII without spaces"  # noqa: S105 - a description


def is_secret(text: str) -> bool:
    """Whether an `Authorization: Bearer …` header can carry `text`."""
    return re.fullmatch(r"[!-~]+", text) is not None
