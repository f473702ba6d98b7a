"""Windows, reservations, cooldown and breaker: every way a budget can be fooled, and is not."""

from __future__ import annotations

import pytest

from scheduler.budgets import ledger
from scheduler.budgets.headers import Dimension, LimitsTold, Seen
from scheduler.budgets.ledger import Budget, Limit, Reservation, Spent
from scheduler.budgets.prediction import Need

TOKENS = Limit(Dimension.TOKENS, "minute", 6000, 60)
RPM_1 = Limit(Dimension.REQUESTS, "minute", 1, 60)


def need(prompt: float, completion: float = 0.0, max_tokens: int | None = None) -> Need:
    return Need(prompt, completion, max_tokens, prompt, prompt)


def fits(budget: Budget, asked: Need, at: float = 0.0) -> bool:
    return ledger.opens_at(budget, asked, 0.0, at) <= at


def taken(budget: Budget, asked: Need, at: float = 0.0) -> tuple[Budget, Reservation]:
    return ledger.reserve(budget, asked, 0.0, at)


def told(*, limit: float = 6000, remaining: float, reset_s: float) -> LimitsTold:
    return LimitsTold((Seen(Dimension.TOKENS, "", limit, remaining, reset_s),))


def test_two_calls_of_one_agent_do_not_both_get_the_same_tokens() -> None:
    budget, _ = taken(ledger.start((TOKENS,), 0.0), need(3500))
    assert not fits(budget, need(3500))
    assert fits(budget, need(2400))


def test_one_request_a_minute_is_granted_once() -> None:
    budget, first = taken(ledger.start((RPM_1,), 0.0), need(10))
    assert not fits(budget, need(10))
    budget = ledger.settle(budget, first, Spent(10, 5), 1.0)
    assert not fits(budget, need(10), 1.0)
    assert fits(budget, need(10), 60.0)


@pytest.mark.parametrize("dimension", [Dimension.OUTPUT, Dimension.USD])
def test_a_limit_of_output_or_of_money_is_charged(dimension: Dimension) -> None:
    budget = ledger.start((Limit(dimension, "minute", 100, 60),), 0.0)
    budget, turn = ledger.reserve(budget, need(10, 60), 60.0, 0.0)
    assert ledger.opens_at(budget, need(10, 60), 60.0, 0.0) > 10
    budget = ledger.settle(budget, turn, Spent(10, 20, 20.0), 0.0)
    assert budget.windows[0].level == pytest.approx(80)


def test_headroom_is_what_the_scarcest_window_has_left() -> None:
    limits = (TOKENS, Limit(Dimension.REQUESTS, "minute", 10, 60))
    budget, _ = taken(ledger.start(limits, 0.0), need(3000))
    assert ledger.headroom(budget, need(1500), 0.0, 0.0) == pytest.approx(0.25)


def test_a_hold_lasts_as_long_as_the_refill_takes() -> None:
    budget, _ = taken(ledger.start((TOKENS,), 0.0), need(6000))
    opens = ledger.opens_at(budget, need(1000), 0.0, 0.0)
    assert opens == pytest.approx(10.0, abs=0.5)
    assert fits(budget, need(1000), opens + 0.01)


def test_what_was_reserved_too_much_comes_back_at_the_end() -> None:
    budget, turn = taken(ledger.start((TOKENS,), 0.0), need(1000, 100, 4000))
    assert not fits(budget, need(2000))
    budget = ledger.settle(budget, turn, Spent(1000, 50), 0.0)
    assert fits(budget, need(4900))


def test_a_turn_of_unknown_usage_costs_what_was_predicted() -> None:
    budget, turn = taken(ledger.start((TOKENS,), 0.0), need(1000, 100, 4000))
    budget = ledger.settle(budget, turn, None, 0.0)
    assert budget.in_flight == 0
    assert budget.windows[0].level == pytest.approx(4900)


def test_a_dimension_that_was_never_seen_blocks_nothing() -> None:
    budget = ledger.start((), 0.0)
    budget = ledger.told(budget, None, LimitsTold((Seen(Dimension.REQUESTS, "", 100, 99, 0.6),)), 0.0)
    assert fits(budget, need(10_000_000))


