"""Windows of a provider of which it tells nothing but its 429s: all, or those beside what its answers tell. Pure.

What was sent in about a minute before the first 429 is what it gives, nearly: of that two windows are made, of tokens
and of requests, since nothing says which of them was used up. A further 429 makes both smaller by a fifth, and
one that is in use grows by two hundredths a minute: so the next 429 comes minutes later, not at once.
Read next: `ledger`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from scheduler.budgets.headers import Dimension
from scheduler.budgets.windows import Window, full

PERIOD_S = 60.0
SHARE = 0.85
"""Of what was sent: a full window gives more at first than it does later."""
TOLD_S_MAX = 3600.0
"""A window of a longer period, by the day perhaps, may have one by the minute beside it; one that tells more than it
gives looks longer than it is."""
REQUESTS_MIN = 2.0
"""Fewer were sent: nothing is learned of them."""


class Usage(Struct, frozen=True, gc=False):
    """What was sent, the past fading in PERIOD_S."""

    requests: float = 0.0
    tokens: float = 0.0
    at: float = 0.0


def sent(usage: Usage, requests: float, tokens: float, at: float) -> Usage:
    """`usage` with more sent at `at`; with less, where a provider took nothing of it."""
    kept = math.exp(-max(0.0, at - usage.at) / PERIOD_S)
    return Usage(max(0.0, usage.requests * kept + requests), max(0.0, usage.tokens * kept + tokens), max(at, usage.at))


def windows(known: Sequence[Window], usage: Usage, at: float) -> tuple[Window, ...]:
    """The windows beside the `known` ones that a 429 at `at` lets conclude: empty ones; none where too little was
    sent, or they would be of a dimension of which a window as short as that is known."""
    now = sent(usage, 0.0, 0.0, at)
    if now.requests < REQUESTS_MIN:
        return ()
    amounts = ((Dimension.TOKENS, now.tokens), (Dimension.REQUESTS, now.requests))
    told = {window.dimension for window in known if window.period_s <= TOLD_S_MAX}
    return tuple(
        replace(full(dimension, "", SHARE * amount, PERIOD_S, at), level=0.0, learned=True, cautious_at=at)
        for dimension, amount in amounts
        if amount > 0 and dimension not in told
    )
