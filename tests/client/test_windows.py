"""Windows in headers, waits and dates in all their forms, and what is decided by them."""

from __future__ import annotations

import math
from email.message import Message

import pytest
from luftpause_client.outlook import Action, Need, look
from luftpause_client.prediction import HISTORY_MAX, Cost, bytes_of, predict, remembered
from luftpause_client.refusals import RETRY_S, refused_for_s
from luftpause_client.windows import Window, duration_s, retry_after_s, windows_in, windows_of

NOW = 1_900_000_000.0  # 2030-03-17T17:46:40Z


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0.0", 0.0),
        ("12", 12.0),
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("2m59.56s", 179.56),
        ("120ms", 0.12),
        ("2030-03-17T17:47:10Z", 30.0),
        ("Sun, 17 Mar 2030 17:47:10 GMT", 30.0),
        ("Sun, 17 Mar 2030 17:00:00 GMT", 0.0),
        ("soon", None),
        ("", None),
        ("-3", None),
        (None, None),
    ],
)
def test_a_duration_is_read_in_every_form(text: str | None, seconds: float | None) -> None:
    assert duration_s(text, NOW) == (None if seconds is None else pytest.approx(seconds))


def test_windows_are_read_from_each_family_and_a_dimension_never_seen_is_none() -> None:
    openai = {
        "X-RateLimit-Limit-Tokens": "6000",
        "x-ratelimit-remaining-tokens": "12",
        "x-ratelimit-reset-tokens": "0s",
    }
    assert windows_in(openai, NOW) == (Window(12, 6000, 0.0),)
    anthropic = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2030-03-17T17:46:41Z",
    }
    assert windows_in(anthropic, NOW) == (Window(49, 50, 1.0, "requests"),)
    assert windows_in({"x-ratelimit-remaining-tokens": "many"}, NOW) == ()


def test_retry_after_may_be_a_date_and_milliseconds_are_preferred() -> None:
    assert retry_after_s({"Retry-After": "Sun, 17 Mar 2030 17:47:10 GMT"}, NOW) == 30
    assert retry_after_s({"Retry-After": "30", "retry-after-ms": "29250"}, NOW) == 29.25
    assert retry_after_s({"Retry-After": "later"}, NOW) is None


def test_a_refusal_is_known_whichever_client_raised_it() -> None:
    headers = Message()
    headers["Retry-After"] = "7"
    response = type("Response", (), {"status_code": 429, "headers": {"retry-after": "9"}})()
    assert refused_for_s(_raised(code=429, headers=headers), NOW) == 7
    assert refused_for_s(_raised(response=response), NOW) == 9
    assert refused_for_s(_raised(status_code=429, headers=None), NOW) == RETRY_S
    assert refused_for_s(_raised(status_code=500), NOW) is None
    assert refused_for_s(KeyError("429"), NOW) is None


def _raised(**attributes: object) -> Exception:
    error = Exception("refused")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


def test_a_window_ages_evenly_and_is_full_at_its_reset() -> None:
    assert Window(0, 100, 10.0).aged(4.0) == Window(40, 100, 6.0)
    assert Window(0, 100, 10.0).aged(10.0) == Window(100, 100, 0.0)
    assert Window(0, None, 10.0).aged(10.0) is None
    assert Window(0, 100).aged(1e9) == Window(0, 100)


@pytest.mark.parametrize(
    ("window", "action", "wait_s"),
    [
        (Window(100), Action.CONTINUE, 0.0),
        (Window(99), Action.CHECKPOINT, None),
        (Window(-5), Action.CHECKPOINT, None),
        (Window(0, None, 8.0), Action.WAIT, 8.0),
        (Window(0, None, 60.0), Action.CHECKPOINT, 60.0),
        # Refills evenly: 100 of 1,000 come in a tenth of the time, and a margin.
        (Window(0, 1000, 60.0), Action.WAIT, 6.9),
        (Window(0, 1, 6.0, "requests"), Action.WAIT, 6.0),
        (Window(5, 30, 6.0, "requests"), Action.CONTINUE, 0.0),
    ],
)
def test_what_fits_goes_what_fits_soon_waits_and_the_rest_leaves(
    window: Window, action: Action, wait_s: float | None
) -> None:
    found = look([window], Need(100, 0, 0), 15.0)
    assert found.action is action
    assert found.wait_s == (None if wait_s is None else pytest.approx(wait_s))


def test_a_reset_of_zero_is_a_window_that_is_full_and_not_a_missing_one() -> None:
    assert look([Window(3, 1000, 0.0)], Need(100, 0, 0), 15.0).action is Action.CONTINUE
    assert look([Window(3, None, 0.0)], Need(100, 0, 0), 15.0).action is Action.CONTINUE
    assert look([Window(3, 1000)], Need(100, 0, 0), 15.0).action is Action.CHECKPOINT


def test_a_turn_that_may_need_more_than_the_window_goes_when_it_is_full() -> None:
    assert look([Window(1000, 1000, 0.0)], Need(1200, 0, 0), 15.0).action is Action.CONTINUE
    assert look([Window(900, 1000, 6.0)], Need(1200, 0, 0), 15.0).action is Action.WAIT


def test_the_scarcest_window_decides() -> None:
    found = look([Window(0, None, 8.0), Window(0, 30, 12.0, "requests"), Window(1e6)], Need(100, 0, 0), 15.0)
    assert found.wait_s == 8.0
    assert look([Window(0, None, 8.0), Window(0)], Need(100, 0, 0), 15.0).wait_s is None


@pytest.mark.parametrize(
    ("reading", "problem"),
    [
        ("100", "telemetry: expected"),
        (True, "telemetry: expected"),
        ([1], "telemetry: expected"),
        (math.nan, "remaining"),
    ],
)
def test_telemetry_that_tells_nonsense_is_a_clear_error(reading: object, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        windows_of(reading)


def test_equal_turns_leave_a_spread() -> None:
    likely = predict([Cost(400, 1000)] * 10, 400)
    assert likely.tokens == 1000
    assert likely.quantile(1.0) > 1100
    assert likely.quantile(2.0) > likely.quantile(1.0)


def test_a_larger_prompt_is_a_larger_turn() -> None:
    history = [Cost(400, 200), Cost(800, 300), Cost(1200, 400)]
    assert predict(history, 8000).tokens == pytest.approx(2100)
    assert predict([], 4000).quantile(1.0) > 1256


def test_the_history_is_bounded() -> None:
    history: tuple[Cost, ...] = ()
    for n in range(10 * HISTORY_MAX):
        history = remembered(history, Cost(n, n))
    assert len(history) == HISTORY_MAX
    assert history[-1] == Cost(10 * HISTORY_MAX - 1, 10 * HISTORY_MAX - 1)


def test_messages_without_content_have_a_size() -> None:
    assert bytes_of([{"role": "assistant", "content": None, "tool_calls": []}, object(), "\ud800"]) > 50
