"""What runs with a budget of money have spent and may spend. Pure; nothing of the rest of the core is imported.

A turn reserves its likely price when it arrives, and gives it back when it leaves; what it did cost is settled once,
however often it is told, and never taken back. Settled spend is what survives a restart: `spend_ledger` keeps it.
"""

from __future__ import annotations

from immutables import Map
from msgspec import Struct

from common.ids import RunId, TurnId

SETTLED_REMEMBERED = 8192
"""Turns in each of the two generations of those that are settled: a report that comes again is of a recent one."""
FORGOTTEN_S = 30 * 86400.0
"""A run that spent nothing for so long may begin anew."""

_NO_RUNS: Map[RunId, Spend] = Map()
_NO_TURNS: Map[TurnId, None] = Map()


class Spend(Struct, frozen=True, gc=False):
    """The money of one run, US dollars."""

    limit: float
    settled: float = 0.0
    reserved: float = 0.0


class Spends(Struct, frozen=True, gc=False):
    """All runs that have a budget."""

    runs: Map[RunId, Spend] = _NO_RUNS
    young: Map[TurnId, None] = _NO_TURNS
    old: Map[TurnId, None] = _NO_TURNS


NOTHING_SPENT = Spends()


def limited(spends: Spends, run_id: RunId, limit: float | None) -> Spend | None:
    """The money of a run, with the limit that its turn names now, if it does; None: it has no budget."""
    known = spends.runs.get(run_id)
    if known is None:
        return None if limit is None else Spend(limit)
    return known if limit is None else Spend(limit, known.settled, known.reserved)


def reserve(spends: Spends, run_id: RunId, spend: Spend, usd: float) -> Spends | None:
    """Reserves the likely price of a turn; None: the run cannot afford it."""
    return None if spend.settled + spend.reserved + usd > spend.limit else take(spends, run_id, spend, usd)


def take(spends: Spends, run_id: RunId, spend: Spend, usd: float) -> Spends:
    """Reserves `usd` whether the run can afford it or not."""
    return _put(spends, run_id, Spend(spend.limit, spend.settled, spend.reserved + usd))


def release(spends: Spends, run_id: RunId, usd: float) -> Spends:
    """Gives back what a turn had reserved."""
    spend = spends.runs[run_id]
    return _put(spends, run_id, Spend(spend.limit, spend.settled, max(0.0, spend.reserved - usd)))


def settle(spends: Spends, run_id: RunId, turn_id: TurnId, usd: float) -> Spends:
    """Adds what a turn did cost, which is not settled yet."""
    spend = spends.runs[run_id]
    spends = _put(spends, run_id, Spend(spend.limit, spend.settled + usd, spend.reserved))
    young, old = spends.young, spends.old
    if len(young) >= SETTLED_REMEMBERED:
        young, old = _NO_TURNS, young
    return Spends(spends.runs, young.set(turn_id, None), old)


def is_settled(spends: Spends, turn_id: TurnId) -> bool:
    """Whether the turn's cost has been added before."""
    return turn_id in spends.young or turn_id in spends.old


def _put(spends: Spends, run_id: RunId, spend: Spend) -> Spends:
    return Spends(spends.runs.set(run_id, spend), spends.young, spends.old)
