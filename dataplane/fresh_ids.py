"""Ids for what this process makes: runs, turns, itself. Apart from `identity`, since it draws chance."""

from __future__ import annotations

import secrets
from collections.abc import Callable


def id_source(prefix: str) -> Callable[[], str]:
    """A source of ids that nobody else makes: `prefix` and 128 random bits, drawn for each, since who sees one id, as
    callers do in answers, must not know the next, which he could take before it is used."""
    return lambda: f"{prefix}-{secrets.token_hex(16)}"
