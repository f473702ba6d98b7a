"""The figures of `bench relay`: medians and spread over its repeats, and whether they keep the bars. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CHUNK_X_NGINX_MAX = 2.5
"""A chunk is the hot path: each token of each stream. nginx does the least that a proxy can do, in C; within a small
multiple of it, one core carries the streams of a pool."""
STREAM_KIB_MAX = 20.0
"""Ten thousand waiting streams fit in 200 MB."""
DISCONNECT_S_MAX = 1.0
"""An engine generates for nobody no longer than that, even if a thousand clients leave at once."""

QUANTITIES = {
    "turn_us": "CPU µs a turn",
    "chunk_us": "CPU µs a chunk",
    "stream_kib": "KiB an open stream",
    "disconnect_s": "s to disconnect",
}
"""Fields of `Sample` that are figures, and their titles."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One arm in one repeat."""

    turn_us: float
    """CPU µs of a turn that is not streamed."""
    chunk_us: float
    """CPU µs of a chunk, the beginning and end of its stream included."""
    stream_kib: float
    """KiB of memory that each open stream added."""
    disconnect_s: float
    """Seconds from the first of many disconnects until the last has reached the engine."""
    errors: int
    first_error: str
    """Empty where there are none."""


def report(luftpause: Sequence[Sample], yardstick: Sequence[Sample], name: str) -> dict[str, Any]:
    """The report of both arms' samples, the same repeats in the same order; `name` is the yardstick's.

    - `figures`: by quantity, for `luftpause`, the yardstick and their `ratio` in the same repeat (null where the
      yardstick has none): `{"median", "min", "max"}`
    - `errors` by arm, and the `first_error`
    - `bars`: `{"what", "most", "seen"}`; `seen` is null where it could not be measured
    - `passed`: whether all that was measured keeps its bar
    """
    figures: dict[str, Any] = {}
    for quantity in QUANTITIES:
        ours, theirs = [[float(getattr(each, quantity)) for each in arm] for arm in (luftpause, yardstick)]
        ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b > 0]
        figures[quantity] = {"luftpause": _spread(ours), name: _spread(theirs), "ratio": _spread(ratios)}
    both = {"luftpause": luftpause, name: yardstick}
    errors = {arm: sum(each.errors for each in samples) for arm, samples in both.items()}
    chunk_ratio = figures["chunk_us"]["ratio"]["median"] if name == "nginx" else None
    bars = [
        _bar("chunk_us ÷ nginx's", CHUNK_X_NGINX_MAX, chunk_ratio),
        _bar("stream_kib", STREAM_KIB_MAX, figures["stream_kib"]["luftpause"]["median"]),
        _bar("disconnect_s", DISCONNECT_S_MAX, figures["disconnect_s"]["luftpause"]["median"]),
        _bar("errors", 0, sum(errors.values())),
    ]
    return {
        "yardstick": name,
        "figures": figures,
        "errors": errors,
        "first_error": next((each.first_error for arm in both.values() for each in arm if each.first_error), ""),
        "bars": bars,
        "passed": all(bar["seen"] is None or bar["seen"] <= bar["most"] for bar in bars),
    }


def _bar(what: str, most: float, seen: float | None) -> dict[str, Any]:
    return {"what": what, "most": most, "seen": seen}


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    spread = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, 4) for name, value in spread.items()}