def test_until_its_limits_are_told_a_replica_gets_one_turn_at_a_time() -> None:
    budget, first = taken(ledger.start((), 0.0), need(100))
    assert not fits(budget, need(100))
    budget = ledger.told(budget, first, told(remaining=5800, reset_s=2.0), 1.0)
    assert fits(budget, need(100), 1.0)


def test_a_replica_whose_answers_tell_nothing_is_not_waited_for() -> None:
    budget, first = taken(ledger.start((), 0.0), need(100))
    budget = ledger.settle(budget, first, Spent(100, 10), 1.0)
    for _ in range(10):
        assert fits(budget, need(100), 1.0)
        budget, _ = taken(budget, need(100), 1.0)


def test_a_replica_that_could_not_be_reached_is_still_waited_for() -> None:
    budget, first = taken(ledger.start((), 0.0), need(100))
    budget = ledger.settle(budget, first, Spent(0, 0), 1.0, was_taken=False)
    budget, _ = taken(budget, need(100), 1.0)
    assert not fits(budget, need(100), 1.0)


def test_a_turn_near_the_whole_window_waits_and_goes() -> None:
    budget, _ = taken(ledger.start((TOKENS,), 0.0), need(3000))
    large = need(5900, 90)
    assert ledger.never_fits(budget, large, 0.0) is None
    opens = ledger.opens_at(budget, large, 0.0, 0.0)
    assert opens <= 30.1
    assert fits(budget, large, opens + 0.01)


def test_a_turn_larger_than_the_window_never_fits() -> None:
    assert ledger.never_fits(ledger.start((TOKENS,), 0.0), need(6001), 0.0) is not None


def test_a_continuous_window_is_told_from_a_fixed_one() -> None:
    continuous = fixed = ledger.start((TOKENS,), 0.0)
    for step in range(1, 6):
        at = 5.0 * step
        left = 6000 - 700 * step
        continuous = ledger.told(continuous, None, told(remaining=left, reset_s=(6000 - left) / 100), at)
        fixed = ledger.told(fixed, None, told(remaining=left, reset_s=60 - at), at)
    assert not continuous.windows[0].is_fixed
    assert fixed.windows[0].is_fixed
    assert ledger.opens_at(fixed, need(3000), 0.0, 25.0) == pytest.approx(60.0)
    assert ledger.opens_at(continuous, need(3000), 0.0, 25.0) == pytest.approx(25.0 + 5.3, abs=0.1)


def test_a_limit_by_the_day_is_recognised_by_its_reset() -> None:
    seen = Seen(Dimension.REQUESTS, "", 14400, 14370, 179.56)
    budget = ledger.told(ledger.start((), 0.0), None, LimitsTold((seen,)), 0.0)
    assert budget.windows[0].period_s == 86400


def requests_told(limit: float | None, remaining: float, reset_s: float | None) -> LimitsTold:
    return LimitsTold((Seen(Dimension.REQUESTS, "", limit, remaining, reset_s),))


def test_a_told_limit_by_the_day_is_a_window_beside_the_configured_one_by_the_minute() -> None:
    budget, turn = taken(ledger.start((Limit(Dimension.REQUESTS, "minute", 30, 60),), 0.0), need(10))
    for at in (0.1, 0.2):
        budget = ledger.told(budget, turn, requests_told(14400, 14370, 179.56), at)
    assert [(window.limit, window.period_s) for window in budget.windows] == [(30, 60), (14400, 86400)]


def test_of_two_configured_windows_the_one_is_told_whose_limit_is() -> None:
    by_day = Limit(Dimension.REQUESTS, "day", 14400, 86400)
    budget = ledger.start((Limit(Dimension.REQUESTS, "minute", 30, 60), by_day), 0.0)
    budget = ledger.told(budget, None, requests_told(14400, 100, 85800), 0.1)
    assert [window.level for window in budget.windows] == [pytest.approx(30), pytest.approx(100)]


