"""Any bytes of an engine's event stream: cut anywhere, the same is relayed and the same is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from common.sse import EventBuffer, split
from dataplane.meter import ReplyMeter, StreamMeter
from tests.dataplane.scripted_engine import DONE, REPLY, USAGE_CHUNK, delta, event
from tests.fuzz.fuzzing import cut, either, fuzz, mutated, some, some_bytes

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


def stream(chance: random.Random) -> bytes:
    """Some events, with or without bytes that are wrong."""
    return mutated(chance, b"".join(some(chance, 8, lambda one: either(one, EVENTS, 20))))


def reply(chance: random.Random) -> bytes:
    """A whole reply, with or without bytes that are wrong, or any bytes."""
    return mutated(chance, REPLY) if chance.random() < 0.9 else some_bytes(chance, 60)


def with_cuts(make: Callable[[random.Random], bytes]) -> Callable[[random.Random], tuple[bytes, list[bytes]]]:
    """What `make` makes, whole and cut."""

    def both(chance: random.Random) -> tuple[bytes, list[bytes]]:
        data = make(chance)
        return data, cut(chance, data)

    return both


def told(meter: Any, parts: list[bytes]) -> tuple[bytes, dict[str, Any]]:
    """What a client gets of `parts`, and what was read of them."""
    relayed = b"".join([*(meter.feed(part) for part in parts), meter.finish()])
    names = ("done", "error", "finish_reason", "first_token", "has_tool_calls", "tool_call_ids", "usage", "whole")
    return relayed, {name: getattr(meter, name) for name in names}


def test_events_do_not_depend_on_the_cuts(request: pytest.FixtureRequest) -> None:
    def run(made: tuple[bytes, list[bytes]]) -> None:
        data, cuts = made
        buffer, whole = EventBuffer(), EventBuffer()
        parts = b"".join(buffer.feed(part) for part in cuts)
        assert (parts, buffer.flush()) == (whole.feed(data), whole.flush())
        assert b"".join(split(parts)) == parts

    fuzz(request, with_cuts(stream), run)


def test_what_is_relayed_and_read_does_not_depend_on_the_cuts(request: pytest.FixtureRequest) -> None:
    def run(made: tuple[bytes, list[bytes]]) -> None:
        data, cuts = made
        for hides in (False, True):
            expected, read = told(StreamMeter(hides), [data] if data else [])
            assert told(StreamMeter(hides), cuts) == (expected, read)
            assert hides or expected == data

    fuzz(request, with_cuts(stream), run)


def test_a_whole_reply_does_not_depend_on_the_cuts(request: pytest.FixtureRequest) -> None:
    def run(made: tuple[bytes, list[bytes]]) -> None:
        data, cuts = made
        expected, read = told(ReplyMeter(), [data] if data else [])
        assert told(ReplyMeter(), cuts) == (expected, read)
        assert expected == data

    fuzz(request, with_cuts(reply), run)
