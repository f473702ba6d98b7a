"""Whether and when a caller's runs come back after a turn: learned, never read off a finish reason alone. Pure.

Agents whose tools are text pause after `stop` or `length`, and agents rarely say that a run has ended. So it is
counted, by how many turns the run had done and whether the reply called a tool, how often another turn came, and how
long the pauses were.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

TURNS_MAX = 16
"""Runs with more turns done count as with so many."""
PAUSED_AT_FIRST = 1.0
"""Taken for the share of runs that return after a tool call, until it is known."""
IDLE_AT_FIRST = 0.25
"""The same after a reply without one."""
EXPECTED_FROM = 0.3
"""A run is expected back if so large a share of those like it returned."""
WEIGHT = 0.15
"""Of one run in the share: one run that returned makes those like it expected."""
PAUSE_WEIGHT = 0.05
SPREADS = 4.0
"""A run is waited for the mean pause and so many mean deviations."""
PAUSE_S_MIN = 1.0
PAUSE_S_MAX = 60.0
"""Longest wait for a run; real tool pauses last 10 s at the median and 171 s at the 90th percentile, and what never
comes back must not hold a place."""
CALLERS_MAX = 10_000
"""Callers whose habits are kept; those that come later are taken for average."""


class Habit(Struct, frozen=True, gc=False):
    """How the runs of one caller behave."""

    returns: tuple[float, ...] = (IDLE_AT_FIRST,) * TURNS_MAX + (PAUSED_AT_FIRST,) * TURNS_MAX
    """Share that came back, by turns done; first those that were idle, then those paused on a tool."""
    pause_s: float | None = None
    """Mean pause; None: none was seen."""
    spread_s: float = 0.0
    """Mean deviation from it."""

    def expects(self, turns_done: int, *, paused: bool) -> bool:
        """Whether a run is expected back after its turn number `turns_done` (from 1)."""
        return self.returns[_index(turns_done, paused)] >= EXPECTED_FROM

    @property
    def patience_s(self) -> float:
        """How long a run is waited for."""
        if self.pause_s is None:
            return PAUSE_S_MAX
        return min(PAUSE_S_MAX, PAUSE_S_MIN + self.pause_s + SPREADS * self.spread_s)


USUAL = Habit()


def returned(habit: Habit, turns_done: int, pause_s: float, *, paused: bool) -> Habit:
    """A run came back after a pause."""
    index = _index(turns_done, paused)
    share = habit.returns[index]
    pause_s = min(pause_s, PAUSE_S_MAX)
    if habit.pause_s is None:
        mean_s, spread_s = pause_s, pause_s / 2
    else:
        mean_s = habit.pause_s + PAUSE_WEIGHT * (pause_s - habit.pause_s)
        spread_s = habit.spread_s + PAUSE_WEIGHT * (abs(pause_s - habit.pause_s) - habit.spread_s)
    return Habit(_with(habit.returns, index, share + WEIGHT * (1 - share)), mean_s, spread_s)


def stayed_away(habit: Habit, turns_done: int, *, paused: bool) -> Habit:
    """A run that was expected did not come back in time, or has ended."""
    index = _index(turns_done, paused)
    return replace(habit, returns=_with(habit.returns, index, habit.returns[index] * (1 - WEIGHT)))


def _index(turns_done: int, paused: bool) -> int:
    return min(turns_done or 1, TURNS_MAX) - 1 + TURNS_MAX * paused


def _with(shares: tuple[float, ...], index: int, share: float) -> tuple[float, ...]:
    return shares if share == shares[index] else (*shares[:index], share, *shares[index + 1 :])
