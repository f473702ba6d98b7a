"""A streamed reply is the reply that it would have been whole, however its bytes are cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.engine.config import EngineConfig
from fakes.engine.server import EngineServer
from runtime.chat import BrokenReplyError, RawCall, Reply, read_reply
from runtime.chat_stream import RefusedInStreamError, ReplyStream

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
TWO = [{"id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}, {"id": "b", "function": {"name": "g"}}]


def event(document: Any) -> bytes:
    """One event."""
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    """A chunk with one choice."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}], "usage": None})


def call(**fields: Any) -> bytes:
    """A chunk with a piece of a tool call; `name` and `arguments` are its function's."""
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    return delta(tool_calls=[{**fields, "function": function}])


def read(*parts: bytes) -> Reply:
    """The reply that comes in these parts."""
    stream = ReplyStream()
    for part in parts:
        stream.feed(part)
    return stream.reply()


SPOKEN = b"".join(
    [
        b": held\n\n",
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="Grüße, "),
        delta(content="世界"),
        delta(content=" 🙂").replace(b"\n", b"\r\n"),
        call(index=0, id="a", type="function", name="f", arguments=""),
        call(index=0, arguments='{"x": '),
        call(index=1, id="b", name="g"),
        call(index=0, arguments="1}"),
        delta("tool_calls"),
        event({"choices": [], "usage": USAGE}),
        DONE,
        b"data: whatever follows\n\n",
    ]
)
WHOLE = {
    "choices": [{"message": {"content": "Grüße, 世界 🙂", "tool_calls": TWO}, "finish_reason": "tool_calls"}],
    "usage": USAGE,
}


@given(st.lists(st.integers(0, len(SPOKEN)), max_size=8))
def test_a_stream_gives_the_whole_reply_however_it_is_cut(places: list[int]) -> None:
    bounds = [0, *sorted(places), len(SPOKEN)]
    assert read(*(SPOKEN[a:b] for a, b in pairwise(bounds))) == read_reply(msgspec.json.encode(WHOLE))


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"max_tokens": 3},
        {"tools": 1},
        {"tools": 1, "parallel_tool_calls": False},
        {"tools": 1, "max_tokens": 9},
        {"tools": 1, "tool_choice": "none"},
    ],
)
async def test_an_engine_s_stream_is_read_as_its_whole_reply(asked: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
    task = 'Grüße\nCALL lookup {"query": "tea"}\nCALL save {"a": {"b": "ü"}}'
    body = {"model": "fake-1b", "messages": [{"role": "user", "content": task}], **asked}
    if "tools" in body:
        body["tools"] = [tool]
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    engine = EngineServer(EngineConfig(speed=50.0, reply_tokens=12), 0)
    await engine.start()
    try:
        async with aiohttp.ClientSession() as http:
            url = f"http://127.0.0.1:{engine.port}/v1/chat/completions"
            await (await http.post(url, json=body)).read()  # so that both find the same cached
            whole = read_reply(await (await http.post(url, json=body)).read())
            parts = [part async for part in (await http.post(url, json=streamed)).content.iter_any()]
    finally:
        await engine.finish()
    named = [RawCall(f"{position}", each.name, each.arguments) for position, each in enumerate(whole.calls)]
    reply = read(*parts)
    # A call's id is another one in each reply.
    assert [RawCall(f"{position}", each.name, each.arguments) for position, each in enumerate(reply.calls)] == named
    assert all(each.id for each in reply.calls)
    assert (reply.content, reply.finish_reason) == (whole.content, whole.finish_reason)
    assert reply.prompt_tokens == whole.prompt_tokens > 0
    assert (reply.completion_tokens, reply.cached_tokens) == (whole.completion_tokens, whole.cached_tokens)


F, G = RawCall("a", "f", '{"x":1}'), RawCall("b", "g", "{}")


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        ([call(index=0, id="a", name="f", arguments={"x": 1})], [F]),
        ([call(index=0, id="a", name="f"), call(index=1, id="b", name="g")], [RawCall("a", "f", "{}"), G]),
        (
            [call(index=0, id="a", name="f", arguments='{"x"'), call(index=0, id="a", name="f", arguments=":1}")],
            [F],
        ),
        ([call(id="a", name="f", arguments='{"x"'), call(arguments=":1}"), call(id="b", name="g")], [F, G]),
        ([call(name="f", arguments="{}"), call(name="f", arguments="{}")], [RawCall("", "f", "{}")] * 2),
        ([call(index=0, id="a", name="f", arguments='{"x":1}'), call(index=0, id="b", name="g")], [F, G]),
        ([call(index=3, id="a", name="f", arguments='{"x":1}'), delta(tool_calls=[])], [F]),
        ([delta(tool_calls=[{"index": 0, "id": "a"}]), call(index=0, name="f", arguments='{"x":1}')], [F]),
    ],
    ids=["object", "no arguments", "told again", "no index", "no index, no id", "one index", "gap", "id first"],
)
def test_calls_are_told_apart_as_engines_tell_them(parts: list[bytes], calls: list[RawCall]) -> None:
    assert list(read(*parts, DONE).calls) == calls


def test_a_stream_may_lack_its_end_mark_its_usage_and_its_last_empty_line() -> None:
    assert read(delta(content="hi"), delta("stop").rstrip()) == Reply("hi", finish_reason="stop")


ERROR = {"message": "out of\nmemory", "code": 400}


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "no choices"),
        ([DONE], "no choices"),
        ([event({"choices": [], "usage": USAGE}), DONE], "no choices"),
        ([delta(content="hi")], "ended before"),
        ([delta(content="hi"), b'data: {"choices"'], "no stream"),
        ([b"data: <html>\n\n"], "no stream"),
        ([delta(content=7)], "no stream"),
        ([call(index=0, id="a", arguments="{}"), DONE], "no name"),
        ([event({"error": ERROR}), DONE], "error: out of memory"),
        ([event({"error": "gone"}), DONE], "error: gone"),
        ([delta(content="hi"), event({"error": ERROR}), DONE], "error: out of memory"),
        ([delta(content="hi"), b"event: error\n" + event({"error": {**ERROR, "status": 400}})], "out of memory"),
        ([event({"error": {**ERROR, "status": "INTERNAL"}})], "out of memory"),
        ([event({"error": {**ERROR, "status": 200}})], "out of memory"),
    ],
)
def test_what_is_no_whole_reply_is_none(parts: list[bytes], why: str) -> None:
    with pytest.raises(BrokenReplyError, match=why):
        read(*parts)


@pytest.mark.parametrize(("retry_after", "told"), [("7", "7"), (7, "7"), (None, None)])
def test_what_the_dataplane_refuses_after_a_comment_is_the_answer_it_would_have_been(
    retry_after: object, told: str | None
) -> None:
    error = {"message": "slow\ndown", "code": "busy", "status": 429, "retry_after": retry_after}
    with pytest.raises(RefusedInStreamError) as raised:
        read(b": held\n\n", b"event: error\n" + event({"error": error}))
    assert (raised.value.status, raised.value.said, raised.value.retry_after) == (429, "slow down", told)


def test_only_what_is_kept_of_a_stream_has_a_size() -> None:
    stream = ReplyStream()
    for _ in range(1000):
        stream.feed(b": held\n\n" + delta(reasoning_content="hm"))
    assert stream.size == 0
    stream.feed(delta(content="four") + b"data: ")
    assert stream.size == 10
    stream.feed(b"[DONE]\n\n" + delta(content="more"))
    assert (stream.size, stream.reply().content) == (4, "four")
