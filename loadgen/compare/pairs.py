"""Whether one arm is worse than another, by pairs of measurements made one after the other. Pure.

Machines drift; the two of a pair have seen the same one, so what counts is the ratio within each pair.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.compare.figures import LESS_IS_BETTER, QUANTITIES, Sample, quantities, ratio

# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom; beyond, the next lower one there is.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio: its geometric mean over pairs, and where it lies with 95 %."""

    mean: float
    low: float
    high: float


def interval(ratios: Sequence[float]) -> Interval | None:
    """The interval of ratios above 0, by Student's t on their logarithms; None with fewer than two."""
    if len(ratios) < 2:
        return None
    logs = [math.log(each) for each in ratios]
    mean = statistics.mean(logs)
    half = _T95[min(len(logs) - 1, len(_T95)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def worse(ours: Sequence[Sample], theirs: Sequence[Sample], run_class: str) -> dict[str, Interval | None]:
    """By each of QUANTITIES, how many times worse `ours` are than `theirs` (above 1: worse); None: never measured.

    Samples of the same place are pairs.
    """
    found: dict[str, Interval | None] = {}
    for name in QUANTITIES:
        ratios = []
        for our, their in zip(ours, theirs, strict=True):
            a = quantities(our.tally(run_class), our.seconds)[name]
            b = quantities(their.tally(run_class), their.seconds)[name]
            times = ratio(a, b) if name in LESS_IS_BETTER else ratio(b, a)
            if times:
                ratios.append(times)
        found[name] = interval(ratios)
    return found
