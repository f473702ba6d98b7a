"""Whether it pays to keep prefixes, by what turns cost."""

from __future__ import annotations

import pytest

from scheduler.economy import NO_ECONOMY, Economy, TurnSeen, Way, predicted, with_pause, with_turn
from scheduler.ways import NOTHING_GIVEN, next_way

KV_TOKENS = 16_384


def seen(at: float, prefill_s: float, token_s: float, in_flight: int = 6, cached: int = 0) -> TurnSeen:
    """A turn of 2,000 prompt tokens, 500 of them new, and 48 generated ones."""
    return TurnSeen(at, 2_000, 48, cached, 500, (2_000 - cached) * prefill_s, 47 * token_s, in_flight)


def after_turns(prefill_s: float, token_s: float, gap_s: float, cached: int = 0) -> Economy:
    economy = with_pause(NO_ECONOMY, 1.25)
    for number in range(200):
        in_flight = 5 + number % 3
        economy = with_turn(economy, seen(number * gap_s, prefill_s, token_s * (1 + in_flight / 20), in_flight, cached))
    return economy


def predicted_way(economy: Economy, now: Way) -> Way:
    """The way that follows where none was tried."""
    return next_way(NOTHING_GIVEN, economy, KV_TOKENS, 0.0, now, at=0.0)


def test_where_prefill_is_dear_prefixes_are_kept() -> None:
    assert predicted_way(after_turns(240e-6, 60e-3, 0.65), Way.ANEW) is Way.KEPT


def test_where_steps_cost_more_than_prefill_turns_fill_the_engine() -> None:
    assert predicted_way(after_turns(40e-6, 14e-3, 0.2), Way.KEPT) is Way.ANEW


def test_between_the_two_some_more_runs_are_kept_than_all_find_their_prefixes() -> None:
    ways = [predicted_way(after_turns(p * 1e-6, 14e-3, 0.2), Way.ANEW) for p in range(40, 400, 10)]
    assert ways == sorted(ways, reverse=True)
    assert set(ways) == set(Way)


def test_long_pauses_are_not_waited_for() -> None:
    economy = after_turns(240e-6, 60e-3, 0.65)
    for _ in range(500):
        economy = with_pause(economy, 60.0)
    assert predicted_way(economy, Way.KEPT) is Way.ANEW


def test_nothing_changes_before_a_few_turns_are_known() -> None:
    economy = with_turn(NO_ECONOMY, seen(1.0, 40e-6, 14e-3))
    assert all(predicted_way(economy, way) is way for way in Way)


def test_a_close_call_changes_nothing() -> None:
    economies = [after_turns(prefill_s * 1e-6, 20e-3, 0.4) for prefill_s in range(20, 400, 5)]
    ways = [tuple(predicted_way(e, way) for way in (Way.KEPT, Way.ANEW)) for e in economies]
    assert any(kept < anew for kept, anew in ways), "between two ways there is a range where either is left as it is"
    assert all(kept <= anew for kept, anew in ways)


@pytest.mark.parametrize(("prefill_s", "token_s"), [(0.0, 0.01), (1e-3, 0.0), (1e-9, 1e-9), (10.0, 10.0)])
def test_absurd_costs_give_a_number(prefill_s: float, token_s: float) -> None:
    economy = after_turns(prefill_s, token_s, 0.1)
    if economy.prefill_s:
        assert all(0 <= rate < 1e12 for rate in predicted(economy, KV_TOKENS))


def test_the_price_of_prefill_is_that_of_turns_that_waited_for_nobody() -> None:
    economy = NO_ECONOMY
    for number in range(200):
        waited = 1.0 if number % 3 else 0.0
        turn = seen(number * 0.3, 100e-6, 10e-3)
        economy = with_turn(
            economy,
            TurnSeen(turn.at, 2_000, 48, 0, 500, turn.first_token_s + waited, turn.decode_s, 6),
        )
    assert economy.prefill_s == pytest.approx(100e-6, rel=0.35)
