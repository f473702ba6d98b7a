"""What the pool file's `limits`, `price`, `limit_headers` and `aliases` may hold. Pure."""

from __future__ import annotations

import re

LIMIT = re.compile(r"(requests|tokens|input|output|usd)_per_(second|minute|hour|day)")
LIMIT_SHAPE = "<requests|tokens|input|output|usd>_per_<second|minute|hour|day>"
PRICES = ("input", "output", "cached")
_AMOUNT_MAX = 1e15


def is_limits(value: object) -> bool:
    """Whether `value` is a table of limits; it may be empty."""
    if not isinstance(value, dict):
        return False
    return all(LIMIT.fullmatch(name) and _is_amount(amount) and amount for name, amount in value.items())


def is_texts(value: object) -> bool:
    """Whether `value` is a table of texts."""
    return isinstance(value, dict) and bool(value) and all(isinstance(each, str) and each for each in value.values())


def is_price(value: object) -> bool:
    """Whether `value` is a table of prices by model."""
    return isinstance(value, dict) and bool(value) and all(map(_is_price_of_one, value.values()))


def _is_price_of_one(value: object) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return set(value) <= set(PRICES) and all(map(_is_amount, value.values()))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _AMOUNT_MAX
