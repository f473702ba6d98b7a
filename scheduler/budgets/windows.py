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

A provider that refuses what should have fit is doubted for an hour, twice as long each further time, whatever its lie
is. While a window is doubted its word only lowers our account, and later raises it by small steps. That is all there is
to know of one that claims to hold more than it does, but refills as it says. If one that is doubted refuses again, it
gives less: what it gave since it was last known, a share of what it said, is its `trust`, which grows by a hundredth a
minute when the hour is over. A fixed one is measured at once, since it is full again before it could be doubted. Which
window a refusal is about is often not told: see `blame`. So there are at most three refusals in the first hour, and
then one whenever a time of doubt is over.

A fixed one may lie about its reset too, and would be believed full twice in a period. The wait of a 429 belies it, and
from then on it keeps time by our own clock. How much it gives in a period is not known then, so turns go one by one
until that is over, and no more than one of them is refused.
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
"""Of what was believed, where nothing can be measured."""
GIVEN = 0.98
"""Of what was measured."""
RAISED = 0.01
"""Share of a window that was doubted once by which one answer raises it at most: so one turn finds out, not ten."""
EXPLAINED = 1 / 6
"""Where the 429 itself told of too little, somebody else was quicker: it is doubted for this share of the time."""
DISTRUST_S = 3600.0
"""How long a window is doubted at first; twice as long if it refuses again after that."""
DISTRUST_S_MAX = 86400.0
TRUST_A_S = 0.01 / 60
MEASURED_MIN = 0.5
"""Share of a window that must have been given since the mark: less measures nothing."""
HONEST = 0.97
"""Who gave this share of what it said is believed."""
FLYING_MIN = 1e-6
"""Less is the error of a sum."""
FULL_AGAIN_S = 2.5
"""How far the resets told and the wait of a 429 may be apart: either is told in whole seconds."""
EVIDENCE_MAX = 4.0
AGAIN_S = 1.0  # refusals within this time are one: the turns were in flight together
LEARNED_SHRINKS = 0.8
LEARNED_GROWS_A_S = 0.02 / 60
LEARNED_GROWS_BELOW = 0.25
"""It grows while no more than this share of it is left."""
CAUTION_AFTER_429 = 0.25
CAUTION_MAX = 1.0
CAUTION_HALF_LIFE_S = 120.0
PLENTY = 1 + CAUTION_MAX


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
    """Until then it is doubted, and trust is kept; it grows again from then on."""
    distrust_s: float = 0.0
    """How long it was distrusted last; 0: it never was."""
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
    keeps_time: bool = False
    """Its resets were told falsely: they are a period apart by our own clock, and its word only puts them off."""
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
    unsure: float
    """What of the charge the provider may not have taken."""
    is_alone: bool
    """Nothing else was in flight."""
    then: Window
    """Right after the charge."""


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
        resets_at = window.resets_at + since / window.rate if since else None
        if window.keeps_time:
            resets_at = window.resets_at + window.period_s * (1 + (at - window.resets_at) // window.period_s)
        mark = window.capacity - since
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
            marked_at=window.resets_at,
        )
    return replace(window, at=at)


def plain_level(window: Window, at: float) -> float | None:
    """What a plain window holds at `at`: a token bucket that is believed, and no caution is due, as nearly all are;
    None: it is another one."""
    if window.evidence >= 0 and (window.told or window.evidence):
        return None
    if window.caution or window.trust < 1.0:
        return None
    limit = window.limit
    level = window.level + (at - window.at) * limit / window.period_s
    return level if level < limit else limit


def level_at(window: Window, at: float) -> float:
    """What is left of any window at `at`."""
    level = plain_level(window, at)
    return aged(window, at).level if level is None else level


def needed(window: Window, amount: float, at: float) -> float:
    """What must be left for a turn that takes `amount`."""
    if window.caution:
        amount *= 1 + caution_at(window, at)
    capacity = window.capacity
    amount += MARGIN * capacity
    return amount if amount < WHOLE * capacity else WHOLE * capacity


def is_plenty(window: Window, amount: float) -> bool:
    """Whether a token bucket has room for `amount` whatever came in since, and however cautious we are."""
    return window.evidence < 0 and window.level >= PLENTY * amount + MARGIN * window.limit


def fits_at(window: Window, amount: float, at: float) -> float:
    """When `amount` can be taken of `window`: `at` itself if now."""
    window = aged(window, at)
    deficit = needed(window, amount, at) - window.level
    if deficit <= 0:
        return at
    if window.is_fixed:
        # Without a known reset it is full: nothing was charged since the last one.
        return at + window.period_s if window.resets_at is None else window.resets_at
    return at + deficit / window.rate


def charge(window: Window, amount: float, surely: float, at: float) -> Mark:
    """Takes `amount`, of which the provider `surely` takes so much, at `at`: the mark has the window as it is then."""
    level = plain_level(window, at)
    if level is None:
        window = aged(window, at)
        level = window.level
    resets_at = window.resets_at
    if resets_at is None and window.evidence > 0:
        resets_at = at + window.period_s
    level -= amount
    limit = window.limit
    if window.learned and level < LEARNED_GROWS_BELOW * limit:
        limit *= 1 + LEARNED_GROWS_A_S * min(at - window.at, window.period_s)
    flying = window.flying
    charged = replace(
        window,
        limit=limit,
        level=level,
        at=at if at > window.at else window.at,
        resets_at=resets_at,
        spent=window.spent + amount,
        charged=window.charged + amount,
        flying=flying + amount,
    )
    return Mark(amount, amount - surely if amount > surely else 0.0, flying <= 0, charged)


