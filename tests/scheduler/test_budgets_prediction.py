"""What turns are predicted to cost, by what turns did cost."""

from __future__ import annotations

import pytest

from scheduler.budgets.prediction import (
    BINS,
    COVERAGE,
    FLOOR_TOKENS,
    GENERATION,
    Histories,
    learn,
    mean_and_deviation,
    predict,
)


def test_equal_costs_leave_a_margin() -> None:
    histories = Histories()
    key = ("m", "c", "")
    for _ in range(300):
        asked = predict(histories, key, 4000, None)
        histories = learn(histories, key, asked, prompt_bytes=4000, prompt_tokens=1000, completion_tokens=100)
    asked = predict(histories, key, 4000, None)
    assert asked.prompt >= 1009
    assert asked.completion >= 80
    assert asked.prompt + asked.completion >= 1100


def test_histories_are_bounded() -> None:
    histories = Histories()
    for number in range(3 * GENERATION):
        key = ("m", f"caller-{number}", "")
        asked = predict(histories, key, 100, None)
        histories = learn(histories, key, asked, prompt_bytes=100, prompt_tokens=25, completion_tokens=number)
    assert len(histories.young) + len(histories.old) <= 2 * GENERATION
    assert all(0 < len(history.bins) <= BINS for history in histories.young.values())


def test_a_new_caller_is_predicted_by_what_the_model_does() -> None:
    histories = Histories()
    for _ in range(50):
        key = ("m", "old", "")
        asked = predict(histories, key, 100, None)
        histories = learn(histories, key, asked, prompt_bytes=100, prompt_tokens=25, completion_tokens=40)
    assert predict(histories, ("m", "new", ""), 100, None).completion < 60
    mean, deviation = mean_and_deviation(histories, ("m", "new", ""))
    assert mean == pytest.approx(40, rel=0.2)
    assert deviation < 10


def test_prompt_tokens_follow_from_bytes_once_usage_was_seen() -> None:
    histories = Histories()
    key = ("m", "c", "")
    for size in range(1000, 5000, 100):
        asked = predict(histories, key, size, 100)
        histories = learn(histories, key, asked, prompt_bytes=size, prompt_tokens=size // 5, completion_tokens=10)
    assert predict(histories, key, 10_000, 100).prompt == pytest.approx(2000, rel=0.05)
    assert 0.5 < COVERAGE < 1


def taught(completions: list[int]) -> Histories:
    """Histories after turns of 1,000 bytes and 250 tokens with these completions."""
    histories, key = Histories(), ("m", "c", "")
    for completion in completions:
        asked = predict(histories, key, 1000, None)
        histories = learn(histories, key, asked, prompt_bytes=1000, prompt_tokens=250, completion_tokens=completion)
    return histories


def test_turns_that_cost_more_than_any_before_raise_the_quantile_beyond_the_largest_seen() -> None:
    """Completions that grow all the time: the largest seen is never enough."""
    histories = taught([round(50 * 1.05**number) for number in range(100)])
    assert predict(histories, ("m", "c", ""), 1000, None).completion > 50 * 1.05**99


def test_no_completion_is_predicted_to_be_shorter_than_the_floor() -> None:
    assert predict(taught([1] * 100), ("m", "c", ""), 1000, None).completion == FLOOR_TOKENS
