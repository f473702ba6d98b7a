"""What goes wrong in a chaos, and when: drawn from a seed. Pure: the same seed and length, the same plan.

A plan is a shuffled deck of every fault that there is, dealt again and again, so that each has its turn; a short plan
begins with one fault of each kind. Processes are killed in the first part only, since memory is judged in the last
third. Read next: `chaos_rig`, which lets it happen.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "freeze", "fill", "reset", "delay", "drop", "flood"]

ENGINES = ("engine-0", "engine-1")
DATAPLANES = ("dataplane-0", "dataplane-1")
SERVICES = (*ENGINES, "scheduler", *DATAPLANES, "runtime")
LINKS = ("dataplane-0>scheduler", "dataplane-1>scheduler", ">engine-0", ">engine-1", "runtime>dataplane-0")
"""Connections between services, each through a proxy of its own; those to engines carry turns and probes."""

KILLS_UNTIL = 0.6
"""Share of the time in which processes are killed."""
_FIRST_AT_S = 1.0
_GAP_S_MEAN = 1.2
_BETWEEN_S = 0.1
"""At least, between two faults of one target."""
_DECK: dict[Kind, tuple[tuple[str, ...], tuple[float, float]]] = {
    "kill": (SERVICES, (0.1, 2.0)),
    "freeze": ((*ENGINES, "scheduler", *DATAPLANES), (0.3, 4.0)),
    "fill": (("runtime",), (0.3, 1.5)),
    "reset": (LINKS, (0.0, 0.0)),
    "delay": (LINKS, (1.0, 4.0)),
    "drop": (LINKS, (0.5, 6.0)),
    "flood": (("clients",), (1.0, 3.0)),
}
"""By kind: its targets, and how long it lasts, in seconds."""
_ENDS_A_PROCESS = ("kill", "fill")
"""A runtime whose disk was full is started again."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    at_s: float
    """Seconds after the start."""
    kind: Kind
    target: str
    for_s: float
    """Seconds until it is over; 0: at once."""


def plan(seed: int, seconds: float) -> tuple[Fault, ...]:
    """All faults of a chaos of `seconds`, in the order of their times; all are over at its end."""
    chance = random.Random(f"chaos:{seed}")
    free_at: dict[str, float] = {}
    faults: list[Fault] = []
    at_s = _FIRST_AT_S
    for kind, target in _deal(chance):
        shortest_s, longest_s = _DECK[kind][1]
        for_s = round(chance.uniform(shortest_s, longest_s), 3)
        begins_s = round(max(at_s, free_at.get(target, 0.0)), 3)
        at_s += chance.expovariate(1 / _GAP_S_MEAN)
        if at_s >= seconds:
            break
        latest_s = seconds * KILLS_UNTIL if kind in _ENDS_A_PROCESS else seconds
        if begins_s + for_s <= latest_s:
            faults.append(Fault(begins_s, kind, target, for_s))
            free_at[target] = begins_s + for_s + _BETWEEN_S
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.kind, fault.target)))


def _deal(chance: random.Random) -> Iterator[tuple[Kind, str]]:
    """Kinds with their targets, without end: one of each kind, those that end processes first, then whole decks."""
    kinds = sorted(_DECK, key=lambda kind: (kind not in _ENDS_A_PROCESS, chance.random()))
    yield from ((kind, chance.choice(_DECK[kind][0])) for kind in kinds)
    cards = [(kind, target) for kind, (targets, _) in _DECK.items() for target in targets]
    while True:
        chance.shuffle(cards)
        yield from itertools.chain(cards)
