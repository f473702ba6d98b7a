"""Which window a 429 is about, where a replica has several. Pure. What follows for it is in `windows`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.budgets.answers import window_of
from scheduler.budgets.headers import LimitsTold
from scheduler.budgets.windows import Mark, Window, by_own_clock_from, is_again, is_doubted, level_at, told_falsely

BLAMED_BELOW = 0.9
"""A window that is fuller by our account would have to lie tenfold: it is blamed only where all are as full."""

HIDDEN_FROM = 0.5
"""Where all windows hold so much of themselves, a 429 is rather about one that nothing was told of."""


def told_so(windows: Sequence[Window], charges: Sequence[float], limits: LimitsTold) -> int | None:
    """The window that the 429 itself tells to hold less than the refused turn takes of it: its `charges`."""
    for seen in limits.seen:
        number = window_of(windows, seen)
        if number is not None and seen.remaining is not None and seen.remaining < max(charges[number], 1.0):
            return number
    return None


def blamed(windows: Sequence[Window], at: float) -> list[int]:
    """The windows to blame where none is told to hold too little: the scarcest by our account at a first refusal, the
    others at a second one, and then all; those that were to blame before, once they are doubted no more. Windows that
    are learned from 429s alone are all to blame, since which of them were used up was never known."""
    shares = [level_at(window, at) / window.capacity if window.capacity else math.inf for window in windows]
    learned = [number for number, window in enumerate(windows) if window.learned]
    told = [number for number, window in enumerate(windows) if not window.learned]
    if learned and all(shares[number] >= HIDDEN_FROM for number in told):
        return learned
    likely = [number for number in told if shares[number] < BLAMED_BELOW] or told
    again = [number for number in likely if is_again(windows[number], at)]
    if again:
        return again
    doubted = [number for number in likely if is_doubted(windows[number], at)]
    if doubted:
        return [number for number in likely if number not in doubted] or doubted
    before = [number for number in likely if windows[number].distrust_s]
    return before or sorted(likely, key=lambda number: shares[number])[:1]


def is_unexplained(windows: Sequence[Window], at: float) -> bool:
    """Whether a 429 is about none of the windows, as far as is known: they have plenty left."""
    return all(level_at(window, at) >= HIDDEN_FROM * window.capacity and not window.learned for window in windows)


def is_belied(windows: Sequence[Window], wait_s: float, at: float) -> bool:
    """Whether a 429 at `at` that names this wait belies the reset of a fixed window: then what it is about is that."""
    return any(told_falsely(window, wait_s, at) for window in windows)


def by_own_clock(windows: Sequence[Window], wait_s: float, at: float) -> list[Window]:
    """The windows, those of which are full again after `wait_s`, whatever they say, that count as fixed."""
    return [by_own_clock_from(window, wait_s, at) if window.is_fixed else window for window in windows]


def was_sent_before(windows: Sequence[Window], marks: Sequence[Mark]) -> bool:
    """Whether a turn with these marks was sent before such a reset was belied: its 429 is no further news."""
    return any(window.keeps_time > mark.then.keeps_time for window, mark in zip(windows, marks, strict=False))
