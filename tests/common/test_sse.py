"""Events in streams of bytes, however they are cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.sse import EventBuffer, data_of, split

PIECES = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"data: ", b"data:", b"x", b" ", b": word", b"event: a"]),
    max_size=12,
)
EVENT = re.compile(rb".*?\n\r?\n", re.DOTALL)


def data_line_by_line(event: bytes) -> bytes:
    lines = [line.removesuffix(b"\r") for line in event.split(b"\n")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))


@given(st.lists(PIECES.map(b"".join), max_size=5))
def test_events_are_those_of_the_whole_wherever_it_is_cut(parts: list[bytes]) -> None:
    buffer, whole = EventBuffer(), b"".join(parts)
    events = [event for part in parts for event in split(buffer.feed(part))]
    assert events == EVENT.findall(whole)
    assert b"".join(events) + buffer.flush() == whole


@given(PIECES.map(b"".join))
def test_data_is_that_of_the_data_lines(text: bytes) -> None:
    for event in split(text + b"\n\n"):
        assert data_of(event) == data_line_by_line(event)


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: {}\n\n", b"{}"),
        (b"data:{}\r\n\r\n", b"{}"),
        (b"data: {}\r\n\n", b"{}"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b": a comment\n\n", b""),
        (b"data: \n\n", b""),
        (b"id: 1\ndata:  x\n\n", b" x"),
    ],
)
def test_data_of_one_event(event: bytes, data: bytes) -> None:
    assert data_of(event) == data
