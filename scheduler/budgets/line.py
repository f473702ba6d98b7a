"""Runs whose turns were refused for a while, each told when its own would fit: a place in line. Pure.

Who is told the same as all others comes back with all others, and is refused again. So each is told a time after those
that were told before it, as far apart as the window refills what such a turn takes. Nothing is kept free for them: what
others take meanwhile is waited for. A place is its run's until it was used, or for KEPT_S after its time.
"""

from __future__ import annotations

import math

from immutables import Map
from msgspec import Struct

from common.ids import ReplicaName
from scheduler.budgets.ledger import Budget, needs
from scheduler.budgets.prediction import Need
from scheduler.budgets.spend import RunKey
from scheduler.events import RunClass

KEPT_S = 60.0
PLACES_MAX = 4096
"""More runs get no place: they are told the end of the line."""


class Line(Struct, frozen=True, gc=False):
    """Those that were told to come again."""

    due: Map[RunKey, float] = Map()
    """When each of them may come."""
    ends: Map[tuple[ReplicaName, RunClass], float] = Map()
    """By replica and class, when the last one of those may come that go before a newcomer of the class."""


EMPTY_LINE = Line()


def due_of(line: Line, run: RunKey | None, now: float) -> float | None:
    """When the run was told to come; None: it has no place."""
    due = line.due.get(run) if run is not None else None
    return due if due is not None and now <= due + KEPT_S else None


def with_place(line: Line, run: RunKey, of: tuple[ReplicaName, RunClass], due: float, now: float) -> Line:
    """With a run that is told to come at `due`, for a replica and as a run of a class; interactive ones go before
    batch ones."""
    places = line.due
    if len(places) >= PLACES_MAX and run not in places:
        places = Map({each: then for each, then in places.items() if now <= then + KEPT_S})
    if len(places) < PLACES_MAX or run in places:
        places = places.set(run, due)
    replica, run_class = of
    ends = line.ends
    for behind in RunClass:
        if behind >= run_class:
            ends = ends.set((replica, behind), max(due, ends.get((replica, behind), due)))
    return Line(places, ends)


def without_place(line: Line, run: RunKey) -> Line:
    """With a run less, whose turn is held or placed."""
    return Line(line.due.delete(run), line.ends) if run in line.due else line


class Scarcest(Struct, frozen=True, gc=False):
    """The window that has room for the fewest turns of a kind."""

    share: float = 1.0
    """What is left of it."""
    each_s: float = 0.0
    """Seconds in which it refills what a turn takes."""


def scarcest(budget: Budget, need: Need, usd: float, at: float) -> Scarcest:
    """That of turns that take `need` and `usd`."""
    fewest, found = math.inf, Scarcest()
    for window, amount in needs(budget, need, usd, at):
        if amount > 0 and window.level / amount < fewest:
            fewest = window.level / amount
            found = Scarcest(window.level / max(window.capacity, 1e-9), amount / max(window.rate, 1e-9))
    return found