@pytest.mark.parametrize("label", ["", "minute"])
def test_a_provider_that_grants_more_raises_no_configured_limit(label: str) -> None:
    budget = ledger.start((TOKENS,), 0.0)
    for limit in (6000, 12000, 12000):
        budget, turn = taken(budget, need(2500))
        seen = Seen(Dimension.TOKENS, label, limit, limit - 2500, 2500 * 60 / limit)
        budget = ledger.settle(ledger.told(budget, turn, LimitsTold((seen,)), 0.0), turn, Spent(2500, 0), 0.0)
    assert not fits(budget, need(2500))
    assert ledger.opens_at(budget, need(5900), 0.0, 0.0) > 60


def test_what_is_left_of_a_limit_that_is_not_told_only_lowers_a_configured_window() -> None:
    budget, turn = taken(ledger.start((TOKENS,), 0.0), need(3000))
    budget = ledger.told(budget, turn, LimitsTold((Seen(Dimension.TOKENS, "", None, 9000),)), 0.0)
    assert budget.windows[0].level == pytest.approx(3000)
    budget = ledger.told(budget, turn, LimitsTold((Seen(Dimension.TOKENS, "", None, 1000),)), 0.0)
    assert budget.windows[0].level == pytest.approx(1000)


def test_a_window_that_is_told_of_late_knows_the_turns_in_flight() -> None:
    budget, first = taken(ledger.start((Limit(Dimension.TOKENS, "minute", 9000, 60),), 0.0), need(2000))
    budget, _ = taken(budget, need(3000))
    budget = ledger.told(budget, first, told(remaining=4000, reset_s=20), 0.0)
    assert not fits(budget, need(1500))
    assert fits(budget, need(900))


def test_a_bucket_of_an_unusual_period_is_recognised() -> None:
    budget = ledger.start((), 0.0)
    for at, left in ((0.0, 5500), (0.1, 4000), (0.2, 2500), (0.3, 1000)):
        budget = ledger.told(budget, None, told(remaining=left, reset_s=(6000 - left) * 3 / 6000), at)
    assert not budget.windows[0].is_fixed
    assert budget.windows[0].period_s == pytest.approx(3, rel=0.05)


def test_a_reset_that_was_told_before_other_turns_came_refills_nothing_of_theirs() -> None:
    budget, first = taken(ledger.start((), 0.0), need(1000))
    budget = ledger.told(budget, first, told(remaining=5000, reset_s=0.5), 0.1)
    budget, second = taken(budget, need(1000), 0.2)
    budget, _ = taken(budget, need(3000), 0.2)
    budget = ledger.told(budget, second, told(remaining=4000, reset_s=1.0), 0.3)
    assert not fits(budget, need(4000), 1.4)


def test_headers_that_lag_take_nothing_twice() -> None:
    """Three turns are placed before the first one's answer tells what was left after it alone."""
    budget = ledger.start((TOKENS,), 0.0)
    turns = []
    for _ in range(3):
        budget, turn = taken(budget, need(1000))
        turns.append(turn)
    level = budget.windows[0].level
    budget = ledger.told(budget, turns[0], told(remaining=5000, reset_s=10), 0.5)
    assert budget.windows[0].level == pytest.approx(level + 50)


def test_a_turn_that_overtook_others_raises_nothing_of_what_they_took() -> None:
    """It was placed last and arrived first, so what its answer tells of is a window that the others are not in yet."""
    budget = ledger.start((TOKENS,), 0.0)
    for _ in range(5):
        budget, turn = taken(budget, need(1000))
    level = budget.windows[0].level
    budget = ledger.told(budget, turn, told(remaining=5000, reset_s=10), 0.0)
    assert budget.windows[0].level == level


def test_a_turn_that_was_alone_raises_an_account_that_is_too_low() -> None:
    budget = ledger.emptied(ledger.start((TOKENS,), 0.0), 20.0, 0.0)
    budget, turn = taken(budget, need(1000))
    budget = ledger.told(budget, turn, told(remaining=4900, reset_s=11), 0.5)
    assert budget.windows[0].level == pytest.approx(4899)


@pytest.mark.parametrize(("remaining", "counted"), [(5900, 0.7), (4900, 1.0)])
def test_whether_max_tokens_are_counted_is_read_off_a_full_window(remaining: float, counted: float) -> None:
    budget, turn = taken(ledger.start((TOKENS,), 0.0), need(100, 50, 1000))
    budget = ledger.told(budget, turn, told(remaining=remaining, reset_s=1), 0.5)
    assert budget.counted == pytest.approx(counted)


