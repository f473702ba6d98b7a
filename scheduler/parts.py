"""What a caller's batch work may take of a replica's KV cache beside callers that have less. Pure.

Who is next is not enough to be fair: a caller with two runs is always next, and yet each of its turns shares every step
with all that a caller with forty has in flight. So where callers of unequal weight meet, the heavy one is held to a
part of the cache, and less than an equal one beside a much lighter caller: what that one leaves stays empty, since it
is what makes its turns quick. A caller weighs as much as it has batch runs at work anywhere, so that where it
is held to its part it still counts as heavy. Parts are set anew at each probe. Used by `admission`.
"""

from __future__ import annotations

from collections.abc import Mapping

from immutables import Map
from msgspec import Struct

from common.ids import Caller

LIGHTER = 2 / 3
"""A caller is lighter than another if it has fewer than so many of its runs."""
MUCH_LIGHTER = 2 / 5
BESIDE_MUCH_LIGHTER = 2 / 5
"""Of an equal part, for a caller beside one that is much lighter."""
FITS_FROM = 2 / 3
"""A run fits into what is left of a part if so much of it does: parts are a few runs large."""


class Taken(Struct, frozen=True, gc=False):
    """Tokens of a replica's KV cache that the batch work of one caller takes."""

    resident: int = 0
    """Of its runs at home here that are in flight or expected back."""
    flying: int = 0
    """Of its turns in flight here, as estimated when they were placed."""


NOTHING = Taken()
Takings = Map[Caller, Taken]
"""Of the callers that have batch work on a replica."""
NO_TAKINGS: Takings = Map()
Parts = Map[Caller, int]
"""Most tokens that a caller's batch work may take of a replica; those that are not named take what there is."""
NO_PARTS: Parts = Map()


def with_change(takings: Takings, caller: Caller, *, resident: int = 0, flying: int = 0) -> Takings:
    """`takings` with so many tokens more, or fewer, of one caller."""
    if not resident and not flying:
        return takings
    before = takings.get(caller, NOTHING)
    after = Taken(before.resident + resident, before.flying + flying)
    return takings.delete(caller) if after == NOTHING else takings.set(caller, after)


def parts_of(takings: Takings, batch_runs: Mapping[Caller, int], tokens: float) -> Parts:
    """The parts of `tokens` for the callers in `takings`; `batch_runs`: how many each has at work anywhere."""
    if len(takings) < 2:
        return NO_PARTS
    least = min(batch_runs[caller] for caller in takings)
    equal = max(0.0, tokens) / len(takings)
    return Map(
        {
            caller: int(equal * BESIDE_MUCH_LIGHTER if least < MUCH_LIGHTER * batch_runs[caller] else equal)
            for caller in takings
            if least < LIGHTER * batch_runs[caller]
        }
    )
