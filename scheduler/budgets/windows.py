"""One rate limit window: what is left of it by our own account, corrected by what the provider tells. Pure.

Theory. A provider takes a request's cost off its window when the request arrives, by an estimate, and corrects that at
the end. So do we: `charge` at admission, `credit` at the end. Between, what answers tell is older than our account
(other turns were admitted since), so it is compared with what our account was right after that turn's own charge, and
the difference moves the account: down at once; up only as far as today's account agrees, and by no more than what
turns in flight cannot explain, since what they took too much is credited when they end.

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

from scheduler.budgets.headers import PERIODS_S, Dimension, Seen

PERIOD_S = 60.0
"""What is assumed until a reset tells more: limits are by the minute as a rule."""
MARGIN = 0.005
"""Share of the window that is left unused: clocks and rounding."""
WHOLE = 0.98
"""A need above this share of the window waits for this share: nothing waits for the last drop, which may never come."""
EVIDENCE_MAX = 4.0
EVIDENCE_KEPT = 0.8
SURELY = 1.0
RESET_TOLERANCE_S = 1.5
"""Resets are told in whole seconds, dates too."""
IMPLIED_TOLERANCE = 0.04
TRUST_MIN = 0.05
TRUSTED_AFTER_429 = 0.93
DISTRUST_S = 1800.0
DISTRUST_S_MAX = 86400.0
TRUST_A_S = 0.01 / 60
MEASURED_MIN = 0.5
"""Share of a window that must have been given since the mark: less measures nothing."""
HONEST = 0.97
"""Who gave this share of what it said is believed."""
OVERHEAD_UP, OVERHEAD_DOWN = 0.5, 0.1
OVERHEAD_MAX = 0.25  # of the window
AGAIN_S = 1.0  # refusals within this time are one: the turns were in flight together
SURPRISED = 0.01  # caution above it: there was a refusal in the last minutes
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
    unsure: float = 0.0
    """What turns in flight may have taken too much: all but their prompts."""
    overhead: float = 0.0
    """How much more the provider was seen to take of it when a turn arrives than is expected."""
    spent: float = 0.0
    """Charged and not credited since the mark, when the window was known to hold `mark_level`."""
    mark_level: float = 0.0
    marked_at: float = 0.0

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
    """Of the charge."""
    is_alone: bool
    """Nothing else was in flight."""
    charged: float
    """All that was ever charged, with it."""


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
        mark = window.capacity - (0.0 if window.evidence >= SURELY else window.charged - window.charged_then)
        return replace(
            window,
            level=mark,
            at=at,
            resets_at=None,
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


def needed(window: Window, amount: float, at: float) -> float:
    """What must be left for a turn that takes `amount`."""
    if window.caution:
        amount *= 1 + _caution(window, at)
    capacity = window.capacity
    amount += MARGIN * capacity
    return amount if amount < WHOLE * capacity else WHOLE * capacity


def fits_at(window: Window, amount: float, at: float) -> float:
    """When `amount` can be taken of `window`: `at` itself if now."""
    if is_plain(window):
        limit = window.limit
        level = min(limit, window.level + (at - window.at) * limit / window.period_s)
        deficit = min(amount + MARGIN * limit, WHOLE * limit) - level
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
    level = window.level
    if is_plain(window):
        level = min(window.limit, level + (at - window.at) * window.limit / window.period_s)
    else:
        window = aged(window, at)
        level = window.level
    resets_at = window.resets_at
    if resets_at is None and window.evidence > 0:
        resets_at = at + window.period_s
    level -= amount
    all_unsure = window.unsure + unsure
    charged = replace(
        window,
        level=level,
        at=max(at, window.at),
        resets_at=resets_at,
        spent=window.spent + amount,
        charged=window.charged + amount,
        unsure=all_unsure,
    )
    is_alone = window.unsure <= 0
    return charged, Mark(
        amount, level, window.shifted, window.rolled, window.marked_at, unsure, is_alone, charged.charged
    )


def credit(window: Window, mark: Mark, actual: float, at: float, *, was_taken: bool = True) -> Window:
    """Corrects a charge by what the turn did cost, at `at`. What a reset has forgotten is not given back.

    `was_taken`: whether the provider had taken the charge, so that it gives back the rest too."""
    level = window.level
    if is_plain(window):
        level = min(window.limit, level + (at - window.at) * window.limit / window.period_s)
    else:
        window = aged(window, at)
        level = window.level
    at = max(at, window.at)
    back = mark.charge - actual
    unsure = max(0.0, window.unsure - mark.unsure)
    if mark.rolled != window.rolled and back > 0:
        return replace(window, level=level, at=at, unsure=unsure)
    level = min(window.limit * window.trust, level + back)
    spent = window.spent - back if was_taken or mark.marked_at == window.marked_at else window.spent
    return replace(window, level=level, at=at, spent=spent, unsure=unsure)


def see(window: Window, seen: Seen, mark: Mark | None, at: float) -> Window:
    """Corrects a window, aged to `at`, by what the answer to a turn told; `mark`: that turn's own charge."""
    window = _sized(window, seen, mark, at)
    remaining = seen.remaining
    if remaining is None:
        return replace(window, told=True)
    if window.trust < 1.0:
        # It was caught giving less than it says: its word may only lower what our own account has.
        level = min(window.level, remaining)
        return replace(window, told=True, told_remaining=remaining, level=level)
    now_off = remaining - window.level
    if mark is None:
        shift = min(0.0, now_off)
    elif mark.rolled != window.rolled:
        shift = min(0.0, now_off) if window.is_fixed else 0.0
    else:
        then_off = remaining - (mark.level + window.shifted - mark.shifted)
        more = 0.0 if _caution(window, at) > SURPRISED else max(0.0, min(then_off, now_off) - window.unsure)
        shift = then_off if then_off <= 0 else more
    return replace(
        window,
        told=True,
        told_remaining=remaining,
        level=min(window.capacity, window.level + shift),
        shifted=window.shifted + shift,
    )


