"""What an answer's headers let conclude of a window: what is left of it, what more is counted on arrival, its limit,
period and kind. Pure. The theory is in `windows`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from scheduler.budgets.headers import PERIODS_S, Seen
from scheduler.budgets.windows import EVIDENCE_MAX, RAISED, Mark, Window, aged, full, is_doubted, level_at

PERIOD_S = 60.0
"""What is assumed until a reset tells more: limits are by the minute as a rule."""
EVIDENCE_KEPT = 0.8
RESET_TOLERANCE_S = 1.5
"""Resets are told in whole seconds, dates too."""
ROUNDED = 1.0
"""Amounts are told as whole numbers, rounded this way or that."""
IMPLIED_TOLERANCE = 0.04
NOTED = 0.0005
"""Share of a window from which on an account that is off is corrected: the margin covers less."""
OVERHEAD_MAX = 0.25  # of the window
OVERHEAD_STEP, OVERHEAD_STEP_ALONE = 0.01, 0.1
"""Of what was expected. What somebody else uses of the window looks the same once, and is none of a turn's cost."""


def is_as_expected(window: Window, seen: Seen, mark: Mark, at: float) -> bool:
    """Whether what the answer to a turn told is one more telling of the token bucket that the window is known to be,
    and of an account that is right: then there is nothing to conclude, as from nearly every answer of a provider that
    nobody else uses."""
    limit, remaining, reset_s, then = window.limit, seen.remaining, seen.reset_s, mark.then
    if window.evidence > -EVIDENCE_MAX or window.trust < 1.0 or window.caution or window.overhead or mark.is_alone:
        return False
    if seen.limit != limit or seen.dimension is not window.dimension or remaining is None or reset_s is None:
        return False
    if (seen.label != window.label and (seen.label or not window.configured)) or then.rolled != window.rolled:
        return False
    off = remaining - (then.level + window.shifted - then.shifted)
    if off > ROUNDED:
        # Its level of before looks further off than that of now, to which it was refilled.
        if (
            _surely_off(window, window.level, remaining, mark) >= NOTED * limit
            and _surely_off(window, level_at(window, at), remaining, mark) >= NOTED * limit
        ):
            return False
    elif off < -ROUNDED or off <= -NOTED * limit:
        return False
    return _is_full_after(limit - remaining, window.period_s, limit, reset_s)


def see(window: Window, seen: Seen, mark: Mark | None, at: float) -> Window:
    """Corrects a window by what the answer to a turn told at `at`; `mark`: that turn's own charge."""
    remaining = seen.remaining
    window = aged(window, at)
    if not _is_as_thought(window, seen):
        window = _sized(window, seen, mark, at)
    if remaining is None:
        return replace(window, told=True)
    if window.trust < 1.0:
        # It was caught giving less than it says: its word may only lower what our own account has.
        level = min(window.level, remaining)
        return replace(window, told=True, told_remaining=remaining, level=level)
    if mark is None:
        shift = min(0.0, remaining - window.level)
    elif mark.then.rolled != window.rolled:
        shift = min(0.0, remaining - window.level) if window.is_fixed else 0.0
    else:
        shift = _shift(window, window.level, remaining, mark)
        # Without a limit it is not known whether what is left is that of the configured window, or of a larger one.
        is_bounded = window.configured and seen.limit is None
        if shift > 0 and (is_bounded or is_doubted(window, at)):
            shift = 0.0
        elif window.distrust_s:
            shift = min(shift, RAISED * window.limit)
        elif abs(shift) < NOTED * window.limit:
            shift = 0.0
    level = min(window.capacity, window.level + shift)
    shifted = window.shifted + shift
    return replace(window, told=True, told_remaining=remaining, level=level, shifted=shifted)


def _shift(window: Window, level: float, remaining: float, mark: Mark) -> float:
    """How far an account of `level` is off, by an answer that told `remaining`: see the theory in `windows`."""
    then = mark.then
    then_off = remaining - (then.level + window.shifted - then.shifted)
    return _surely_off(window, level, remaining, mark) if then_off > 0 else then_off


def _surely_off(window: Window, level: float, remaining: float, mark: Mark) -> float:
    """How far an account of `level` is surely too low, in whatever order turns arrived."""
    unseen = window.flying - mark.charge + mark.unsure + window.settled - mark.then.settled
    surely_off = remaining - level - unseen - ROUNDED
    return surely_off if surely_off > 0 else 0.0


def taken_on_arrival(window: Window, seen: Seen, mark: Mark, expected: float) -> Window:
    """Learns how much more than `expected` was taken when a turn arrived, by small steps: turns overtake each other, so
    that only the middle of many is right; larger ones where it was alone."""
    then = mark.then
    if seen.remaining is None or then.rolled != window.rolled or window.trust < 1.0:
        return window
    more = then.level + mark.charge + window.shifted - then.shifted - seen.remaining - expected
    if more <= ROUNDED and not window.overhead:
        return window
    more = max(0.0, min(OVERHEAD_MAX * window.limit, more))
    is_alone = mark.is_alone and window.charged == then.charged
    step = (OVERHEAD_STEP_ALONE if is_alone else OVERHEAD_STEP) * expected
    overhead = max(window.overhead - step, min(window.overhead + step, more))
    return window if overhead == window.overhead else replace(window, overhead=overhead)


def first_seen(seen: Seen, in_flight: float, at: float) -> Window | None:
    """A window as the first answer that tells of it has it; None: not enough to know one. `in_flight`: what other turns
    in flight take of it, of which that answer may not know."""
    if seen.remaining is None and seen.limit is None:
        return None
    limit = seen.limit if seen.limit is not None else seen.remaining
    if not limit:
        return None
    window = full(seen.dimension, seen.label, limit, PERIODS_S.get(seen.label, PERIOD_S), at)
    window = replace(window, told=True)
    told = see(window, seen, None, at)
    level = told.level - in_flight
    return replace(told, level=level, mark_level=level)


