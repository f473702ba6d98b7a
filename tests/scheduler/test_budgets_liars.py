"""Providers that tell more than they give, in virtual time: at most two 429s an hour after the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from common.ids import ReplicaName
from common.pool import Replica
from fakes.provider import headers
from fakes.provider.windows import Bucket
from scheduler.budgets.answers import see
from scheduler.budgets.headers import Dimension, LimitsTold, Seen, read
from scheduler.budgets.windows import aged, by_own_clock_from, fits_at, full, told_falsely
from tests.scheduler.test_budgets_bars import agents
from tests.scheduler.virtual_provider import Provider, World

HOUR_S = 3600.0
TOKENS, REQUESTS = 4000, 30
SEEDS = [1, 2]


@dataclass
class HonestReset(Provider):
    """Says that its window of tokens is `lie` times as large as it is; when it is full again is true."""

    lie: float = 1.0

    def tell(self, at: float, more: dict[str, str] | None = None) -> LimitsTold:
        told = dict(more or {})
        for name, bucket, lie in (("tokens", self.tokens, self.lie), ("requests", self.requests, 1.0)):
            bucket.to(at)
            told[f"x-ratelimit-limit-{name}"] = f"{bucket.limit * lie:.0f}"
            told[f"x-ratelimit-remaining-{name}"] = f"{max(0.0, bucket.level + bucket.limit * (lie - 1)):.0f}"
            told[f"x-ratelimit-reset-{name}"] = headers.duration(bucket.reset_s())
        return read(told.items(), {})


def plays_two_hours(provider: Provider, limits: Mapping[str, float], seed: int) -> float:
    """Checks what it refuses; the share of its tokens that was used. What it refused within a second of its first
    refusal, which nobody could know, counts as that."""
    pool = (Replica(ReplicaName("a"), "http://a", models=("m",), limits=limits),)
    world = World({"a": provider}, agents(8, steps=600), seed, pool=pool)
    world.run(until=2 * HOUR_S)
    first, after = (provider.refused_at or [0.0])[0], []
    after = [at - first for at in provider.refused_at if at > first + 1]
    for hour in (0, 1):
        assert sum(at // HOUR_S == hour for at in after) <= 2, after
    return provider.served_tokens / (provider.tokens.limit * 2 * 60)


def limited_to(tokens: float) -> dict[str, float]:
    return {"tokens_per_minute": tokens, "requests_per_minute": REQUESTS}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("configured", ["not", "as told", "as true"])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("lie", [1.2, 1.5, 2.0, 4.0])
def test_a_window_that_is_smaller_than_told_refuses_at_most_twice_an_hour_after_the_first_time(
    lie: float, fixed: bool, configured: str, seed: int
) -> None:
    limits = {"not": {}, "as told": limited_to(TOKENS * lie), "as true": limited_to(TOKENS)}[configured]
    provider = HonestReset(Bucket(TOKENS, fixed=fixed), Bucket(REQUESTS, fixed=fixed), lie=lie)
    # Of a fixed window that tells the truth 0.91 are used: what a turn is corrected by after the reset is lost.
    used_min = 0.98 if not fixed else 0.88 if configured == "as true" else 0.75
    assert plays_two_hours(provider, limits, seed) >= used_min
    assert provider.refused_at or configured == "as true"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("says", [1.2, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("limits", [{}, {"tokens_per_minute": 6000, "requests_per_minute": 60}])
def test_a_window_that_is_smaller_and_slower_than_told_refuses_at_most_twice_an_hour_after_the_first_time(
    says: float, limits: Mapping[str, float], seed: int
) -> None:
    provider = Provider(Bucket(TOKENS), Bucket(REQUESTS), says=says)
    assert plays_two_hours(provider, limits, seed) >= 0.8


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("configured", ["not", "as told", "as true", "between"])
@pytest.mark.parametrize("says", [1.2, 1.5, 2.0, 4.0])
def test_a_fixed_window_that_is_smaller_and_full_again_later_than_told_refuses_at_most_twice_an_hour(
    says: float, configured: str, seed: int
) -> None:
    """Each reset that it tells is too early: believed, it would be used up twice in a period."""
    limits: dict[str, dict[str, float]] = {
        "not": {},
        "as told": limited_to(TOKENS * says),
        "as true": limited_to(TOKENS),
        "between": {"tokens_per_minute": 6000, "requests_per_minute": 60},
    }
    provider = Provider(Bucket(TOKENS, fixed=True), Bucket(REQUESTS, fixed=True), says=says)
    assert plays_two_hours(provider, limits[configured], seed) >= (0.88 if configured == "as true" else 0.75)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_provider_that_gives_less_than_is_configured_and_tells_nothing_refuses_at_most_twice_an_hour(
    seed: int,
) -> None:
    provider = Provider(Bucket(TOKENS), Bucket(REQUESTS), family="none")
    assert plays_two_hours(provider, limited_to(6000), seed) >= 0.85


@pytest.mark.parametrize(
    ("wait_s", "is_false"),
    [(1.0, False), (40.0, False), (55.0, True), (120.0, False)],
    ids=["a usual wait", "as told", "later than told", "a punishment"],
)
def test_a_reset_is_belied_by_a_wait_that_is_longer_and_within_a_period(wait_s: float, is_false: bool) -> None:
    known = replace(full(Dimension.TOKENS, "", TOKENS, 60.0, 0.0), told=True, evidence=1.0, resets_at=60.0)
    assert told_falsely(known, wait_s, 20.0) is is_false
    assert not told_falsely(replace(known, evidence=0.0), wait_s, 20.0), "it may be a token bucket"


def test_a_window_that_keeps_time_is_full_again_each_period_and_put_off_by_what_is_told() -> None:
    known = replace(full(Dimension.TOKENS, "", TOKENS, 60.0, 0.0), told=True, evidence=1.0, resets_at=60.0)
    window = by_own_clock_from(known, 30.0, 50.0)
    assert fits_at(window, 100.0, 50.0) == 80.0
    early = see(window, Seen(Dimension.TOKENS, "", TOKENS, 0, 10.0), None, 50.0)
    later = see(window, Seen(Dimension.TOKENS, "", TOKENS, 0, 35.0), None, 50.0)
    assert (early.resets_at, later.resets_at) == (80.0, 85.0)
    rolled = aged(window, 300.0)
    assert (rolled.level, rolled.resets_at) == (TOKENS, 320.0)
