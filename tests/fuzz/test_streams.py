"""Any bytes of an engine's event stream: cut anywhere, the same is relayed and the same is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from common.sse import EventBuffer, split
from dataplane.meter import ReplyMeter, StreamMeter
from tests.dataplane.scripted_engine import DONE, REPLY, USAGE_CHUNK, delta, event
from tests.fuzz.fuzzing import cut, cuts, fuzz, mutated

EVENTS = [
    *(event(delta(content=text)) for text in ("a", "b", "", "ü", '"', "\\")),
    event(delta(role="assistant", content="")),
    event(delta(reasoning_content="x")),
    event(delta(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}])),
    event(delta(finish_reason="stop")),
    event(delta(finish_reason="tool_calls")),
    event(USAGE_CHUNK),
    event({**delta(content="z"), "usage": {"prompt_tokens": 1}}),
    event({"error": {"message": "x"}}),
    b'data: {"choices":[{"delta":{"content":"y"},"finish_reason":null}],"usage":null}\r\n\r\n',
    b": ping\n\n",
    b"\n",
    b"\r\n",
    b"data:",
    b"event: x\n",
    DONE,
]
bodies = mutated(st.lists(st.sampled_from(EVENTS) | st.binary(max_size=20), max_size=8).map(b"".join))


def told(meter: Any, parts: list[bytes]) -> tuple[bytes, dict[str, Any]]:
    """What a client gets of `parts`, and what was read of them."""
    relayed = b"".join([*(meter.feed(part) for part in parts), meter.finish()])
    names = ("done", "error", "finish_reason", "first_token", "has_tool_calls", "tool_call_ids", "usage", "whole")
    return relayed, {name: getattr(meter, name) for name in names}


def test_events_do_not_depend_on_the_cuts(request: pytest.FixtureRequest) -> None:
    def run(made: tuple[bytes, list[int]]) -> None:
        data, places = made
        buffer, whole = EventBuffer(), EventBuffer()
        parts = b"".join(buffer.feed(part) for part in cut(data, places))
        assert (parts, buffer.flush()) == (whole.feed(data), whole.flush())
        assert b"".join(split(parts)) == parts

    fuzz(request, st.tuples(bodies, cuts), run)


def test_what_is_relayed_and_read_does_not_depend_on_the_cuts(request: pytest.FixtureRequest) -> None:
    def run(made: tuple[bytes, list[int], bool]) -> None:
        data, places, hides = made
        expected, read = told(StreamMeter(hides), [data] if data else [])
        assert told(StreamMeter(hides), cut(data, places)) == (expected, read)
        if not hides:
            assert expected == data

    fuzz(request, st.tuples(bodies, cuts, st.booleans()), run)


def test_a_whole_reply_does_not_depend_on_the_cuts(request: pytest.FixtureRequest) -> None:
    def run(made: tuple[bytes, list[int]]) -> None:
        data, places = made
        expected, read = told(ReplyMeter(), [data] if data else [])
        assert told(ReplyMeter(), cut(data, places)) == (expected, read)
        assert expected == data

    fuzz(request, st.tuples(mutated(st.just(REPLY)) | st.binary(max_size=60), cuts), run)