def without_word(window: Window, seen: Seen) -> Window:
    """The window where `seen` tells first of another one beside it: no reset is known of a configured one any more."""
    if not (window.configured and window.told and window.dimension is seen.dimension):
        return window
    return replace(window, told=False, resets_at=None, evidence=0.0, told_remaining=-1.0)


def as_fixed_as(window: Window, told: Window) -> Window:
    """A configured window of which nothing is told, where another limit of the same period is told beside it that is
    fixed: it begins anew with that."""
    if not window.configured or window.told or window.dimension is not told.dimension:
        return window
    if window.period_s != told.period_s or window.resets_at == told.resets_at:
        return window
    level = min(window.level, window.limit - (told.limit - told.level))
    return replace(window, evidence=told.evidence, resets_at=told.resets_at, level=level)


def window_of(windows: Sequence[Window], seen: Seen) -> int | None:
    """Which window an answer tells of; None: one that is not known yet.

    A configured one is meant where its limit is told. Another limit is that of another window beside it, by the day
    perhaps where the configured one is by the minute, or of a key of which only a part is to be used. Where no limit is
    told, it is the only one of its dimension."""
    told_before = None
    likely, same = None, 0
    for number, window in enumerate(windows):
        if window.dimension is not seen.dimension:
            continue
        same += 1
        if not window.configured:
            if window.label == seen.label and (told_before is None or not window.learned):
                told_before = number
        elif not seen.label or window.label == seen.label:
            if seen.limit == window.limit:
                return number
            likely = number
    if told_before is not None or seen.limit is not None:
        return told_before
    return likely if same == 1 else None


def _is_as_thought(window: Window, seen: Seen) -> bool:
    """Whether `seen` is one more telling of the token bucket that the window is known to be: nothing is to be concluded
    of its limit, period and kind."""
    limit, remaining, reset_s = window.limit, seen.remaining, seen.reset_s
    if window.evidence > -EVIDENCE_MAX or seen.limit != limit or remaining is None or reset_s is None:
        return False
    return _is_full_after(limit - remaining, window.period_s, limit, reset_s)


def _is_full_after(used: float, period_s: float, limit: float, reset_s: float) -> bool:
    """Whether a bucket of that period is full again `reset_s` after so much is used."""
    expected_s = used * period_s / limit
    off_s = abs(expected_s - reset_s)
    return off_s <= 0.03 * expected_s or (off_s <= RESET_TOLERANCE_S and off_s <= 0.05 + 0.1 * expected_s)


def _sized(window: Window, seen: Seen, mark: Mark | None, at: float) -> Window:
    """The window with the limit, reset, period and kind that `seen` lets conclude."""
    limit = seen.limit if seen.limit else window.limit
    if seen.limit and window.told_remaining < 0 and not window.told:
        window = replace(window, level=min(window.level, window.level + (seen.limit - window.limit) * window.trust))
    if seen.reset_s is None:
        return window if limit == window.limit else replace(window, limit=limit, learned=False)
    resets_at = at + seen.reset_s
    if window.keeps_time:
        assert window.resets_at is not None
        return replace(window, limit=limit, resets_at=max(window.resets_at, resets_at))
    period_s, is_bucket = _as_bucket(limit, seen, window)
    stays = window.resets_at is not None and window.told_remaining >= 0
    stays = stays and abs(resets_at - (window.resets_at or 0.0)) <= RESET_TOLERANCE_S
    used = window.told_remaining - seen.remaining if seen.remaining is not None and window.told_remaining >= 0 else 0.0
    tells_apart = used * period_s / limit > 2 * RESET_TOLERANCE_S
    vote = 0.0
    if is_bucket is not None:
        if stays and tells_apart and not is_bucket:
            vote = 1.0
        elif is_bucket and not (stays and (tells_apart or window.evidence > 0)):
            # A fixed window that is used up soon after its reset looks like a bucket, but for a reset that stays.
            vote = -1.0
    evidence = (
        max(-EVIDENCE_MAX, min(EVIDENCE_MAX, window.evidence * EVIDENCE_KEPT + vote)) if vote else window.evidence
    )
    if evidence >= 0 and seen.reset_s > period_s:
        period_s = min((p for p in PERIODS_S.values() if p >= seen.reset_s), default=period_s)
    learned = window.learned and not seen.limit
    told = replace(window, limit=limit, period_s=period_s, resets_at=resets_at, evidence=evidence, learned=learned)
    charged_then = window.charged if mark is None else mark.then.charged
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
        if _is_full_after(used, period_s, limit, seen.reset_s):
            # So short a time would fit several periods: it says nothing.
            return period_s, True if used * period_s / limit >= 0.5 else None
    implied_s, used_before = _implied_s(limit, seen), limit - window.told_remaining
    used_more = window.told_remaining >= 0 and abs(used - used_before) > 0.1 * max(used, used_before)
    # Of a fixed window both what is used and the time to its reset would change what the reset means.
    if window.implied_s and used_more and abs(implied_s - window.implied_s) <= IMPLIED_TOLERANCE * implied_s:
        return implied_s, True
    return window.period_s, False


def _implied_s(limit: float, seen: Seen) -> float:
    """The period of a token bucket that is full again after the reset told, rather too long than too short; 0: not
    known."""
    if seen.remaining is None or seen.reset_s is None or seen.remaining >= limit:
        return 0.0
    return seen.reset_s * limit / max(limit - seen.remaining - ROUNDED / 2, ROUNDED / 2)
