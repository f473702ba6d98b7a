"""What the meter reads and hides must not depend on how the bytes were cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.sse import EventBuffer, data_of, split
from dataplane.meter import Meter, ReplyMeter, StreamMeter
from tests.dataplane.scripted_engine import DONE, REPLY, USAGE, USAGE_CHUNK, delta, event

CONTENTS = [
    event(delta(role="assistant", content="")),
    event(delta(content="Grüße, 世界 🙂")),
    event(delta(content='a "quoted" \\ and [DONE] "usage"')),
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}],"usage":null}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"y","tool_calls":null},"finish_reason": null}]}\r\n\r\n',
    b": a comment\n\n",
    b"event: ping\ndata: {\ndata: }\n\n",
    b"data: not json\n\n",
    event({"id": "c", "choices": [], "prompt_filter_results": []}),
    event({**delta(content="z"), "usage": {"prompt_tokens": 1, "completion_tokens": 1}}),
    event(delta(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}}])),
    event(delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a": 1}'}}])),
    event(delta(tool_calls=[{"index": 1, "id": "call_2", "function": {"name": "g", "arguments": "{}"}}])),
    event(delta(finish_reason="tool_calls")),
    event(USAGE_CHUNK),
    b'data: {"choices": [], "usage": {"prompt_tokens": 3}}\r\n\r\n',
    DONE,
    b"data: [DONE]\r\n\r\n",
]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in parts."""
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds) if a < b]


def relay(meter: Meter, parts: list[bytes]) -> bytes:
    """What the client gets."""
    return b"".join([*(meter.feed(part) for part in parts), meter.finish()])


def read(meter: Meter) -> dict[str, Any]:
    """What the meter read."""
    return {
        name: getattr(meter, name)
        for name in (
            "done",
            "error",
            "finish_reason",
            "first_token",
            "has_tool_calls",
            "tool_call_ids",
            "usage",
            "whole",
        )
    }


def obvious(events: list[bytes]) -> dict[str, Any]:
    """The same, read in the slow and obvious way."""
    documents = []
    for each in events:
        try:
            document = json.loads(data_of(each))
        except ValueError:
            continue
        documents.append(document)
    choices = [choice for document in documents for choice in document.get("choices", [])]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or []]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    usages = [document["usage"] for document in documents if document.get("usage")]
    return {
        "done": any(data_of(each) == b"[DONE]" for each in events),
        "finish_reason": reasons[-1] if reasons else "",
        "first_token": bool(calls) or any(choice["delta"].get("content") for choice in choices),
        "has_tool_calls": bool(calls) or "tool_calls" in reasons,
        "tool_call_ids": tuple(dict.fromkeys(call["id"] for call in calls if call.get("id"))),
        "prompt_tokens": usages[-1]["prompt_tokens"] if usages else None,
    }


streams = st.lists(st.sampled_from(CONTENTS), max_size=12)
cuts = st.lists(st.integers(0, 4000), max_size=30)


@given(streams, cuts)
def test_nothing_is_changed_where_nothing_is_hidden(events: list[bytes], places: list[int]) -> None:
    meter = StreamMeter(hide_usage=False)
    parts = cut(b"".join(events), places)
    assert [meter.feed(part) for part in parts] == parts
    assert meter.finish() == b""


@given(streams, cuts)
def test_exactly_the_chunks_with_only_usage_are_hidden(events: list[bytes], places: list[int]) -> None:
    hidden = {CONTENTS[14], CONTENTS[15]}
    shown = b"".join(each for each in events if each not in hidden)
    assert relay(StreamMeter(hide_usage=True), cut(b"".join(events), places)) == shown


@given(streams, cuts, st.booleans())
def test_what_is_read_does_not_depend_on_the_cuts(events: list[bytes], places: list[int], hide: bool) -> None:
    meter = StreamMeter(hide)
    relay(meter, cut(b"".join(events), places))
    found = read(meter)
    expected = obvious(events)
    assert (found["usage"].prompt_tokens if found["usage"] else None) == expected.pop("prompt_tokens")
    assert {name: found[name] for name in expected} == expected


@given(streams, cuts)
def test_an_event_at_the_end_needs_no_empty_line(events: list[bytes], places: list[int]) -> None:
    data = b"".join(events) + event(USAGE_CHUNK).rstrip()
    meter = StreamMeter(hide_usage=True)
    assert b'"prompt_tokens": 12' not in relay(meter, cut(data, places))
    assert meter.usage is not None
    assert meter.usage.cached_tokens == 8


@given(streams, cuts)
def test_events_joined_are_the_bytes_that_came(events: list[bytes], places: list[int]) -> None:
    buffer = EventBuffer()
    data = b"".join(events)
    whole = b"".join(buffer.feed(part) for part in cut(data, places))
    assert whole + buffer.flush() == data
    assert split(whole) == events


def test_an_ordinary_chunk_is_told_by_what_is_around_its_text() -> None:
    meter = StreamMeter(hide_usage=True)
    around = tuple(event(delta(content="|")).split(b"|"))
    half = event(delta(content="d"))[:40]
    for data, template in (
        (event(delta(content="a")), None),  # read, for its first token
        (event(delta(content="b")), around),
        (half, None),  # in the middle of an event nothing is ordinary
        (event(delta(content="d")).removeprefix(half), around),
    ):
        meter.feed(data)
        assert meter.template == template


