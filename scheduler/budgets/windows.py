"""One rate limit window: what is left of it by our own account, corrected by what the provider tells. Pure.

Theory. A provider takes a request's cost off its window when the request arrives, by an estimate, and corrects that at
the end. So do we: `charge` at admission, `credit` at the end. Between, what answers tell is older than our account
(other turns were admitted since), so it is compared with what our account was right after that turn's own charge, and
the difference moves the account down at once. Up it goes only as far as it is surely too low, in whatever order turns
arrived: to what was left, less all in flight and all that ended since that turn was placed, less what of its own charge
the provider may not have taken.

A window refills continuously (a token bucket: its reset, the time until it is full, moves on with every use) or at once
(fixed: its reset stays where it is). Which of the two is told apart by evidence; until there is any, a window whose
reset was seen counts as fixed, which is the careful guess, and one that nobody told of as continuous.

A provider that refuses what should have fit again and again gives less than it says: `trust` is the share of its word
that is believed. It is measured at a second refusal, from what was spent since the window was last known; kept for half
an hour, twice as long each time; grows again by a hundredth a minute. A first refusal only makes cautious.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from scheduler.budgets.headers import Dimension

MARGIN = 0.005
"""Share of the window that is left unused: clocks and rounding."""
WHOLE = 0.98
"""A need above this share of the window waits for this share: nothing waits for the last drop, which may never come."""
SURELY = 1.0
TRUST_MIN = 0.05
TRUSTED_AFTER_429 = 0.93
DISTRUST_S = 1800.0
DISTRUST_S_MAX = 86400.0
TRUST_A_S = 0.01 / 60
MEASURED_MIN = 0.5
"""Share of a window that must have been given since the mark: less measures nothing."""
HONEST = 0.97
"""Who gave this share of what it said is believed."""
FLYING_MIN = 1e-6
"""Less is the error of a sum."""
AGAIN_S = 1.0  # refusals within this time are one: the turns were in flight together
SURPRISED = 0.01  # caution above it: there was a refusal in the last minutes
LEARNED_SHRINKS = 0.8
LEARNED_GROWS_A_S = 0.02 / 60
LEARNED_GROWS_BELOW = 0.25
"""It grows while no more than this share of it is left."""
CAUTION_AFTER_429 = 0.25
CAUTION_MAX = 1.0
CAUTION_HALF_LIFE_S = 120.0


class Window(Struct, frozen=True, gc=False):
    """One window of a replica. Amounts are in its dimension's unit."""

    dimension: Dimension
    label: str
    limit: float
    """What it holds when full, by the provider's word or the configuration."""
    period_s: float
    """A continuous one is refilled from empty in it."""
    level: float
    """What is left at `at`, turns in flight taken off; may be below 0."""
    at: float
    configured: bool = False
    """The configuration names it: nothing that is told makes its limit another."""
    told: bool = False
    """Whether the provider told of it."""
    resets_at: float | None = None
    """When it is full again, by the provider's last word, or since something was charged to a fixed one."""
    evidence: float = 0.0
    """Above 0: fixed; below: continuous."""
    charged: float = 0.0
    """All that was ever charged."""
    charged_then: float = 0.0
    """The same when the turn was charged whose answer told of the last reset: what came later is not in it."""
    implied_s: float = 0.0
    """The period that the last reset told would mean, were it a token bucket's; 0: not known."""
    told_remaining: float = -1.0
    """The last `remaining` told, to compare with the next; -1: none yet."""
    rolled: int = 0
    """How often a fixed one was reset."""
    shifted: float = 0.0
    """Sum of the corrections of `level`, so that a turn's own `level` of then can be compared with later ones."""
    trust: float = 1.0
    trust_kept: float = 1.0
    """What trust was when it last fell: it goes back there, should it turn out to have grown too much."""
    trusted_at: float = 0.0
    """When trust begins, or began, to grow again; it is kept until then."""
    distrust_s: float = DISTRUST_S
    caution: float = 0.0
    """Share by which a need counts as more, just after a surprise; halves in CAUTION_HALF_LIFE_S."""
    cautious_at: float = 0.0
    flying: float = 0.0
    """What turns in flight have taken."""
    settled: float = 0.0
    """What all turns that ended did cost."""
    overhead: float = 0.0
    """How much more the provider was seen to take of it when a turn arrives than is expected."""
    spent: float = 0.0
    """Charged and not credited since the mark, when the window was known to hold `mark_level`."""
    mark_level: float = 0.0
    marked_at: float = 0.0
    learned: bool = False
    """Nobody told its limit: it follows from 429s alone, see `learned`."""

    @property
    def is_fixed(self) -> bool:
        """Whether it refills all at once."""
        return self.evidence > 0 or (self.evidence == 0 and self.resets_at is not None and self.told)

    @property
    def capacity(self) -> float:
        """What a full one is believed to hold."""
        return self.limit * self.trust

    @property
    def rate(self) -> float:
        """Refill a second, if it is continuous."""
        return self.limit * self.trust / self.period_s