def test_whether_max_tokens_are_counted_is_not_read_off_a_long_prompt() -> None:
    """A prompt of 800 tokens by our estimate, which the provider takes for 750, hides whether 64 more are counted."""
    budget, turn = taken(ledger.start((TOKENS,), 0.0), need(800, 50, 64))
    budget = ledger.told(budget, turn, told(remaining=6000 - 750 - 64, reset_s=8), 0.5)
    assert budget.counted == 1.0


def test_whether_max_tokens_are_counted_is_not_read_off_an_account_that_may_be_low() -> None:
    budget = ledger.emptied(ledger.start((TOKENS,), 0.0), 50.0, 0.0)
    budget, turn = taken(budget, need(100, 50, 1000))
    budget = ledger.told(budget, turn, told(remaining=4900, reset_s=11), 0.5)
    assert budget.counted == 1.0


def test_a_window_of_unknown_kind_that_was_overdrawn_is_full_again_some_day() -> None:
    seen = (
        Seen(Dimension.TOKENS, "", 6000, 5000, 2.0),
        Seen(Dimension.TOKENS, "", 6000, 4990, 2.0),
    )
    budget, turn = taken(ledger.start((TOKENS,), 0.0), need(100))
    for each in seen:
        budget = ledger.told(budget, turn, LimitsTold((each,)), 0.5)
    for _ in range(3):
        budget, _ = taken(budget, need(4000), 0.5)
    at = 0.5
    for _ in range(5):
        at = max(at, ledger.opens_at(budget, need(3000), 0.0, at))
    assert fits(budget, need(3000), at)
    assert at < 300


def test_what_others_use_of_the_window_is_seen() -> None:
    budget, turn = taken(ledger.start((TOKENS,), 0.0), need(1000))
    budget = ledger.told(budget, turn, told(remaining=1000, reset_s=50), 0.0)
    assert not fits(budget, need(1500))


def test_what_others_used_is_no_part_of_what_each_turn_takes() -> None:
    """The key was used elsewhere before: the first answer finds half of the window gone."""
    budget, turn = taken(ledger.start((TOKENS,), 0.0), need(100))
    budget = ledger.told(budget, turn, told(remaining=2900, reset_s=31), 0.0)
    budget = ledger.settle(budget, turn, Spent(100, 0), 0.0)
    for _ in range(25):
        assert fits(budget, need(100))
        budget, _ = taken(budget, need(100))


def test_what_a_provider_counts_beside_the_prompt_is_learned_from_turns_that_were_alone() -> None:
    budget, at = ledger.start((TOKENS,), 0.0), 0.0
    for _ in range(20):
        budget, turn = taken(budget, need(100), at)
        budget = ledger.told(budget, turn, told(remaining=5850, reset_s=1.5), at)
        budget = ledger.settle(budget, turn, Spent(100, 0), at)
        at += 60
    assert budget.windows[0].overhead == pytest.approx(50, abs=11)


def test_a_429_closes_for_as_long_as_it_says_and_then_lets_one_through() -> None:
    budget, turn = taken(ledger.start((TOKENS,), 0.0), need(100))
    budget = ledger.settle(budget, turn, Spent(0, 0), 0.0, was_taken=False)
    budget = ledger.refused_429(budget, turn, LimitsTold((), 7.0), 0.0)
    assert ledger.opens_at(budget, need(100), 0.0, 0.0) >= 7.0
    later = 40.0
    assert fits(budget, need(100), later)
    budget, probe = taken(budget, need(100), later)
    assert not fits(budget, need(100), later), "a second one, before the probe has told how it is"
    budget = ledger.well(ledger.settle(budget, probe, Spent(100, 0), later), probe)
    assert fits(budget, need(100), later)


