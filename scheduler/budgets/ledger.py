"""The budget of one replica: its windows, what its turns in flight have reserved, its cooldown and its breaker. Pure.

A turn asks when it fits (`opens_at`), reserves, and settles with what it did cost; the reservation is kept with the
turn in flight, so it ends whenever the turn does, by whatever way. A replica without limits has no budget.

A provider may count `max_tokens` on arrival, or less: `counted` is the share of it that is seen to be counted. It
begins with all, the careful guess.

The breaker opens after BREAKER_FAILURES answers in a row of 5xx, or none. After it, and after the cooldown that follows
a 429, one turn is let through as a probe, and its outcome decides for all.

A replica without a budget that answers 429 gets one that passes: it is left alone for as long as it said, a minute at
most, and has none any more when a turn of it ended well.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from scheduler.budgets import blame, learned, sizes
from scheduler.budgets.answers import (
    ROUNDED,
    as_fixed_as,
    first_seen,
    is_as_expected,
    see,
    taken_on_arrival,
    window_of,
    without_word,
)
from scheduler.budgets.headers import Dimension, LimitsTold, Seen
from scheduler.budgets.learned import Usage, sent
from scheduler.budgets.prediction import Need
from scheduler.budgets.windows import Mark, Window, aged, charge, credit, fits_at, full, is_plenty, level_at, refused

COOLDOWN_S = 1.0
"""After a 429 that names no time; doubles with each further one in a row."""
COOLDOWN_S_MAX = 60.0
LATER_S = 1.0
"""When to ask again where it depends on a turn in flight, whose end is told anyway."""
BREAKER_FAILURES = 3
BREAKER_S = 5.0
"""An open breaker lets a probe through after so long; twice as long each time the probe fails."""
BREAKER_S_MAX = 60.0
COUNTED_DOWN = 0.3
"""How fast the share of `max_tokens` that is counted on arrival falls to what is seen; a 429 sets it to all again."""
COUNTED_SURELY_LESS = 0.5
WINDOWS_MAX = 16


class Limit(Struct, frozen=True, gc=False):
    """A configured limit."""

    dimension: Dimension
    label: str
    amount: float
    period_s: float


class Price(Struct, frozen=True, gc=False):
    """US dollars a token."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    """Of a prompt token from the provider's cache; None: as any other."""

    def of(self, prompt: float, completion: float, cached: float = 0.0) -> float:
        """US dollars of a turn."""
        cached_price = self.input if self.cached is None else self.cached
        cached = min(cached, prompt)
        return (prompt - cached) * self.input + cached * cached_price + completion * self.output


FREE = Price()


class Spent(Struct, frozen=True, gc=False):
    """What a turn did cost, as far as it is known."""

    prompt: float
    completion: float
    usd: float = 0.0


class Budget(Struct, frozen=True, gc=False):
    """What is known of one replica's limits."""

    windows: tuple[Window, ...] = ()
    """Some may be added; they keep their order."""
    in_flight: int = 0
    waits_for_word: bool = False
    """Nothing is known of its limits yet, and something will be told: one turn at a time until then."""
    open_at: float = 0.0
    """Nothing fits before: it answered 429, or its breaker is open."""
    refusals: int = 0
    """429s since a probe went well."""
    failures: int = 0
    """Answers in a row that were none, or 5xx."""
    opened: int = 0
    """How often its breaker opened in a row; above 0 it is not closed again."""
    probing: bool = False
    """The turn that decides whether others may follow is in flight."""
    counted: float = 1.0
    """Share of `max_tokens` that the provider counts on arrival."""
    max_counts_until: float = 0.0
    """Until then all of `max_tokens` is believed to count, since a turn was refused for that alone: see `sizes`."""
    one_by_one_until: float = 0.0
    """Until then one turn at a time: what its windows give in a period is not known."""
    usage: Usage | None = None
    """What was sent, where the configuration wants limits learned."""
    is_limited: bool = False
    """The configuration names its limits, or wants them learned."""
    passes: bool = False
    """It is there for a 429 alone, since the configuration names none."""

    @property
    def is_past(self) -> bool:
        """Whether it has been there for long enough."""
        return self.passes and not (self.in_flight or self.refusals or self.opened)


class Reservation(Struct, frozen=True, gc=False):
    """What a turn in flight has taken of its replica's windows."""

    need: Need
    marks: tuple[Mark, ...]
    """One a window, in their order."""
    usd: float
    is_probe: bool = False