@given(streams, streams, cuts, st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_an_event_too_large_to_read_is_relayed_and_all_others_are_read(
    before: list[bytes], behind: list[bytes], places: list[int], end: bytes
) -> None:
    large = b'data: {"choices": "' + b"x" * 2000 + b'"}' + end
    events = [*before, large, *behind]
    hidden = {CONTENTS[14], CONTENTS[15]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataplane.meter._EVENT_BYTES_MAX", 1000)
        meter = StreamMeter(hide_usage=True)
        shown = relay(meter, cut(b"".join(events), places))
        assert relay(StreamMeter(hide_usage=False), cut(b"".join(events), places)) == b"".join(events)
    assert shown == b"".join(each for each in events if each not in hidden)
    expected = obvious([*before, *behind])
    del expected["first_token"], expected["prompt_tokens"]
    found = read(meter)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "usage",
    [{"prompt_tokens": -1}, {"prompt_tokens": "many"}, {"prompt_tokens": 2**70}, [], "none", {"prompt_tokens": 1.5}],
)
def test_strange_usage_is_ignored(usage: Any) -> None:
    meter = StreamMeter(hide_usage=False)
    relay(meter, [event({**delta(content="a", finish_reason="stop"), "usage": usage})])
    assert (meter.usage, meter.finish_reason, meter.first_token) == (None, "stop", True)


@given(cuts)
def test_a_whole_reply_is_read_at_its_end(places: list[int]) -> None:
    meter = ReplyMeter()
    assert relay(meter, cut(REPLY, places)) == REPLY
    assert meter.usage is not None
    assert meter.usage.prompt_tokens == USAGE["prompt_tokens"]
    assert (meter.finish_reason, meter.has_tool_calls, meter.whole) == ("stop", False, True)


def test_tool_calls_of_a_whole_reply_are_read() -> None:
    meter = ReplyMeter()
    calls = [{"id": "call_1"}, {"id": "call_2"}, {"function": {}}]
    reply = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "stop"}]}
    relay(meter, [json.dumps(reply).encode()])
    assert (meter.has_tool_calls, meter.tool_call_ids) == (True, ("call_1", "call_2"))


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b"\xff", b'{"choices": 3}', b"[" * 100_000])
def test_a_reply_that_is_not_understood_tells_nothing(body: bytes) -> None:
    meter = ReplyMeter()
    assert relay(meter, [body] if body else []) == body
    assert (meter.usage, meter.whole, meter.has_tool_calls) == (None, False, False)


def call(number: int) -> dict[str, Any]:
    """A tool call of a delta."""
    return {"index": number, "id": f"call_{number}", "function": {"name": "f", "arguments": ""}}


def test_of_a_million_tool_calls_or_choices_the_first_are_read() -> None:
    meter = StreamMeter(hide_usage=True)
    relay(meter, [event(delta(tool_calls=[call(number) for number in range(100_000)]))])
    assert meter.tool_call_ids == tuple(f"call_{number}" for number in range(64))
    meter = StreamMeter(hide_usage=True)
    choices = [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}] * 100_000
    last = {"index": 1, "delta": {"content": "a"}, "finish_reason": "length"}
    relay(meter, [event({"id": "c", "choices": [*choices, last], "usage": USAGE})])
    assert (meter.finish_reason, meter.first_token, meter.usage is not None) == ("stop", False, True)


def test_a_megabyte_of_arguments_in_one_call_is_read() -> None:
    arguments = json.dumps({"rows": [{"a": number} for number in range(100_000)]})
    large = {**call(1), "function": {"name": "f", "arguments": arguments}}
    whole = {"choices": [{"message": {"tool_calls": [large]}, "finish_reason": "tool_calls"}], "usage": USAGE}
    for meter, data in (
        (StreamMeter(hide_usage=True), event(delta(tool_calls=[large], finish_reason="tool_calls"))),
        (ReplyMeter(), json.dumps(whole).encode()),
    ):
        assert len(data) > 2**20
        assert relay(meter, [data]) == data
        assert (meter.tool_call_ids, meter.finish_reason, meter.whole) == (("call_1",), "tool_calls", True)


@pytest.mark.parametrize(
    ("part", "is_token"),
    [
        ('{"content" : ""}', False),
        ('{"content": null , "tool_calls": [ ]}', False),
        ('{"refusal": [], "function_call": {}, "tool_calls": null}', False),
        ('{"reasoning":  "a"}', True),
        ('{"content": [{"type": "text"}]}', True),
        ('{"function_call": {"name": "f"}}', True),
        ('{"tool_calls": [{}]}', True),
    ],
)
def test_a_delta_has_a_token_where_there_is_something_in_it(part: str, is_token: bool) -> None:
    meter = StreamMeter(hide_usage=False)
    relay(meter, [b'data: {"choices": [ {"delta": %b} ]}\n\n' % part.encode()])
    assert meter.first_token is is_token


def test_usage_beside_an_empty_list_of_choices_is_hidden_however_it_is_written() -> None:
    meter = StreamMeter(hide_usage=True)
    assert relay(meter, [b'data: {"choices" : [ ] , "usage" : {"prompt_tokens" : 3}}\n\n']) == b""
    assert meter.usage is not None


@pytest.mark.parametrize(("text", "too_large"), [("Request too large for x", True), ("slow down", False)])
def test_an_error_in_a_reply_is_seen(text: str, too_large: bool) -> None:
    meter = StreamMeter(hide_usage=False)
    relay(meter, [event({"error": {"message": text, "more": [[]] * 1000}})])
    assert (meter.error, meter.too_large) == (True, too_large)