class Mark(Struct, frozen=True, gc=False):
    """The account right after a turn's own charge, which the answer's headers are compared with."""

    charge: float
    level: float
    shifted: float
    rolled: int
    marked_at: float
    unsure: float
    """What of the charge the provider may not have taken."""
    is_alone: bool
    """Nothing else was in flight."""
    charged: float
    """All that was ever charged, with it."""
    settled: float
    """What turns had cost that ended before it."""


def full(dimension: Dimension, label: str, limit: float, period_s: float, at: float) -> Window:
    """A window that nothing was taken of."""
    return Window(dimension, label, limit, period_s, limit, at, mark_level=limit, marked_at=at, trusted_at=at)


def aged(window: Window, at: float) -> Window:
    """The window at `at`, refilled. Time never goes back."""
    passed_s = at - window.at
    if passed_s <= 0:
        return window
    if window.trust < 1.0 and at > window.trusted_at:
        trust = min(1.0, window.trust + TRUST_A_S * (at - max(window.trusted_at, window.at)))
        window = replace(window, trust=trust)
    if not window.is_fixed:
        return replace(window, level=min(window.capacity, window.level + window.rate * passed_s), at=at)
    if window.resets_at is not None and at >= window.resets_at:
        # If it is a token bucket after all, what was charged since its reset was told has put that off.
        since = 0.0 if window.evidence >= SURELY else window.charged - window.charged_then
        mark = window.capacity - since
        resets_at = window.resets_at + since / window.rate if since else None
        return replace(
            window,
            level=mark,
            at=at,
            resets_at=resets_at,
            told_remaining=-1.0,
            charged_then=window.charged,
            rolled=window.rolled + 1,
            spent=0.0,
            mark_level=mark,
            marked_at=at,
        )
    return replace(window, at=at)


def is_plain(window: Window) -> bool:
    """Whether it is a token bucket that is believed, and no caution is due: what the fast ways are for."""
    return window.trust == 1.0 and not window.caution and (window.evidence < 0 or not (window.evidence or window.told))


def plain_level(window: Window, at: float) -> float:
    """What a plain one holds at `at`."""
    limit = window.limit
    level = window.level + (at - window.at) * limit / window.period_s
    return level if level < limit else limit


def level_at(window: Window, at: float) -> float:
    """What is left of any window at `at`."""
    return plain_level(window, at) if is_plain(window) else aged(window, at).level


def needed(window: Window, amount: float, at: float) -> float:
    """What must be left for a turn that takes `amount`."""
    if window.caution:
        amount *= 1 + caution_at(window, at)
    capacity = window.capacity
    amount += MARGIN * capacity
    return amount if amount < WHOLE * capacity else WHOLE * capacity


def fits_at(window: Window, amount: float, at: float) -> float:
    """When `amount` can be taken of `window`: `at` itself if now."""
    if is_plain(window):
        limit = window.limit
        wanted = amount + MARGIN * limit
        if wanted <= window.level:
            return at  # whatever came in since
        deficit = min(wanted, WHOLE * limit) - plain_level(window, at)
        return at if deficit <= 0 else at + deficit * window.period_s / limit
    window = aged(window, at)
    deficit = needed(window, amount, at) - window.level
    if deficit <= 0:
        return at
    if window.is_fixed:
        # Without a known reset it is full: nothing was charged since the last one.
        return at + window.period_s if window.resets_at is None else window.resets_at
    return at + deficit / window.rate


