"""Ids for what this process makes: runs, turns, itself. Apart from `identity`, since it draws chance."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable


def id_source(prefix: str) -> Callable[[], str]:
    """A source of ids that no other process makes: `prefix`, 64 random bits, a counter."""
    stem = f"{prefix}-{secrets.token_hex(8)}-"
    numbers = itertools.count(1)
    return lambda: stem + str(next(numbers))