def start(limits: tuple[Limit, ...], at: float) -> Budget:
    """The budget of a replica whose configuration names `limits`; without any they are learned from its answers."""
    windows = tuple(
        replace(full(limit.dimension, limit.label, limit.amount, limit.period_s, at), configured=True)
        for limit in limits
    )
    return Budget(windows, waits_for_word=not windows, usage=None if windows else Usage(), is_limited=True)


def opens_at(budget: Budget, need: Need, usd: float, at: float) -> float:
    """When a turn fits: `at` if it does now, infinity where it never does (see `never_fits`)."""
    opens = budget.open_at if budget.open_at > at else at
    if budget.probing or (budget.in_flight and (budget.waits_for_word or at < budget.one_by_one_until)):
        opens = max(opens, at + LATER_S)
    taken = _taken(budget, need, usd)
    for window in budget.windows:
        amount = taken[window.dimension] + window.overhead
        if is_plenty(window, amount):
            continue
        # What never fits takes all of a window.
        if amount >= window.limit and never_fits(budget, need, at) is not None:
            return math.inf
        fits = fits_at(window, amount, at)
        opens = fits if fits > opens else opens
    return opens


def never_fits(budget: Budget, need: Need, at: float) -> Window | None:
    """The window that is too small for the turn even when full, if there is one."""
    max_counts = at < budget.max_counts_until and budget.counted >= 1.0
    return sizes.too_small(budget.windows, need, max_counts=max_counts)


def headroom(budget: Budget, need: Need, usd: float, at: float) -> float:
    """What would be left of the scarcest window, as a share of it."""
    left = 1.0
    taken = _taken(budget, need, usd)
    for window in budget.windows:
        amount = taken[window.dimension] + window.overhead
        left = min(left, (level_at(window, at) - amount) / max(window.capacity, 1e-9))
    return left


def reserve(budget: Budget, need: Need, usd: float, at: float) -> tuple[Budget, Reservation]:
    """Takes what the turn needs of every window, at once."""
    taken, least = _taken(budget, need, usd), need.prompt_least
    surely = 1.0, least, least, 0.0, 0.0
    marks = []
    for window in budget.windows:
        dimension = window.dimension
        marks.append(charge(window, taken[dimension] + window.overhead, surely[dimension], at))
    is_probe = budget.opened > 0 or budget.refusals > 0
    after = replace(budget, windows=tuple([mark.then for mark in marks]), in_flight=budget.in_flight + 1)
    if is_probe or budget.usage is not None:
        usage = None if budget.usage is None else sent(budget.usage, 1.0, taken[Dimension.TOKENS], at)
        after = replace(after, probing=budget.probing or is_probe, usage=usage)
    return after, Reservation(need, tuple(marks), usd, is_probe)


def settle(
    budget: Budget, reservation: Reservation, spent: Spent | None, at: float, *, was_taken: bool = True
) -> Budget:
    """Puts what the turn did cost in place of what it reserved. `spent` None: not known, the prediction stands.

    `was_taken`: whether the provider had taken it off its windows at all."""
    need, marks = reservation.need, reservation.marks
    if spent is None:
        prompt, completion, usd = need.prompt, need.completion, reservation.usd
    else:
        prompt, completion, usd = spent.prompt, spent.completion, spent.usd
    actual = 1.0, prompt + completion, prompt, completion, usd
    windows = budget.windows
    credited = [
        credit(window, mark, actual[window.dimension], at, was_taken=was_taken)
        for window, mark in zip(windows, marks, strict=False)  # more windows may have been told of since
    ]
    after = replace(budget, windows=(*credited, *windows[len(marks) :]), in_flight=budget.in_flight - 1)
    if reservation.is_probe:
        after = replace(after, probing=False)
    if was_taken:
        # An answer that told nothing is a word too: there is nothing to wait for.
        return replace(after, waits_for_word=False) if after.waits_for_word else after
    if after.usage is None:
        return after
    return replace(after, usage=sent(after.usage, -1.0, -_taken(budget, need, 0.0)[Dimension.TOKENS], at))