def charge(window: Window, amount: float, unsure: float, at: float) -> tuple[Window, Mark]:
    """Takes `amount`, of which `unsure` may be too much, at `at`."""
    if is_plain(window):
        level = plain_level(window, at)
    else:
        window = aged(window, at)
        level = window.level
    resets_at = window.resets_at
    if resets_at is None and window.evidence > 0:
        resets_at = at + window.period_s
    level -= amount
    limit = window.limit
    if window.learned and level < LEARNED_GROWS_BELOW * limit:
        limit *= 1 + LEARNED_GROWS_A_S * min(at - window.at, window.period_s)
    charged = replace(
        window,
        limit=limit,
        level=level,
        at=at if at > window.at else window.at,
        resets_at=resets_at,
        spent=window.spent + amount,
        charged=window.charged + amount,
        flying=window.flying + amount,
    )
    is_alone = window.flying <= 0
    return charged, Mark(
        amount,
        level,
        window.shifted,
        window.rolled,
        window.marked_at,
        unsure,
        is_alone,
        charged.charged,
        window.settled,
    )


def credit(window: Window, mark: Mark, actual: float, at: float, *, was_taken: bool = True) -> Window:
    """Corrects a charge by what the turn did cost, at `at`. What a reset has forgotten is not given back.

    `was_taken`: whether the provider had taken the charge, so that it gives back the rest too."""
    if is_plain(window):
        level = plain_level(window, at)
    else:
        window = aged(window, at)
        level = window.level
    at = at if at > window.at else window.at
    back = mark.charge - actual
    flying, settled = window.flying - mark.charge, window.settled + actual
    if flying < FLYING_MIN:
        flying = 0.0
    if mark.rolled != window.rolled and back > 0:
        return replace(window, level=level, at=at, flying=flying, settled=settled)
    level, capacity = level + back, window.limit * window.trust
    level = level if level < capacity else capacity
    spent = window.spent - back if was_taken or mark.marked_at == window.marked_at else window.spent
    return replace(window, level=level, at=at, spent=spent, flying=flying, settled=settled)


def refused(window: Window, wait_s: float | None, amount: float, at: float) -> Window:
    """After a 429 that this window is to blame for: `amount` did not fit, and does after `wait_s` (None: not told)."""
    if window.learned:
        if at - window.cautious_at <= AGAIN_S:
            return window
        level = min(window.level, 0.0)
        shifted = window.shifted + level - window.level
        return replace(window, limit=LEARNED_SHRINKS * window.limit, level=level, shifted=shifted, cautious_at=at)
    past_caution = caution_at(window, at)
    shrunk = window
    if at - window.cautious_at > AGAIN_S or not window.caution:
        if window.trust < 1.0:
            kept_s = min(DISTRUST_S_MAX, window.distrust_s * 2)
            trust = max(TRUST_MIN, min(window.trust_kept, TRUSTED_AFTER_429 * window.trust))
            shrunk = replace(window, trust=trust, trust_kept=trust, trusted_at=at + kept_s, distrust_s=kept_s)
        elif past_caution > SURPRISED:
            shrunk = _measured(window, at)
    caution = min(CAUTION_MAX, past_caution + CAUTION_AFTER_429)
    shrunk = replace(shrunk, caution=caution, cautious_at=at)
    left = 0.0
    if shrunk.is_fixed:
        if wait_s is not None and shrunk.resets_at is None:
            shrunk = replace(shrunk, resets_at=at + wait_s)
        elif shrunk.resets_at is None:
            shrunk = replace(shrunk, resets_at=at + shrunk.period_s)
    elif wait_s is not None:
        left = max(-shrunk.capacity, min(0.0, amount - shrunk.rate * wait_s))
    level = min(shrunk.level, left)
    return replace(shrunk, level=level, shifted=shrunk.shifted + level - shrunk.level)


def caution_at(window: Window, at: float) -> float:
    """What is left of it."""
    return window.caution * 0.5 ** ((at - window.cautious_at) / CAUTION_HALF_LIFE_S) if window.caution else 0.0


def _measured(window: Window, at: float) -> Window:
    """A window that is known to be empty: the share of what was said of it that it gave since its mark."""
    said = window.mark_level
    if not window.is_fixed:
        said += (at - window.marked_at) * window.limit / window.period_s
    if said < MEASURED_MIN * window.limit:
        return window
    marked = replace(window, spent=0.0, mark_level=0.0, marked_at=at)
    if window.spent >= HONEST * said:
        return marked
    trust = max(TRUST_MIN, TRUSTED_AFTER_429 * window.spent / said)
    return replace(marked, trust=trust, trust_kept=trust, trusted_at=at + window.distrust_s)
