"""Whether a run's next turn fits into the windows now, soon, or not soon. Pure; `session` asks it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from luftpause_client.windows import Window

WAIT_S_MAX = 15.0
"""A longer wait is one to suspend for."""
WAIT_MARGIN = 1.15
"""A window is given this much longer than it should need to refill."""


class Action(enum.StrEnum):
    """What a run does next. Equal to its text."""

    CONTINUE = "continue"
    """The next turn fits."""
    WAIT = "wait"
    """It will soon: stay and come again."""
    CHECKPOINT = "checkpoint"
    """It will not soon: save and leave."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a run does next, and why."""

    action: Action
    wait_s: float | None
    """Seconds until the turn is likely to fit: 0 where it does, None where nobody knows."""
    reason: str
    need_tokens: float
    """What the next turn takes at most, nineteen times in twenty."""


@dataclass(frozen=True, slots=True)
class Need:
    """What the next turn takes beside what others have reserved."""

    tokens: float
    reserved_tokens: float
    reserved_requests: int


def look(windows: Iterable[Window], need: Need, wait_s_max: float) -> Outlook:
    """What to do before a turn that takes `need`; a wait of more than `wait_s_max` is one to suspend for."""
    worst = Outlook(Action.CONTINUE, 0.0, "the next turn fits", need.tokens)
    for window in windows:
        amount, reserved = (
            (need.tokens, need.reserved_tokens) if window.unit == "tokens" else (1.0, float(need.reserved_requests))
        )
        if window.limit is not None:
            # What is larger than the whole window is tried when the window is full, rather than never.
            amount = min(amount, window.limit)
        room = window.remaining
        if window.reset_s == 0.0:
            if window.limit is None:
                continue  # it has just been filled, with nobody knows how much
            room = max(room, window.limit)
        deficit = amount + reserved - room
        if deficit > 0:
            held = f", {reserved:.0f} of it reserved" if reserved else ""
            reason = f"the next turn takes up to {amount:.0f} {window.unit}, {room:.0f} remain{held}"
            worst = _later(worst, later(_refill_s(window, deficit), reason, need.tokens, wait_s_max))
    return worst


def later(wait_s: float | None, reason: str, need_tokens: float, wait_s_max: float) -> Outlook:
    """The outlook of a turn that fits in `wait_s` seconds; None: nobody knows when."""
    soon = wait_s is not None and wait_s <= wait_s_max
    return Outlook(Action.WAIT if soon else Action.CHECKPOINT, wait_s, reason, need_tokens)


def _later(one: Outlook, other: Outlook) -> Outlook:
    """Of two, the one that waits longer."""
    if one.wait_s is None or (other.wait_s is not None and one.wait_s > other.wait_s):
        return one
    return other


def _refill_s(window: Window, deficit: float) -> float | None:
    """Seconds until a window has `deficit` more."""
    if window.reset_s is None:
        return None
    if window.limit is None or window.limit <= window.remaining:
        return window.reset_s
    return min(window.reset_s, deficit * window.reset_s / (window.limit - window.remaining) * WAIT_MARGIN)
