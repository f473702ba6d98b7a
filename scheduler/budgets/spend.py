"""What runs have spent and may spend, and until when they are wanted. Pure; imports nothing of the rest of the core.

A turn of a run with a budget of money reserves its likely price when it arrives, and gives it back when it leaves; what
it did cost is settled once, however often it is told, and never taken back. What runs without a budget spend is counted
too, since they may name one later. The budget and the deadline that a turn names hold for the run's later turns that
name none. What a run has is its caller's alone. All but the reservations survives a restart: `spend_ledger` keeps it.
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

from immutables import Map
from msgspec import Struct
from msgspec.structs import replace

from common.ids import Caller, RunId, TurnId

SETTLED_REMEMBERED = 8192
"""Turns in each of the two generations of those that are settled: a report that comes again is of a recent one."""
FORGOTTEN_S = 30 * 86400.0
"""A run that spent nothing for so long may begin anew."""
UNLIMITED_FORGOTTEN_S = 86400.0
"""The same of a run that named no limit."""
RUNS_REMEMBERED = 65_536
"""Runs in each of the two generations of those with a limit, and of those without."""
SAME_S = 1.0
"""Deadlines that are no further apart are the same, told by turns that came more or less quickly."""

RunKey = tuple[RunId, Caller]
"""A run's id is its caller's own: two callers with the same one have two runs."""

K = TypeVar("K")
V = TypeVar("V")
_EMPTY: Map[Any, Any] = Map()


class Spend(Struct, frozen=True, gc=False):
    """The money of one run, US dollars, and its deadline."""

    limit: float = math.inf
    settled: float = 0.0
    reserved: float = 0.0
    deadline: float = math.inf
    """On the clock of the events: nobody wants a turn of it after that."""

    @property
    def is_limited(self) -> bool:
        """Whether the run named a budget or a deadline."""
        return self.limit < math.inf or self.deadline < math.inf


class Recent(Struct, Generic[K, V], frozen=True, gc=False):
    """The latest entries of a map, in two generations: when the young one is full, the old one goes."""

    young: Map[K, V] = _EMPTY
    old: Map[K, V] = _EMPTY

    def get(self, key: K) -> V | None:
        """What was set last and is remembered still."""
        return self.young.get(key) or self.old.get(key)

    def set(self, key: K, value: V, most: int) -> Recent[K, V]:
        """With one entry more; `most` in a generation."""
        if len(self.young) >= most and key not in self.young:
            return Recent(_EMPTY.set(key, value), self.young)
        return Recent(self.young.set(key, value), self.old)

    def without(self, key: K) -> Recent[K, V]:
        """With one entry less, if it is there."""
        if key not in self.young and key not in self.old:
            return self
        return Recent(*(each.delete(key) if key in each else each for each in (self.young, self.old)))


class Spends(Struct, frozen=True, gc=False):
    """All runs that spent something, or that have a budget or a deadline."""

    limited: Recent[RunKey, Spend] = Recent()
    """Those with a budget or a deadline."""
    unlimited: Recent[RunKey, Spend] = Recent()
    settled_turns: Recent[TurnId, bool] = Recent()
    of_nobody: Map[RunId, Spend] = _EMPTY
    """Of runs whose callers a ledger of an earlier version did not tell apart: what it had of an id counts for whoever
    comes with it, so that no spend is lost."""


NOTHING_SPENT = Spends()


def find(spends: Spends, run: RunKey) -> Spend | None:
    """What is known of a run; None: it spent nothing, and nothing limits it."""
    found = spends.limited.get(run) or spends.unlimited.get(run)
    return spends.of_nobody.get(run[0]) if found is None else found


def named(spends: Spends, run: RunKey, limit: float | None, deadline: float | None) -> Spends:
    """With the budget and the deadline that a turn names; None: it names none, and what was named before holds.

    The same object where nothing changes."""
    known = find(spends, run) or Spend()
    limit = known.limit if limit is None else limit
    if deadline is None or abs(deadline - known.deadline) <= SAME_S:
        deadline = known.deadline
    if limit == known.limit and deadline == known.deadline:
        return spends
    return _put(spends, run, Spend(limit, known.settled, known.reserved, deadline))


def without_deadline(spends: Spends, run: RunKey) -> Spends:
    """Of a run that has ended: another one of its id has a deadline of its own. What it spent stays spent."""
    known = find(spends, run) or Spend()
    return _put(spends, run, Spend(known.limit, known.settled, known.reserved))


def reserve(spends: Spends, run: RunKey, spend: Spend, usd: float) -> Spends | None:
    """Reserves the likely price of a turn; None: the run cannot afford it."""
    return None if spend.settled + spend.reserved + usd > spend.limit else take(spends, run, spend, usd)


def take(spends: Spends, run: RunKey, spend: Spend, usd: float) -> Spends:
    """Reserves `usd` whether the run can afford it or not."""
    return _put(spends, run, Spend(spend.limit, spend.settled, spend.reserved + usd, spend.deadline))


def release(spends: Spends, run: RunKey, usd: float) -> Spends:
    """Gives back what a turn had reserved."""
    spend = find(spends, run) or Spend()
    return _put(spends, run, Spend(spend.limit, spend.settled, max(0.0, spend.reserved - usd), spend.deadline))


def settle(spends: Spends, run: RunKey, turn_id: TurnId, usd: float) -> Spends:
    """Adds what a turn did cost, which is not settled yet."""
    spend = find(spends, run) or Spend()
    spends = _put(spends, run, Spend(spend.limit, spend.settled + usd, spend.reserved, spend.deadline))
    return replace(spends, settled_turns=spends.settled_turns.set(turn_id, True, SETTLED_REMEMBERED))


def is_settled(spends: Spends, turn_id: TurnId) -> bool:
    """Whether the turn's cost has been added before."""
    return spends.settled_turns.get(turn_id) is not None


def _put(spends: Spends, run: RunKey, spend: Spend) -> Spends:
    limited, unlimited = spends.limited, spends.unlimited
    if spend.is_limited:
        limited, unlimited = limited.set(run, spend, RUNS_REMEMBERED), unlimited.without(run)
    else:
        limited, unlimited = limited.without(run), unlimited.set(run, spend, RUNS_REMEMBERED)
    return replace(spends, limited=limited, unlimited=unlimited)
