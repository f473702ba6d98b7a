"""Rate limit windows as telemetry tells them, and as providers' answers do in their headers. Pure.

What is decided by them: see `outlook`.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

Unit = Literal["tokens", "requests"]

_UNITS: tuple[str, ...] = get_args(Unit)
_FAMILIES: tuple[tuple[str, Unit], ...] = (
    ("x-ratelimit-{}-tokens", "tokens"),
    ("x-ratelimit-{}-requests", "requests"),
    ("anthropic-ratelimit-tokens-{}", "tokens"),
    ("anthropic-ratelimit-input-tokens-{}", "tokens"),
    ("anthropic-ratelimit-requests-{}", "requests"),
)
"""Header names of OpenAI, Groq and who follows them, and of Anthropic. A window of output tokens alone is left out:
what is predicted is a turn's whole cost."""
_PART_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = r"(\d+(?:\.\d*)?)(ms|us|µs|ns|d|h|m|s)"


@dataclass(frozen=True, slots=True)
class Window:
    """A rate limit, as it is now."""

    remaining: float
    """What may still be used; some providers go below 0."""
    limit: float | None = None
    """What a full window holds, where known."""
    reset_s: float | None = None
    """Seconds until it is full again, where known; 0 means that it is full now."""
    unit: Unit = "tokens"

    def __post_init__(self) -> None:
        _number("remaining", self.remaining, -math.inf)
        for name in ("limit", "reset_s"):
            if getattr(self, name) is not None:
                _number(name, getattr(self, name), 0.0)
        if self.unit not in _UNITS:
            raise ValueError(f"unit: expected one of {', '.join(_UNITS)}, got {self.unit!r}")

    def aged(self, age_s: float) -> Window | None:
        """The window `age_s` seconds later, had nobody used it: windows refill evenly. None where nothing is known
        of it any more."""
        if self.reset_s is None:
            return self
        if age_s >= self.reset_s:
            return None if self.limit is None else replace(self, remaining=self.limit, reset_s=0.0)
        refilled = 0.0 if self.limit is None else (self.limit - self.remaining) * age_s / self.reset_s
        return replace(self, remaining=self.remaining + max(0.0, refilled), reset_s=self.reset_s - age_s)


Reading: TypeAlias = float | Window | Sequence[Window] | None
"""What telemetry returns: tokens that remain, a window, several, or None where nothing is known."""


def windows_of(reading: object) -> tuple[Window, ...]:
    """The windows of a telemetry's answer. TypeError and ValueError tell what was expected of it."""
    if reading is None:
        return ()
    if isinstance(reading, Window):
        return (reading,)
    if isinstance(reading, int | float) and not isinstance(reading, bool):
        return (Window(reading),)
    if isinstance(reading, Sequence) and not isinstance(reading, str) and all(isinstance(w, Window) for w in reading):
        return tuple(reading)
    raise TypeError(f"telemetry: expected a number, a Window, several or None, got {reading!r}")


def windows_in(headers: Mapping[str, str], unix_s: float) -> tuple[Window, ...]:
    """The windows that an answer's `headers` tell of, at `unix_s` seconds since 1970. What is malformed isleft out."""
    lower = {name.lower(): value for name, value in headers.items()}
    found = []
    for pattern, unit in _FAMILIES:
        remaining = _amount(lower.get(pattern.format("remaining")))
        if remaining is not None:
            limit = _amount(lower.get(pattern.format("limit")))
            reset_s = duration_s(lower.get(pattern.format("reset")), unix_s)
            found.append(Window(remaining, limit, reset_s, unit))
    return tuple(found)


def retry_after_s(headers: Mapping[str, str], unix_s: float) -> float | None:
    """Seconds until a refused request may come again, from `Retry-After` (seconds or a date) or `retry-after-ms`."""
    lower = {name.lower(): value for name, value in headers.items()}
    exact_ms = _amount(lower.get("retry-after-ms"))
    return duration_s(lower.get("retry-after"), unix_s) if exact_ms is None else exact_ms / 1000


def duration_s(text: str | None, unix_s: float) -> float | None:
    """Seconds from `unix_s` on: `12`, `6m0s`, `120ms`, an RFC 3339 date or one of HTTP; None where it is none of these.
    What is past is 0."""
    if text is None:
        return None
    text = text.strip()
    seconds = _amount(text)
    if seconds is not None:
        return seconds
    if re.fullmatch(f"(?:{_PART})+", text):
        return sum(float(amount) * _PART_S[unit] for amount, unit in re.findall(_PART, text))
    date = _date(text)
    return None if date is None else max(0.0, date.timestamp() - unix_s)


def _date(text: str) -> datetime | None:
    for parse in (datetime.fromisoformat, email.utils.parsedate_to_datetime):
        try:
            date = parse(text)
        except (ValueError, OverflowError):
            continue
        return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
    return None


def _amount(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\s*\d{1,15}(\.\d*)?\s*", text) else None


def _number(name: str, value: object, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    if not (math.isfinite(value) and value >= least):
        raise ValueError(
            f"{name}: expected a finite number{'' if math.isinf(least) else ' of at least 0'}, got {value}"
        )
