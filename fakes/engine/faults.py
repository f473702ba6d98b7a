"""Scripted faults: what goes wrong, for which requests, how often. Pure; `surface` and `server` make it go wrong.

A script is a list of objects. `fault` is one of
- `status`: answers with `code` (default 500), the header `Retry-After: <retry_after>` and `body` (a JSON value);
- `stall`: is silent for `seconds`, before the headers or, with `after_tokens`, after so many tokens;
- `die`: closes the connection before the headers or after `after_tokens`; with `reset` by a TCP reset;
- `slow`: the engine's steps take `factor` times as long while the request runs;
- `refuse`: stops listening for `seconds`, at once.
All but `refuse` can have `match` (applies to requests whose body contains it), `count` (applies so many times; default
always) and `chance` (applies with this probability, seeded; default 1). The first that applies to a request does.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args

from fakes.engine.errors import ApiError, bad_field

Kind = Literal["status", "stall", "die", "slow", "refuse"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of a script; the fields are the object's keys."""

    fault: Kind
    match: str = ""
    count: int | None = None
    chance: float = 1.0
    code: int = 500
    retry_after: str | int | float | None = None
    """Sent as it is, so that broken values can be scripted too."""
    body: Any = None
    seconds: float = 0.0
    after_tokens: int | None = None
    reset: bool = False
    factor: float = 1.0


_USED_BY: dict[str, tuple[str, ...]] = {
    "status": ("code", "retry_after", "body"),
    "stall": ("seconds", "after_tokens"),
    "die": ("after_tokens", "reset"),
    "slow": ("factor",),
    "refuse": ("seconds",),
}
_SELECTION = ("match", "count", "chance")


def parse_script(entries: Any) -> list[Fault]:
    """The faults of a decoded JSON list. Raises ApiError 400 naming the entry and the key."""
    if not isinstance(entries, list):
        raise ApiError(400, "faults: expected a list of objects")
    return [_parse(entry, f"faults[{position}]") for position, entry in enumerate(entries)]


def _parse(entry: Any, where: str) -> Fault:
    if not isinstance(entry, dict):
        raise bad_field(where, "an object")
    kind = str(entry.get("fault"))
    if kind not in get_args(Kind):
        raise bad_field(f"{where}.fault", "one of " + ", ".join(get_args(Kind)))
    known = ("fault", *_USED_BY[kind], *(() if kind == "refuse" else _SELECTION))
    for key, value in entry.items():
        if key not in known:
            raise bad_field(f"{where}.{key}", f"only {', '.join(known)} with {kind}")
        expected = _misfit(key, value)
        if expected:
            raise bad_field(f"{where}.{key}", expected)
    if kind in ("stall", "refuse") and "seconds" not in entry:
        raise bad_field(f"{where}.seconds", "a number of at least 0")
    return Fault(**entry)


def _misfit(key: str, value: Any) -> str | None:
    """What was expected of the key's value, or None where it fits."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_count = is_number and isinstance(value, int) and value >= 0
    match key:
        case "match":
            return None if isinstance(value, str) else "a string"
        case "count" | "after_tokens":
            return None if is_count else "an integer of at least 0"
        case "chance":
            return None if is_number and 0 <= value <= 1 else "a number from 0 to 1"
        case "code":
            return None if is_count and 400 <= value <= 599 else "an integer from 400 to 599"
        case "retry_after":
            return None if is_number or isinstance(value, str) else "a string or a number"
        case "seconds":
            return None if is_number and value >= 0 else "a number of at least 0"
        case "factor":
            return None if is_number and value >= 1 else "a number of at least 1"
        case "reset":
            return None if isinstance(value, bool) else "a boolean"
        case _:
            return None


class Script:
    """Faults in order, with what is left of their counts."""

    def __init__(self, seed: int, faults: Iterable[Fault] = ()) -> None:
        self._chance = random.Random(seed)
        self._left: list[tuple[Fault, int | None]] = []
        self.extend(faults)

    def extend(self, faults: Iterable[Fault]) -> None:
        """Adds faults after those that are there."""
        self._left += [(fault, fault.count) for fault in faults]

    def clear(self) -> None:
        """Forgets all faults."""
        self._left.clear()

    def describe(self) -> list[dict[str, Any]]:
        """The faults that still apply, as they were scripted, `count` being what is left."""
        return [
            {**_told(fault), **({} if left is None else {"count": left})} for fault, left in self._left if left != 0
        ]

    def take(self, body: bytes) -> Fault | None:
        """The fault for a request with this body, counted; None where none applies."""
        for position, (fault, left) in enumerate(self._left):
            if left == 0 or fault.match.encode() not in body:
                continue
            if fault.chance < 1.0 and self._chance.random() >= fault.chance:
                continue
            if left is not None:
                self._left[position] = (fault, left - 1)
            return fault
        return None


def _told(fault: Fault) -> dict[str, Any]:
    values = {f.name: (getattr(fault, f.name), f.default) for f in fields(fault)}
    return {name: value for name, (value, default) in values.items() if default is MISSING or value != default}