def test_a_429_makes_cautious_and_caution_decays() -> None:
    budget, turn = taken(ledger.start((TOKENS,), 0.0), need(100))
    budget = ledger.refused_429(ledger.settle(budget, turn, Spent(0, 0), 0.0), turn, LimitsTold((), 1.0), 0.0)
    soon = ledger.opens_at(budget, need(3000), 0.0, 0.0)
    assert soon > 33
    assert budget.windows[0].caution > 0.2
    later = 20 * 60.0
    budget, probe = taken(budget, need(3000), later)
    budget = ledger.well(ledger.settle(budget, probe, Spent(3000, 0), later), probe)
    assert fits(budget, need(2800), later)
    calm = ledger.opens_at(ledger.start((TOKENS,), 0.0), need(3000), 0.0, 0.0)
    assert calm == 0.0


def test_a_window_that_nobody_told_of_is_learned_from_429s() -> None:
    budget = Budget()
    budget = ledger.refused_429(budget, None, LimitsTold(), 0.0)
    assert ledger.opens_at(budget, need(1), 0.0, 0.0) == ledger.COOLDOWN_S
    budget = ledger.refused_429(budget, None, LimitsTold(), 1.0)
    assert ledger.opens_at(budget, need(1), 0.0, 1.0) == 1.0 + 2 * ledger.COOLDOWN_S


def test_of_a_replica_without_limits_no_window_is_learned() -> None:
    budget = Budget()
    for _ in range(5):
        budget, turn = taken(budget, need(100))
    budget = ledger.refused_429(ledger.settle(budget, turn, Spent(0, 0), 0.0, was_taken=False), turn, LimitsTold(), 0.0)
    assert not budget.windows


def test_a_learned_window_gives_way_to_what_headers_tell() -> None:
    budget = ledger.start((), 0.0)
    for _ in range(5):
        budget, turn = taken(budget, need(100))
    budget = ledger.refused_429(ledger.settle(budget, turn, Spent(0, 0), 0.0, was_taken=False), turn, LimitsTold(), 0.0)
    assert {window.dimension: window.limit < 500 for window in budget.windows} == {
        Dimension.TOKENS: True,
        Dimension.REQUESTS: True,
    }
    budget = ledger.told(budget, None, told(remaining=5000, reset_s=10), 1.0)
    tokens = next(window for window in budget.windows if window.dimension is Dimension.TOKENS)
    assert (tokens.limit, tokens.learned) == (6000, False)


def test_the_breaker_lets_exactly_one_probe_through_when_half_open() -> None:
    budget = Budget()
    for at in range(ledger.BREAKER_FAILURES):
        budget, turn = taken(budget, need(1), float(at))
        budget = ledger.failed(ledger.settle(budget, turn, None, float(at)), turn, float(at))
    assert not fits(budget, need(1), 2.0)
    half_open = 2.0 + ledger.BREAKER_S
    assert fits(budget, need(1), half_open)
    budget, probe = taken(budget, need(1), half_open)
    assert not fits(budget, need(1), half_open)
    failed = ledger.failed(ledger.settle(budget, probe, None, half_open), probe, half_open)
    assert ledger.opens_at(failed, need(1), 0.0, half_open) == half_open + 2 * ledger.BREAKER_S
    well = ledger.well(ledger.settle(budget, probe, Spent(1, 1), half_open), probe)
    assert fits(well, need(1), half_open)


def test_a_turn_that_was_sent_before_the_breaker_opened_does_not_close_it() -> None:
    budget, old = taken(Budget(), need(1))
    for _ in range(ledger.BREAKER_FAILURES):
        budget, turn = taken(budget, need(1))
        budget = ledger.failed(ledger.settle(budget, turn, None, 0.0), turn, 0.0)
    budget = ledger.well(ledger.settle(budget, old, Spent(1, 1), 1.0), old)
    assert not fits(budget, need(1), 1.0)


def test_after_a_restart_own_windows_hold_at_most_what_came_in_since() -> None:
    budget = ledger.emptied(ledger.start((TOKENS,), 0.0), 5.0, 0.0)
    assert budget.windows[0].level == pytest.approx(500)


def test_after_a_restart_told_windows_are_aged() -> None:
    budget = ledger.told_before(ledger.start((TOKENS,), 100.0), told(remaining=1000, reset_s=50), 10.0, 100.0)
    assert budget.windows[0].level == pytest.approx(2000)
