"""Counts of durations by upper bounds, cheap enough for every turn; an exposition makes metrics of them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Durations in seconds: how many are at most each of `bounds_s`, and their sum."""

    __slots__ = ("bounds_s", "counts", "total_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        """The n-th: above the bound before, at most the n-th; the last: above all."""
        self.total_s = 0.0

    def add(self, duration_s: float) -> None:
        """Counts one duration."""
        self.counts[bisect_left(self.bounds_s, duration_s)] += 1
        self.total_s += duration_s


def buckets(bounds_s: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    """`counts` of a Histogram as Prometheus has them: how many are at most each bound."""
    return list(zip((*map(str, bounds_s), "+Inf"), accumulate(counts), strict=True))
