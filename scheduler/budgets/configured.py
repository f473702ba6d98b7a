"""What the pool file says of limits and prices, as the core has it. Pure."""

from __future__ import annotations

from immutables import Map

from common.ids import Model
from common.limits import LIMIT
from common.pool import Replica
from scheduler.budgets.headers import PERIODS_S, Dimension
from scheduler.budgets.ledger import Budget, Limit, Price, start

_PRICED_TOKENS = 1_000_000


def budget_of(replica: Replica, at: float) -> Budget | None:
    """The budget that a replica starts with; None where it has no limits, fallback or price."""
    if replica.limits is not None:
        return start(tuple(_limit(name, amount) for name, amount in replica.limits.items()), at)
    return Budget() if replica.fallback or replica.price else None


def prices_of(replica: Replica) -> Map[Model, Price] | None:
    """The prices of its models, by every name that they are asked for; None where it names none."""
    if replica.price is None:
        return None
    prices = {}
    for model, price in replica.price.items():
        asked = [model, *(name for name, own in (replica.aliases or {}).items() if own == model)]
        cached = price.get("cached")
        a_token = Price(
            price.get("input", 0.0) / _PRICED_TOKENS,
            price.get("output", 0.0) / _PRICED_TOKENS,
            None if cached is None else cached / _PRICED_TOKENS,
        )
        prices.update(dict.fromkeys(map(Model, asked), a_token))
    return Map(prices)


def _limit(name: str, amount: float) -> Limit:
    match = LIMIT.fullmatch(name)
    assert match is not None, "the pool file was checked"
    return Limit(Dimension[match[1].upper()], match[2], float(amount), PERIODS_S[match[2]])