def told(budget: Budget, reservation: Reservation | None, limits: LimitsTold, at: float) -> Budget:
    """Takes in what the headers of a turn's answer tell of the windows."""
    windows, counted = budget.windows, budget.counted
    marks = () if reservation is None else reservation.marks
    for place, seen in enumerate(limits.seen):
        if place < len(marks) and is_as_expected(windows[place], seen, marks[place], at):
            continue
        number = window_of(windows, seen)
        if number is None:
            new = first_seen(seen, _in_flight_beside(budget, reservation, seen.dimension), at)
            if new is not None and len(windows) < WINDOWS_MAX:
                windows = (*(without_word(window, seen) for window in windows), new)
            continue
        mark, window = None, windows[number]
        if reservation is not None and number < len(marks):
            mark = marks[number]
            if window.dimension in sizes.COUNTED:
                if mark.is_alone:
                    counted = _counted(counted, window, seen, mark, reservation.need)
                expected = _taken(budget, reservation.need, 0.0)[window.dimension]
                window = taken_on_arrival(window, seen, mark, expected)
        window = see(window, seen, mark, at)
        if window is not windows[number]:
            windows = (*windows[:number], window, *windows[number + 1 :])
            if window.evidence > 0:
                windows = tuple(as_fixed_as(other, window) for other in windows)
    if windows is budget.windows and counted == budget.counted and not budget.waits_for_word:
        return budget
    return replace(budget, windows=windows, counted=counted, waits_for_word=False)


def well(budget: Budget, reservation: Reservation) -> Budget:
    """After a whole answer. Where a probe is to decide, turns that were sent before it do not."""
    if not (budget.refusals or budget.failures or budget.opened):
        return budget
    if reservation.is_probe or not (budget.refusals or budget.opened):
        return replace(budget, refusals=0, failures=0, opened=0)
    return replace(budget, failures=0)


def too_large(budget: Budget, reservation: Reservation, limits: LimitsTold, at: float) -> Budget | None:
    """After a 429 or 413 of a turn for its size alone, which closes nothing; None: it was for something else."""
    told: list[float | None] = [None] * len(budget.windows)
    for seen in limits.seen:
        number = window_of(budget.windows, seen)
        if number is not None:
            told[number] = seen.remaining
    if not sizes.refused_for_size(budget.windows, _charges(budget, reservation), told):
        return None
    return replace(budget, counted=1.0, max_counts_until=at + sizes.BELIEVED_S)


def refused_429(budget: Budget, reservation: Reservation | None, limits: LimitsTold, at: float) -> Budget:
    """After a 429: nothing fits until the time it names, and the window to blame is emptied."""
    refusals = budget.refusals + 1
    wait_s = limits.retry_after_s
    if wait_s is not None:
        # What fits any window at all fits it after its period: that it is longer, nothing but its word says.
        wait_s = min(wait_s, max([COOLDOWN_S_MAX, *(window.period_s for window in budget.windows)]))
    cooldown_s = min(COOLDOWN_S * 2 ** min(budget.refusals, 6), COOLDOWN_S_MAX) if wait_s is None else wait_s
    charges = _charges(budget, reservation)
    told_so = blame.told_so(budget.windows, charges, limits)
    if budget.usage is not None and told_so is None and blame.is_unexplained(budget.windows, at):
        budget = replace(budget, windows=(*budget.windows, *learned.windows(budget.windows, budget.usage, at)))
        charges = _charges(budget, reservation)
    open_at = max(budget.open_at, at + cooldown_s)
    after = replace(budget, refusals=refusals, open_at=open_at, waits_for_word=False, counted=1.0)
    marks = () if reservation is None else reservation.marks
    if blame.was_sent_before(budget.windows, marks):
        return after
    if wait_s is not None and blame.is_belied(budget.windows, wait_s, at):
        windows = blame.by_own_clock(budget.windows, wait_s, at)
        period_s = max(window.period_s for window in windows if window.keeps_time)
        return replace(after, windows=tuple(windows), one_by_one_until=at + wait_s + period_s)
    windows = list(budget.windows)
    for number in blame.blamed(budget.windows, at) if told_so is None else (told_so,):
        window = aged(windows[number], at)
        windows[number] = refused(window, wait_s, charges[number], at, was_told=told_so is not None)
    return replace(after, windows=tuple(windows), one_by_one_until=0.0)


def resting(limits: LimitsTold, at: float) -> Budget:
    """The budget of a replica without one that has just answered 429."""
    return refused_429(Budget(passes=True), None, limits, at)


