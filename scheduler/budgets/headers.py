"""Reads what an answer's headers tell of its replica's rate limits. Pure, and never raises: what is not understood was
not told.

Understood are the families of OpenAI and Groq (`x-ratelimit-remaining-tokens`), Anthropic
(`anthropic-ratelimit-input-tokens-reset`), those without a dimension (`ratelimit-remaining`, of requests), with a
period in the name (`x-ratelimit-limit-requests-day`), and whatever a replica's `limit_headers` rename to one of these.
Times are durations (`1s`, `6m0s`, `2m59.56s`, `120ms`), seconds, seconds since 1970, RFC 3339, or HTTP dates; dates are
taken against the answer's own `date`, so that clocks that differ do no harm.
Read next: `windows`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import IntEnum
from functools import lru_cache

from msgspec import Struct


class Dimension(IntEnum):
    """What a window counts."""

    REQUESTS = 0
    TOKENS = 1
    """Prompt and completion together."""
    INPUT = 2
    OUTPUT = 3
    USD = 4


PERIODS_S = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}


class Seen(Struct, frozen=True, gc=False):
    """What one answer told of one window; None where it told nothing."""

    dimension: Dimension
    label: str = ""
    """A key of PERIODS_S where the header's name told the period."""
    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None
    """Seconds until it is full again. 0 is a value like any other."""


class LimitsTold(Struct, frozen=True, gc=False):
    """What the headers of one answer told."""

    seen: tuple[Seen, ...] = ()
    retry_after_s: float | None = None


NOTHING_TOLD = LimitsTold()

_FIELDS = frozenset(("limit", "remaining", "reset"))
_DIMENSIONS = {
    "requests": Dimension.REQUESTS,
    "tokens": Dimension.TOKENS,
    "input": Dimension.INPUT,
    "prompt": Dimension.INPUT,
    "output": Dimension.OUTPUT,
    "generated": Dimension.OUTPUT,
}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SINCE_1970_S_MIN = 1e9
"""A bare number from here on is a date, in milliseconds from a thousand times as much on."""
_AMOUNT_MAX = 1e15
_VALUE_CHARACTERS_MAX = 64
_WAIT_S_MAX = 7 * 86400.0


def read(headers: Iterable[tuple[str, str]], aliases: Mapping[str, str]) -> LimitsTold:
    """What `headers` (names and values) tell; `aliases` map lower-case names to names of a family above."""
    named = {}
    for name, value in headers:
        lower = name.lower()
        named[aliases.get(lower, lower)] = value.strip()[:_VALUE_CHARACTERS_MAX]
    if not named:
        return NOTHING_TOLD
    now_s = read_date_s(named.get("date", ""))
    told: dict[tuple[Dimension, str], dict[str, float]] = {}
    for name, value in named.items():
        where = _what(name)
        if where is None:
            continue
        field, dimension, label = where
        number = read_wait_s(value, now_s) if field == "reset" else read_amount(value)
        if number is not None:
            told.setdefault((dimension, label), {})[field] = number
    seen = tuple(
        Seen(dimension, label, fields.get("limit"), fields.get("remaining"), fields.get("reset"))
        for (dimension, label), fields in told.items()
    )
    after_ms = read_amount(named.get("retry-after-ms", ""))
    after_s = read_wait_s(named.get("retry-after", ""), now_s) if after_ms is None else after_ms / 1000
    return LimitsTold(seen, after_s)


def read_amount(text: str) -> float | None:
    """A number of tokens, requests or the like: finite, not negative."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if 0 <= number <= _AMOUNT_MAX else None


def read_wait_s(text: str, now_s: float | None) -> float | None:
    """Seconds from the answer's time (`now_s`, since 1970; None: not known, then dates tell nothing) to the one that
    `text` tells: at least 0, at most a week."""
    text = text.strip()
    number = read_amount(text)
    if number is not None and number < _SINCE_1970_S_MIN:
        return min(number, _WAIT_S_MAX)
    if number is None and _DURATION.fullmatch(text):
        return min(sum(float(part) * _UNITS_S[unit] for part, unit in _PART.findall(text)), _WAIT_S_MAX)
    if number is not None:
        date_s: float | None = number / 1000 if number >= _SINCE_1970_S_MIN * 1000 else number
    else:
        date_s = read_date_s(text)
    if date_s is None or now_s is None:
        return None
    return min(max(0.0, date_s - now_s), _WAIT_S_MAX)


def read_date_s(text: str) -> float | None:
    """Seconds since 1970 of an RFC 3339 or HTTP date."""
    if not text:
        return None
    for read_one in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            date = read_one(text)
            seconds = (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return seconds if math.isfinite(seconds) else None
    return None


@lru_cache(maxsize=256)
def _what(name: str) -> tuple[str, Dimension, str] | None:
    """The field, dimension and period that a header's name names, or None: it is not about a limit."""
    words = name.removeprefix("x-").removeprefix("anthropic-").split("-")
    if words[0] != "ratelimit":
        return None
    fields = [word for word in words[1:] if word in _FIELDS]
    labels = [word for word in words[1:] if word in PERIODS_S]
    dimensions = [_DIMENSIONS[word] for word in words[1:] if word in _DIMENSIONS]
    if len(fields) != 1 or len(labels) > 1 or len(words) != 1 + len(fields) + len(labels) + len(dimensions):
        return None
    # "input-tokens" is about input: tokens is only its unit.
    dimension = max(dimensions, default=Dimension.REQUESTS)
    return fields[0], dimension, labels[0] if labels else ""
