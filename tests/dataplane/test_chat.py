"""Requests as they are read, and the one change that is made to them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane import chat
from dataplane.errors import ApiError

USER = {"role": "user", "content": "hi"}


def parsed(body: bytes) -> chat.ChatRequest:
    request = chat.parse(body)
    assert isinstance(request, chat.ChatRequest), request
    return request


@pytest.mark.parametrize(
    ("body", "field", "expected"),
    [
        (b"", "body", "JSON"),
        (b"{", "body", "JSON"),
        (b"\xff\xfe", "body", "JSON"),
        (b"[]", "body", "object"),
        (b"3", "body", "object"),
        (b'{"messages": [{"role": "user"}]}', "model", "missing"),
        (b'{"model": "", "messages": [{"role": "user"}]}', "model", "length >= 1"),
        (b'{"model": 3, "messages": [{"role": "user"}]}', "model", "string"),
        (b'{"model": null, "messages": [{"role": "user"}]}', "model", "string"),
        (b'{"model": "m"}', "messages", "missing"),
        (b'{"model": "m", "messages": []}', "messages", "length >= 1"),
        (b'{"model": "m", "messages": "hi"}', "messages", "array"),
        (b'{"model": "m", "messages": ["hi"]}', "messages[0]", "object"),
        (b'{"model": "m", "messages": [{"role": "user"}, {}]}', "messages[1].role", "missing"),
        (b'{"model": "m", "messages": [{"role": 3}]}', "messages[0].role", "string"),
        (b'{"model": "m", "messages": [{"role": "tool", "tool_call_id": 7}]}', "messages[0].tool_call_id", "string"),
        (b'{"model": "m", "messages": [{"role": "user"}], "stream": "yes"}', "stream", "bool"),
        (b'{"model": "m", "messages": [{"role": "user"}], "stream_options": 1}', "stream_options", "object"),
        (b'{"model": "m", "messages": [{"role": "user", "content": ' + b"[" * 100_000, "body", "JSON"),
    ],
)
def test_a_wrong_body_is_refused_by_the_name_of_its_field(body: bytes, field: str, expected: str) -> None:
    error = chat.parse(body)
    assert isinstance(error, ApiError)
    assert error.status == 400
    assert error.message.startswith(f"{field}: expected"), error.message
    assert expected in error.message


def _large(head: bytes, item: bytes, tail: bytes) -> bytes:
    """More than 100,000 strings in more than a mebibyte."""
    return head + b",".join(item % n for n in range(130_000)) + tail


@pytest.mark.parametrize(
    ("head", "item", "tail"),
    [
        (b"", b'"%d": 1', b""),
        (b"", b'"%d\\\\\\\\": "\\\\"', b""),
        (b'"stream_options": {', b'"%d": 1', b"}"),
        (b'"metadata": {', b'"%d": 1', b"}"),
        (b'"messages": [', b'{"role": "", "n": %d}', b"]"),
        (b'"messages": [{"role": "assistant", "tool_calls": [', b'{"function": {}, "n": %d}', b"]}]"),
    ],
    ids=["members", "backslashes", "stream_options", "deeper", "messages", "tool_calls"],
)
def test_a_body_of_too_many_strings_is_refused_before_it_is_taken_apart(head: bytes, item: bytes, tail: bytes) -> None:
    error = chat.parse(_large(b'{"model": "m", "messages": [{"role": "user"}], ' + head, item, tail + b"}"))
    assert isinstance(error, ApiError)
    assert error.status == 400
    assert error.message.startswith("body: expected at most 100,000 strings, names of members counted")


@pytest.mark.parametrize("text", ["a", '"', "\\", '\\"', '{\\"a\\": \\"\\\\\\"b"}', "é", "😀"])
def test_a_body_of_long_texts_is_read_whatever_is_in_them(text: str) -> None:
    messages = [{"role": "user", "content": text * 300} for _ in range(10_000)]
    body = json.dumps({"model": "m", "messages": messages}, ensure_ascii=False).encode()
    assert len(body) > 1 << 20
    assert len(parsed(body).messages) == 10_000


CALLS = [{"id": f"call_{name}", "function": {"name": name, "arguments": "{}"}} for name in ("search", "read")]
ASSISTANT = {"role": "assistant", "content": None, "tool_calls": CALLS}


@pytest.mark.parametrize(
    ("messages", "tool"),
    [
        ([USER], ""),
        ([USER, ASSISTANT, {"role": "tool", "tool_call_id": "call_search", "content": "x"}], "search"),
        ([USER, ASSISTANT, {"role": "tool", "tool_call_id": "call_other", "content": "x"}], "read"),
        ([USER, ASSISTANT, {"role": "tool", "tool_call_id": "call_read", "content": "x"}, USER], ""),
        ([{"role": "tool", "tool_call_id": "call_read", "content": "x"}], ""),
        ([USER, {"role": "assistant", "tool_calls": 7}, {"role": "tool", "tool_call_id": "a", "content": "x"}], ""),
    ],
)
def test_the_tool_whose_result_comes_last_is_known_by_name(messages: list[dict[str, object]], tool: str) -> None:
    assert chat.last_tool(json.dumps({"model": "m", "messages": messages}).encode()) == tool


def test_tool_call_ids_are_taken_newest_first_and_bounded() -> None:
    answers = [{"role": "tool", "tool_call_id": f"call_{n}", "content": ""} for n in range(100)]
    body = json.dumps(
        {"model": "m", "messages": [USER, *answers, answers[3], {"role": "tool", "tool_call_id": "x" * 300}]}
    )
    ids = parsed(body.encode()).tool_call_ids()
    assert ids[:3] == ("call_3", "call_99", "call_98")
    assert len(ids) == len(set(ids)) == chat.TOOL_CALL_IDS_MAX


@pytest.mark.parametrize(
    ("options", "asked"),
    [("", False), (',"stream_options":null', False), (',"stream_options":{}', False)]
    + [(f',"stream_options":{{"include_usage":{v}}}', v == "true") for v in ("true", "false", "null")],
)
def test_asking_for_usage_means_true_and_nothing_else(options: str, asked: bool) -> None:
    body = f'{{"model":"m","stream":true,"messages":[{json.dumps(USER)}]{options}}}'.encode()
    request = parsed(body)
    assert request.wants_usage is asked
    changed = chat.ask_for_usage(body, request)
    assert parsed(changed).wants_usage


def test_the_body_keeps_its_bytes_where_no_options_were() -> None:
    body = b'{ "model":"m",\n "seed": 1.0e0, "x":"\\u00fc",  "x": 2, "messages" : [ {"role":"user"} ] } \r\n\t'
    changed = chat.ask_for_usage(body, parsed(body))
    assert changed == body.rstrip()[:-1] + b',"stream_options":{"include_usage":true}}'


def test_options_are_merged_and_members_keep_their_bytes() -> None:
    body = (
        b'{"seed": 1.0e0, "stream_options": null, "messages": [ {"role":"user"} ], "model":"m",'
        b' "stream_options": {"a": 1.50, "include_usage": false, "continuous_usage_stats": true}} '
    )
    changed = chat.ask_for_usage(body, parsed(body))
    assert b'"seed":1.0e0' in changed
    assert b'[ {"role":"user"} ]' in changed
    assert changed.count(b"stream_options") == 1, "strict parsers refuse a repeated key"
    assert json.loads(changed)["stream_options"] == {"a": 1.5, "include_usage": True}


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
json_values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=8), scalars, max_size=3)


@given(
    st.dictionaries(st.text(max_size=8), json_values, max_size=4),
    st.sampled_from([None, {}, {"include_usage": False}, {"other": [1, {"a": "}"}]}, "absent"]),
    st.sampled_from([None, 2]),
)
def test_asking_for_usage_changes_nothing_else(others: dict[str, Any], options: Any, indent: int | None) -> None:
    document = {**others, "model": "m", "messages": [USER], "stream": True, "stream_options": options}
    if options == "absent":
        del document["stream_options"]
    body = json.dumps(document, indent=indent).encode() + b" \n"
    changed = json.loads(chat.ask_for_usage(body, parsed(body)))
    assert changed.pop("stream_options")["include_usage"] is True
    document.pop("stream_options", None)
    assert changed == document


def test_a_key_that_is_no_utf_8_is_refused_before_usage_is_asked_for() -> None:
    body = b'{"\x80":1,"model":"m","messages":[{"role":"user"}],"stream":true,"stream_options":null}'
    found = chat.parse(body)
    assert isinstance(found, ApiError)
    assert (found.status, found.message) == (400, "body: expected JSON in UTF-8: invalid start byte at byte 2")


@pytest.mark.parametrize("text", ["\\ud800", "\\ud800abc", "\\udc00", "\\ud800\\ud800", "a\\ud83d\\ude00\\ud83d"])
@pytest.mark.parametrize("rest", ["", ', "messages": [{"role": "user", "content": "and so on"}]'])
def test_half_a_character_is_called_so(text: str, rest: str) -> None:
    found = chat.parse(f'{{"model": "{text}"{rest}}}'.encode())
    assert isinstance(found, ApiError)
    assert (found.status, found.message) == (
        400,
        r"body: expected JSON: an escape like \ud800 is half a character, its other half is missing",
    )


@pytest.mark.parametrize("body", [b'{"model": "\\ud83d', b'{"model": "\\u12"', b'{"model": "\\\\ud800"', b'{"model"'])
def test_a_body_that_ends_too_soon_is_called_truncated(body: bytes) -> None:
    found = chat.parse(body)
    assert isinstance(found, ApiError)
    assert found.message == "body: expected JSON: Input data was truncated"