def failed(budget: Budget, reservation: Reservation | None, at: float) -> Budget:
    """After a 5xx, or no answer at all: enough of them in a row open the breaker."""
    failures = budget.failures + 1
    probed = reservation is not None and reservation.is_probe
    if failures < BREAKER_FAILURES and not probed:
        return replace(budget, failures=failures)
    if budget.opened and not probed:
        return replace(budget, failures=failures)  # it was sent before the breaker opened
    open_s = min(BREAKER_S * 2 ** min(budget.opened, 6), BREAKER_S_MAX)
    return replace(budget, failures=failures, opened=budget.opened + 1, open_at=max(budget.open_at, at + open_s))


def told_before(budget: Budget, limits: LimitsTold, age_s: float, at: float) -> Budget:
    """After a restart: what an answer told `age_s` ago, refilled since; never more than is known otherwise."""
    then = at - age_s
    fresh = tuple(replace(window, level=window.capacity, at=then) for window in budget.windows)
    windows = [aged(window, at) for window in told(replace(budget, windows=fresh), None, limits, then).windows]
    for number, known in enumerate(budget.windows):
        level = min(windows[number].level, aged(known, at).level)
        windows[number] = replace(windows[number], level=level, mark_level=level, marked_at=at, spent=0.0)
    return replace(budget, windows=tuple(windows), waits_for_word=budget.waits_for_word and not windows)


def emptied(budget: Budget, unused_s: float, at: float) -> Budget:
    """After a restart: windows of which nobody told hold at most what came in since the last turn, `unused_s` ago."""
    windows = []
    for window in budget.windows:
        now = aged(window, at)
        if not now.told:
            level = min(now.level, now.rate * unused_s)
            now = replace(now, level=level, mark_level=level, marked_at=at, spent=0.0)
        windows.append(now)
    return replace(budget, windows=tuple(windows))


def _taken(budget: Budget, need: Need, usd: float) -> tuple[float, ...]:
    """What the provider is thought to take of a window when a turn arrives, but for its `overhead`, by its
    dimension."""
    prompt, completion, max_tokens = need.on_arrival, need.completion, need.max_tokens
    if max_tokens is not None and completion < budget.counted * max_tokens:
        completion = budget.counted * max_tokens
    return 1.0, prompt + completion, prompt, completion, usd


def _in_flight_beside(budget: Budget, reservation: Reservation | None, dimension: Dimension) -> float:
    """What turns in flight but that of `reservation` have taken of the windows of a dimension."""
    marks = () if reservation is None else reservation.marks
    own = [mark.charge for mark in marks] + [0.0] * (len(budget.windows) - len(marks))
    others = zip(budget.windows, own, strict=True)
    return max((window.flying - charge for window, charge in others if window.dimension is dimension), default=0.0)


def _counted(counted: float, window: Window, seen: Seen, mark: Mark, need: Need) -> float:
    """The share of `max_tokens` that is counted on arrival, by how much a full window lacks after the charge of a turn
    beside which nothing was in flight.

    Of one that is not full our account may be low, by what was given back or refilled on the way, and a share too low
    is a 429; what a full one lacks was taken, whatever came in meanwhile."""
    if window.dimension is Dimension.INPUT or not need.max_tokens or seen.remaining is None:
        return counted
    if need.max_tokens < need.on_arrival:
        return counted  # how the prompt was counted matters more
    limit = window.limit if seen.limit is None else seen.limit
    if window.trust < 1.0 or limit > window.limit or mark.then.level + mark.charge < limit - ROUNDED:
        return counted
    prompt = need.prompt_least if window.dimension is Dimension.TOKENS else 0.0
    share = max(0.0, min(1.0, (limit - seen.remaining - prompt) / need.max_tokens))
    # A share of more than half may as well be all: a provider counts prompts a little otherwise.
    return counted + COUNTED_DOWN * (share - counted) if share < min(counted, COUNTED_SURELY_LESS) else counted


def _charges(budget: Budget, reservation: Reservation | None) -> list[float]:
    """What a turn was to take of each window, also of those that were told of since."""
    if reservation is None:
        return [0.0] * len(budget.windows)
    charges = [mark.charge for mark in reservation.marks]
    taken = _taken(budget, reservation.need, reservation.usd)
    return charges + [taken[window.dimension] + window.overhead for window in budget.windows[len(charges) :]]


def needs(budget: Budget, need: Need, usd: float, at: float) -> list[tuple[Window, float]]:
    """Every window, refilled to `at`, and what such a turn takes of it."""
    taken = _taken(budget, need, usd)
    return [(aged(window, at), taken[window.dimension] + window.overhead) for window in budget.windows]
