"""How often Python looks for garbage in cycles: seldom, in services whose events leave none behind."""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 20, 100)
"""New objects before a look at the young ones, instead of 700, then looks before one at older ones: most of what lives
is state, which has no cycles, and looking through it for some costs an eighth of a turn, and more with every run."""


def collect_seldom() -> None:
    """To be called once all is imported: what is there by then is never looked at."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
