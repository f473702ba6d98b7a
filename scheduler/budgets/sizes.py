"""Turns that are larger than a whole window: which never fit, and which were refused for their size alone. Pure.

Such a turn is refused as one that comes too soon is: with a 429 whose Retry-After may be minutes (OpenAI: "Request too
large for … on tokens per min (TPM): Limit 6000, Requested 70000"), or with a 413 (Groq). It says nothing of turns that
do fit, but that the provider counts `max_tokens` when a turn arrives. That is believed for a while, since a provider
may refuse for reasons that it does not tell.
Read next: `ledger`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.budgets.headers import Dimension
from scheduler.budgets.prediction import Need
from scheduler.budgets.windows import Window

BELIEVED_S = 3600.0
LEFT_MIN = 0.5
"""A window that is told to hold less than this share of itself may have been too empty, rather than too small."""
COUNTED = (Dimension.TOKENS, Dimension.INPUT, Dimension.OUTPUT)


def too_small(windows: Iterable[Window], need: Need, *, max_counts: bool) -> Window | None:
    """The window that is too small for the turn even when full, if there is one; `max_counts`: by its `max_tokens` too.

    One that was learned from 429s alone is a guess, which forbids nothing."""
    max_tokens = need.max_tokens if max_counts and need.max_tokens is not None else 0
    most = need.prompt_least + max_tokens
    for window in windows:
        dimension = window.dimension
        if window.limit > most or dimension not in COUNTED or window.learned:
            continue
        prompt = need.prompt_least if dimension is not Dimension.OUTPUT else 0.0
        if prompt + (max_tokens if dimension is not Dimension.INPUT else 0) >= window.limit:
            return window
    return None


def refused_for_size(windows: Sequence[Window], charges: Sequence[float], left: Sequence[float | None]) -> bool:
    """Whether a refused turn is larger than a window, and nothing else explains it. Of each window, `charges`: what it
    was to take; `left`: what its answer told, None: nothing."""
    found = False
    for window, charge, told in zip(windows, charges, left, strict=True):
        is_larger = window.dimension in COUNTED and not window.learned and charge > window.limit
        if told is not None and told < (LEFT_MIN * window.limit if is_larger else charge):
            return False
        found = found or is_larger
    return found
