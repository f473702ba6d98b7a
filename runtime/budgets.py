"""Budgets over a run and everything below it. Pure: what is used is told by the journals, so it survives a restart."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.records import Limits
from runtime.run import Usage


@dataclass(frozen=True, slots=True)
class Exceeded:
    """The first limit that is reached."""

    which: str
    used: float
    limit: float
    left_out: int = 0
    """Tool calls that were asked for and are not made."""

    def __str__(self) -> str:
        more = f" ({self.left_out} more asked for and not made)" if self.left_out else ""
        return f"budget exceeded: {self.which} {self.used:g}/{self.limit:g}{more}"


def exceeded(limits: Limits, used: Usage, age_s: float, waiting: int = 0) -> Exceeded | None:
    """Which limit forbids another turn or tool round; None: all leave room.

    `used` is the subtree's, the calls of the round included that is about to be made: so calls may reach their limit,
    and tokens may not, since the next turn needs some. `waiting` of these calls have not begun. `age_s` is how long ago
    the run of the budget was started.
    """
    if limits.tokens is not None and used.tokens >= limits.tokens:
        return Exceeded("tokens", used.tokens, limits.tokens)
    if limits.tool_calls is not None and used.tool_calls > limits.tool_calls:
        return Exceeded("tool calls", used.tool_calls - waiting, limits.tool_calls, waiting)
    if limits.seconds is not None and age_s >= limits.seconds:
        return Exceeded("seconds", round(age_s, 1), limits.seconds)
    return None
