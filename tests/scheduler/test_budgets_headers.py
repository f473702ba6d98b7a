"""What headers tell of rate limits, in every family and form, and what they must not break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.budgets.headers import Dimension, LimitsTold, Seen, read, read_wait_s

DATE = ("date", "Mon, 30 Nov 2026 12:00:00 GMT")


def one(*headers: tuple[str, str]) -> Seen:
    told = read(headers, {})
    assert len(told.seen) == 1
    return told.seen[0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("2m59.56s", 179.56),
        ("120ms", 0.12),
        ("1h2m3s", 3723.0),
        ("1d", 86400.0),
        ("0", 0.0),
        ("0.0", 0.0),
        ("0s", 0.0),
        ("12.5", 12.5),
        ("2026-11-30T12:00:07Z", 7.0),
        ("2026-11-30T13:00:07+01:00", 7.0),
        ("Mon, 30 Nov 2026 12:01:00 GMT", 60.0),
        ("1796040005", 5.0),
        ("1796040005000", 5.0),
        ("2026-11-30T11:59:00Z", 0.0),
        ("null", None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("1s garbage", None),
    ],
)
def test_every_form_of_a_time_is_read(text: str, seconds: float | None) -> None:
    assert read_wait_s(text, 1796040000.0) == (None if seconds is None else pytest.approx(seconds))


def test_a_date_without_the_answers_own_date_tells_nothing() -> None:
    assert read_wait_s("2026-11-30T12:00:07Z", None) is None


def test_openai_and_groq_are_read() -> None:
    told = read(
        [
            ("X-RateLimit-Limit-Tokens", "6000"),
            ("x-ratelimit-remaining-tokens", "5,950"),
            ("x-ratelimit-reset-tokens", "500ms"),
            ("x-ratelimit-limit-requests", "14400"),
            ("x-ratelimit-remaining-requests", "14370"),
            ("x-ratelimit-reset-requests", "2m59.56s"),
            ("content-type", "application/json"),
        ],
        {},
    )
    assert set(told.seen) == {
        Seen(Dimension.TOKENS, "", 6000, 5950, 0.5),
        Seen(Dimension.REQUESTS, "", 14400, 14370, 179.56),
    }


def test_anthropic_is_read_against_the_answers_date() -> None:
    prefix = "anthropic-ratelimit-input-tokens-"
    seen = one(
        DATE, (prefix + "limit", "400"), (prefix + "remaining", "100"), (prefix + "reset", "2026-11-30T12:00:45Z")
    )
    assert seen == Seen(Dimension.INPUT, "", 400, 100, 45.0)


def test_names_with_a_period_or_without_a_dimension_are_read() -> None:
    assert one(("x-ratelimit-limit-requests-day", "1000")) == Seen(Dimension.REQUESTS, "day", 1000)
    assert one(("ratelimit-remaining", "3")) == Seen(Dimension.REQUESTS, "", None, 3)
    assert one(("x-ratelimit-remaining-tokens-prompt", "3")) == Seen(Dimension.INPUT, "", None, 3)


def test_names_of_a_providers_own_are_read_by_their_alias() -> None:
    told = read([("X-Budget-Left", "17")], {"x-budget-left": "x-ratelimit-remaining-tokens"})
    assert told.seen == (Seen(Dimension.TOKENS, "", None, 17),)


def test_headers_of_something_else_tell_nothing() -> None:
    assert read([("x-ratelimit-unit", "minute"), ("x-ratelimit-limit-images", "5"), DATE], {}) == LimitsTold()


def test_a_reset_of_zero_is_a_value() -> None:
    assert one(("x-ratelimit-reset-tokens", "0.0")).reset_s == 0.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2", 2.0), ("0.25", 0.25), ("Mon, 30 Nov 2026 12:00:30 GMT", 30.0), ("1m30s", 90.0), ("null", None), ("x", None)],
)
def test_retry_after_may_be_seconds_or_a_date_and_breaks_nothing(value: str, seconds: float | None) -> None:
    assert read([DATE, ("Retry-After", value)], {}).retry_after_s == seconds
    assert read([DATE, ("retry-after-ms", "250"), ("Retry-After", value)], {}).retry_after_s == 0.25


@given(
    st.sampled_from(
        (
            "retry-after",
            "x-ratelimit-reset-tokens",
            "x-ratelimit-limit-requests",
            "date",
            "anthropic-ratelimit-tokens-reset",
        )
    ),
    st.text(max_size=80),
)
def test_no_value_breaks_the_reader(name: str, value: str) -> None:
    told = read([DATE, (name, value)], {})
    for number in (told.retry_after_s, *(seen.reset_s for seen in told.seen), *(seen.limit for seen in told.seen)):
        assert number is None or 0 <= number <= 1e15