def taken_on_arrival(window: Window, seen: Seen, mark: Mark, expected: float) -> Window:
    """Learns how much more than `expected` was taken when a turn arrived; less, only where it was alone in flight."""
    if seen.remaining is None or mark.rolled != window.rolled or window.trust < 1.0:
        return window
    before = mark.level + mark.charge + window.shifted - mark.shifted
    more = max(0.0, min(OVERHEAD_MAX * window.limit, before - seen.remaining - expected))
    if more <= window.overhead and not mark.is_alone:
        return window
    step = OVERHEAD_UP if more > window.overhead else OVERHEAD_DOWN
    return replace(window, overhead=window.overhead + step * (more - window.overhead))


def first_seen(seen: Seen, at: float) -> Window | None:
    """A window as the first answer that tells of it has it; None: not enough to know one."""
    if seen.remaining is None and seen.limit is None:
        return None
    limit = seen.limit if seen.limit is not None else seen.remaining
    if not limit:
        return None
    window = full(seen.dimension, seen.label, limit, PERIODS_S.get(seen.label, PERIOD_S), at)
    window = replace(window, told=True)
    told = see(window, seen, None, at)
    return replace(told, mark_level=told.level)


def refused(window: Window, wait_s: float | None, amount: float, at: float) -> Window:
    """After a 429 that this window is to blame for: `amount` did not fit, and does after `wait_s` (None: not told)."""
    past_caution = _caution(window, at)
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


def _caution(window: Window, at: float) -> float:
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


def _sized(window: Window, seen: Seen, mark: Mark | None, at: float) -> Window:
    """The window with the limit, reset, period and kind that `seen` lets conclude."""
    limit = seen.limit if seen.limit else window.limit
    if seen.limit and window.told_remaining < 0 and not window.told:
        window = replace(window, level=min(window.level, window.level + (seen.limit - window.limit) * window.trust))
    if seen.reset_s is None:
        return window if limit == window.limit else replace(window, limit=limit)
    resets_at = at + seen.reset_s
    period_s, is_bucket = _as_bucket(limit, seen, window)
    stays = window.resets_at is not None and window.told_remaining >= 0
    stays = stays and abs(resets_at - (window.resets_at or 0.0)) <= RESET_TOLERANCE_S
    used = window.told_remaining - seen.remaining if seen.remaining is not None and window.told_remaining >= 0 else 0.0
    tells_apart = used * period_s / limit > 2 * RESET_TOLERANCE_S
    vote = 0.0
    if is_bucket is not None:
        if stays and tells_apart and not is_bucket:
            vote = 1.0
        elif is_bucket and not (stays and tells_apart):
            vote = -1.0
    evidence = (
        max(-EVIDENCE_MAX, min(EVIDENCE_MAX, window.evidence * EVIDENCE_KEPT + vote)) if vote else window.evidence
    )
    if evidence >= 0 and seen.reset_s > period_s:
        period_s = min((p for p in PERIODS_S.values() if p >= seen.reset_s), default=period_s)
    told = replace(window, limit=limit, period_s=period_s, resets_at=resets_at, evidence=evidence)
    charged_then = window.charged if mark is None else mark.charged
    return replace(told, implied_s=_implied_s(limit, seen), charged_then=charged_then)


def _as_bucket(limit: float, seen: Seen, window: Window) -> tuple[float, bool | None]:
    """The period that would make a token bucket's reset of what was told, and whether it is one of the usual ones;
    None: too little is used to tell."""
    if seen.remaining is None or seen.reset_s is None:
        return window.period_s, None
    used = limit - seen.remaining
    if used <= 0:
        return window.period_s, None
    likely = PERIODS_S.values() if not seen.label else (PERIODS_S[seen.label],)
    for period_s in sorted(likely, key=lambda period_s: period_s != window.period_s):
        expected_s = used * period_s / limit
        if abs(expected_s - seen.reset_s) <= max(0.03 * expected_s, min(RESET_TOLERANCE_S, 0.05 + 0.1 * expected_s)):
            # So short a time would fit several periods: it says nothing.
            return period_s, True if expected_s >= 0.5 else None
    implied_s, used_before = _implied_s(limit, seen), limit - window.told_remaining
    used_more = window.told_remaining >= 0 and abs(used - used_before) > 0.1 * max(used, used_before)
    # Of a fixed window both what is used and the time to its reset would change what the reset means.
    if window.implied_s and used_more and abs(implied_s - window.implied_s) <= IMPLIED_TOLERANCE * implied_s:
        return implied_s, True
    return window.period_s, False


def _implied_s(limit: float, seen: Seen) -> float:
    """The period of a token bucket that is full again after the reset told; 0: not known."""
    if seen.remaining is None or seen.reset_s is None or seen.remaining >= limit:
        return 0.0
    return seen.reset_s * limit / (limit - seen.remaining)
