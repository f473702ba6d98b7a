"""What a traceparent says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.trace_context import TraceContext, derived_span_id, derived_trace_id, parse, trace_id_of, usable

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_traceparent_is_read_and_written_as_it_was() -> None:
    context = parse(GOOD)
    assert context == TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)
    assert context is not None
    assert context.traceparent == GOOD
    assert trace_id_of(GOOD) == "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_later_version_may_say_more() -> None:
    assert parse(GOOD.replace("00-4b", "cc-4b") + "-what-the-future-will-be") is not None


def test_what_is_sent_on_is_what_every_version_has() -> None:
    assert usable(GOOD) == GOOD
    assert usable(GOOD.replace("00-4b", "cc-4b") + "-\x00\r") == GOOD.replace("00-4b", "cc-4b")
    assert [usable(each) for each in (None, 7, "", "a\r\nb", GOOD + "x")] == [None] * 5


@pytest.mark.parametrize(
    "bad",
    [
        "",
        GOOD.upper(),
        GOOD + "-more",
        GOOD[:-1],
        "ff" + GOOD[2:],
        "00-" + "0" * 32 + GOOD[35:],
        GOOD[:36] + "0" * 16 + "-01",
        GOOD + "\n",
    ],
)
def test_what_is_no_traceparent_is_none(bad: str) -> None:
    assert parse(bad) is None
    assert trace_id_of(bad) == ""


@given(st.text())
def test_no_text_is_too_strange_to_be_read(text: str) -> None:
    context = parse(text)
    assert context is None or parse(context.traceparent) == context


def test_derived_ids_are_the_same_again_and_others_for_other_names() -> None:
    assert derived_span_id("run-1/0") == derived_span_id("run-1/0") != derived_span_id("run-1/1")
    assert derived_trace_id("run-1").bit_length() <= 128
    assert derived_span_id("run-1").bit_length() <= 64
