"""What a turn says of its own limits, and what answers tell of their replica's: headers read, none decided on. Pure.

The scheduler keeps the budgets; here is what it is told. `begin` reads a request's `x-luftpause-wait-s-max`,
`-deadline` and `-budget-usd`; `told` picks an answer's headers about rate limits; `LastTold` remembers them for a
resync.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from dataplane.errors import ApiError, invalid
from protos import turn_pb2

WAIT_S_MAX = b"x-luftpause-wait-s-max"
DEADLINE = b"x-luftpause-deadline"
BUDGET_USD = b"x-luftpause-budget-usd"

WAIT_S_LIMIT = 7 * 86400.0
TOO_MANY_REQUESTS = 429
CONTENT_TOO_LARGE = 413
USD_LIMIT = 1e9
_NUMBER = re.compile(rb"\d{1,12}(\.\d{1,9})?")
_TELLING = re.compile(rb"(x-|anthropic-)?ratelimit-|retry-after", re.IGNORECASE)
_WAIT = re.compile(rb"retry-after", re.IGNORECASE)
_HEADERS_MAX = 32
_VALUE_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """What a client says that its turn may take; None: anything."""

    wait_s_max: float | None = None
    deadline: float | None = None
    """Seconds since 1970."""
    budget_usd: float | None = None


NO_LIMITS = TurnLimits()


def begin(headers: Mapping[bytes, bytes]) -> TurnLimits | ApiError:
    """What a request's `headers` (lower-case names) say, or a 400 that names the header and what was expected."""
    if WAIT_S_MAX not in headers and DEADLINE not in headers and BUDGET_USD not in headers:
        return NO_LIMITS
    wait_s_max = _number(headers.get(WAIT_S_MAX), WAIT_S_LIMIT)
    if WAIT_S_MAX in headers and wait_s_max is None:
        return invalid(WAIT_S_MAX.decode(), f"expected seconds, 0 to {WAIT_S_LIMIT:.0f}")
    budget_usd = _number(headers.get(BUDGET_USD), USD_LIMIT)
    if BUDGET_USD in headers and budget_usd is None:
        return invalid(BUDGET_USD.decode(), f"expected US dollars, 0 to {USD_LIMIT:.0f}")
    deadline = _date(headers.get(DEADLINE))
    if DEADLINE in headers and deadline is None:
        return invalid(DEADLINE.decode(), "expected a date like 2030-01-31T12:00:00Z, or seconds since 1970")
    return TurnLimits(wait_s_max, deadline, budget_usd)


def describe(
    turn: turn_pb2.Turn, limits: TurnLimits, *, prompt_bytes: int, max_tokens: int | None, unix_s: float
) -> None:
    """Writes into `turn` what the scheduler needs where there are limits, at `unix_s` seconds since 1970."""
    turn.prompt_bytes = prompt_bytes
    if max_tokens is not None:
        turn.max_tokens = max_tokens
    if limits.wait_s_max is not None:
        turn.wait_ms_max = round(limits.wait_s_max * 1000)
    if limits.deadline is not None:
        turn.deadline_ms = max(0, round((limits.deadline - unix_s) * 1000))
    if limits.budget_usd is not None:
        turn.budget_usd = limits.budget_usd


def told(lines: Iterable[bytes], aliases: Mapping[str, str], date: str) -> list[turn_pb2.LimitHeader]:
    """The headers among `lines` (each with its line end) that tell of rate limits, by the names that the scheduler
    knows, and the answer's date; `date` where it names none. Empty where nothing is told."""
    return _found(lines, _TELLING, aliases, date)


def told_wait(lines: Iterable[bytes], date: str) -> list[turn_pb2.LimitHeader]:
    """As `told`, but only how long to wait."""
    return _found(lines, _WAIT, {}, date)


def reported_status(status: int, too_large: bool) -> int:
    """What the scheduler is told that an engine answered: a request that is too large in itself is no reason to leave
    its replica alone, whichever status says so."""
    return CONTENT_TOO_LARGE if status == TOO_MANY_REQUESTS and too_large else status


def _found(
    lines: Iterable[bytes], telling: re.Pattern[bytes], aliases: Mapping[str, str], date: str
) -> list[turn_pb2.LimitHeader]:
    found: list[turn_pb2.LimitHeader] = []
    for line in lines:
        name, _, value = line.partition(b":")
        lower = name.lower().decode("latin-1")
        if lower == "date":
            date = value.strip().decode("latin-1")
        elif (lower in aliases or telling.match(name)) and len(found) < _HEADERS_MAX:
            text = value.strip().decode("latin-1")[:_VALUE_CHARS_MAX]
            found.append(turn_pb2.LimitHeader(name=aliases.get(lower, lower), value=text))
    if found:
        found.append(turn_pb2.LimitHeader(name="date", value=date[:_VALUE_CHARS_MAX]))
    return found


class LastTold:
    """By replica, what its last answer told, and when."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, list[turn_pb2.LimitHeader]]] = {}

    def take(self, at: float, replica: str, headers: list[turn_pb2.LimitHeader]) -> None:
        """An answer of `replica` told `headers`, which are not empty, at monotonic time `at`."""
        self._told[replica] = at, headers

    def known(self, at: float) -> list[turn_pb2.KnownLimits]:
        """What a scheduler that restarted is told."""
        return [
            turn_pb2.KnownLimits(replica=replica, limit_headers=headers, age_ms=max(0, round((at - then) * 1000)))
            for replica, (then, headers) in self._told.items()
        ]


def _number(text: bytes | None, limit: float) -> float | None:
    if text is None or not _NUMBER.fullmatch(text):
        return None
    number = float(text)
    return number if number <= limit else None


def _date(text: bytes | None) -> float | None:
    """Seconds since 1970."""
    if text is None:
        return None
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        date = datetime.fromisoformat(text.decode("ascii"))
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
