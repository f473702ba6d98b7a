"""Streamed replies are read whole, however their bytes are cut."""

from __future__ import annotations

import pytest

from loadgen.reply import Reply, ReplyError

STREAM = b"".join(
    b"data: " + event + b"\r\n\r\n"
    for event in (
        b'{"choices":[{"delta":{"role":"assistant","content":""}}]}',
        b'{"choices":[{"delta":{"content":"na\xc3\xafve"},"finish_reason":null}],"usage":null}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"lookup","arguments":"{\\"t"}}]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\":1}"}}]}}]}',
        b'{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}',
        b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}',
        b"[DONE]",
    )
)


@pytest.mark.parametrize("size", [1, 2, 7, 100, len(STREAM)])
def test_a_reply_is_the_same_however_it_is_cut(size: int) -> None:
    reply = Reply()
    for start in range(0, len(STREAM), size):
        reply.feed(STREAM[start : start + size], float(start))
    reply.finish()
    assert reply.text == "naïve"
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == [("a", "lookup", '{"t":1}')]
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (9, 5, 4)


def test_the_first_token_is_the_first_that_says_something() -> None:
    reply = Reply()
    for number, event in enumerate(STREAM.split(b"\r\n\r\n")[:4]):
        reply.feed(event + b"\n\n", float(number))
    assert (reply.first_s, reply.last_s) == (1.0, 3.0)


def test_without_usage_the_chunks_are_counted() -> None:
    reply = Reply()
    reply.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 3 + b"data: [DONE]\n\n", 0.0)
    reply.finish()
    assert (reply.completion_tokens, reply.prompt_tokens, reply.cached_tokens) == (3, None, None)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "broken off"),
        (b'data: {"choices":[]}\n\n', "broken off"),
        (b"data: {oops\n\n", "unreadable chunk"),
        (b'data: {"choices":{}}\n\n', "unreadable chunk"),
        (b'data: {"error":{"message":"no memory"}}\n\n', "error in stream"),
    ],
)
def test_a_reply_that_is_not_whole_is_an_error_of_its_kind(data: bytes, kind: str) -> None:
    def read() -> None:
        reply = Reply()
        reply.feed(data, 0.0)
        reply.finish()

    with pytest.raises(ReplyError, match=kind):
        read()