def credit(window: Window, mark: Mark, actual: float, at: float, *, was_taken: bool = True) -> Window:
    """Corrects a charge by what the turn did cost, at `at`. What a reset has forgotten is not given back.

    `was_taken`: whether the provider had taken the charge, so that it gives back the rest too."""
    level = plain_level(window, at)
    if level is None:
        window = aged(window, at)
        level = window.level
    at = at if at > window.at else window.at
    taken, settled, spent = mark.charge, window.settled + actual, window.spent
    flying, back = window.flying - taken, taken - actual
    if flying < FLYING_MIN:
        flying = 0.0
    if mark.then.rolled == window.rolled or back <= 0:
        level, capacity = level + back, window.limit * window.trust
        level = level if level < capacity else capacity
        if was_taken or mark.then.marked_at == window.marked_at:
            spent -= back
    return replace(window, level=level, at=at, spent=spent, flying=flying, settled=settled)


def told_falsely(window: Window, wait_s: float, at: float) -> bool:
    """Whether a 429 at `at`, by which the window is full again after `wait_s`, belies the reset that was told of a
    fixed one: it comes later, or has not come when the window was taken for full."""
    if window.evidence <= 0 or window.keeps_time or window.resets_at is None or wait_s > window.period_s + FULL_AGAIN_S:
        return False
    early_s = at + wait_s - window.resets_at
    if early_s < -FULL_AGAIN_S:
        return False  # a wait that is too short belies nothing
    was_taken_for_full = window.rolled > 0 and window.marked_at > at + wait_s - window.period_s + FULL_AGAIN_S
    return early_s > FULL_AGAIN_S or was_taken_for_full


def by_own_clock_from(window: Window, wait_s: float, at: float) -> Window:
    """A fixed window that is full again after `wait_s`, and then every period, whatever it says."""
    level = min(window.level, 0.0)
    shifted = window.shifted + level - window.level
    return replace(window, keeps_time=True, evidence=EVIDENCE_MAX, resets_at=at + wait_s, level=level, shifted=shifted)


def is_again(window: Window, at: float) -> bool:
    """Whether a refusal at `at` is one with the last: the turns were in flight together."""
    return window.cautious_at > 0 and at - window.cautious_at <= AGAIN_S


def is_doubted(window: Window, at: float) -> bool:
    """Whether it refused what should have fit, not long ago: its word raises nothing."""
    return window.trust < 1.0 or at < window.trusted_at


def refused(window: Window, wait_s: float | None, amount: float, at: float, *, was_told: bool = False) -> Window:
    """After a 429 that this window may be to blame for: `amount` did not fit, and does after `wait_s` (None: not told).

    Its word is doubted from now on. Of one that is doubted already, what it gave is measured, and no more believed."""
    again = is_again(window, at)
    if window.learned:
        if again:
            return window
        level = min(window.level, 0.0)
        shifted = window.shifted + level - window.level
        return replace(window, limit=LEARNED_SHRINKS * window.limit, level=level, shifted=shifted, cautious_at=at)
    had = 0.0 if wait_s is None or window.is_fixed else max(0.0, amount - window.rate * wait_s)
    if not again:
        is_first_doubt = window.trust == 1.0 and is_doubted(window, at)
        # A fixed one is known to have given no more since its reset, so that is not waited for.
        if is_doubted(window, at) or (window.evidence > 0 and not was_told):
            window = _measured(window, had)
        distrust_s = window.distrust_s
        if not is_first_doubt:
            distrust_s = max(DISTRUST_S, min(DISTRUST_S_MAX, 2 * distrust_s))
        trusted_at = at + distrust_s * (EXPLAINED if was_told else 1.0)
        window = replace(window, trusted_at=max(window.trusted_at, trusted_at), distrust_s=distrust_s)
    caution = min(CAUTION_MAX, caution_at(window, at) + CAUTION_AFTER_429)
    window = replace(window, caution=caution, cautious_at=at)
    left = 0.0
    if window.is_fixed:
        if window.resets_at is None:
            window = replace(window, resets_at=at + (window.period_s if wait_s is None else wait_s))
    elif wait_s is not None:
        left = max(-window.capacity, min(0.0, amount - window.rate * wait_s))
    level = min(window.level, left)
    return replace(window, level=level, shifted=window.shifted + level - window.level)


def caution_at(window: Window, at: float) -> float:
    """What is left of it."""
    return window.caution * 0.5 ** ((at - window.cautious_at) / CAUTION_HALF_LIFE_S) if window.caution else 0.0


def _measured(window: Window, had: float) -> Window:
    """A window at the time of a refusal, when it `had` so much, believed as far as it gave since its mark."""
    given = window.spent + had
    said = window.mark_level
    if not window.is_fixed:
        said += (window.at - window.marked_at) * window.limit / window.period_s
    if window.trust < 1.0:
        trust = min(window.trust_kept, TRUSTED_AFTER_429 * window.trust)
    elif said < MEASURED_MIN * window.limit:
        trust = TRUSTED_AFTER_429
    elif given >= HONEST * said:
        return replace(window, spent=0.0, mark_level=0.0, marked_at=window.at)
    else:
        trust = GIVEN * given / said
    trust = max(TRUST_MIN, trust)
    return replace(window, trust=trust, trust_kept=trust, spent=0.0, mark_level=0.0, marked_at=window.at)
