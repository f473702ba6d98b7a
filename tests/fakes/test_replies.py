"""What the model says: tools, arguments, limits, and that it always says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes.engine.chat import Chat
from fakes.engine.reply import Reply, Rules, compose
from fakes.engine.tokens import TOKEN_BYTES, block_hashes, render_calls, render_prompt

RULES = Rules(seed=0, tool_calls=2, reply_tokens=40)
SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 8},
        "limit": {"type": "integer", "minimum": 3, "maximum": 5},
        "unit": {"enum": ["c", "f"]},
        "where": {"$ref": "#/$defs/place"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "exact": {"type": ["boolean", "null"]},
        "maybe": {"type": "string"},
    },
    "required": ["query", "limit", "unit", "where", "tags", "exact"],
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
}
LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "other"}}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _say(messages: list[dict[str, Any]], room: int = 10_000, rules: Rules = RULES, **fields: Any) -> Reply:
    chat = Chat(model="m", messages=messages, **fields)
    return compose(chat, render_prompt(chat.messages, chat.tools), rules, room)


def _calls(reply: Reply) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for token in reply.tokens:
        if token.is_name:
            calls.append((token.text, ""))
        elif token.call is not None:
            calls[token.call] = (calls[token.call][0], calls[token.call][1] + token.text)
    return calls


def _after(messages: list[dict[str, Any]], reply: Reply) -> list[dict[str, Any]]:
    """The conversation with the reply and a result for each of its calls."""
    calls = [{"id": "x", "function": {"name": name, "arguments": text}} for name, text in _calls(reply)]
    results = [{"role": "tool", "tool_call_id": "x", "content": "42"} for _ in calls]
    text = "".join(token.text for token in reply.tokens if token.call is None)
    return [*messages, {"role": "assistant", "content": text or None, "tool_calls": calls}, *results]


def test_it_calls_the_first_tool_twice_with_fitting_arguments_and_then_answers() -> None:
    messages = [_user("how warm is it?")]
    for _ in range(2):
        reply = _say(messages, tools=[LOOKUP, OTHER])
        assert reply.finish_reason == "tool_calls"
        ((name, text),) = _calls(reply)
        arguments = json.loads(text)
        assert name == "lookup"
        assert set(arguments) == set(SCHEMA["required"])
        assert len(arguments["query"]) >= 8
        assert 3 <= arguments["limit"] <= 5
        assert arguments["unit"] in ("c", "f")
        assert isinstance(arguments["where"]["lat"], int)
        assert len(arguments["tags"]) == 2
        assert isinstance(arguments["exact"], bool)
        messages = _after(messages, reply)
    reply = _say(messages, tools=[LOOKUP, OTHER])
    assert (_calls(reply), reply.finish_reason) == ([], "stop")
    messages += [{"role": "assistant", "content": "done"}, _user("and tomorrow?")]
    assert _calls(_say(messages, tools=[LOOKUP])), "a new question is a new beginning"


def test_the_prompt_may_choose_tool_and_arguments() -> None:
    messages = [_user('Please.\nCALL other {"a": [1, "}"]}\nCALL lookup {broken}\nThanks')]
    asked = [("other", '{"a": [1, "}"]}'), ("lookup", "{broken}")]
    together = _say(messages, tools=[LOOKUP])
    assert _calls(together) == asked
    assert not _calls(_say(_after(messages, together), tools=[LOOKUP]))
    for expected in asked:
        reply = _say(messages, tools=[LOOKUP], parallel_tool_calls=False)
        assert _calls(reply) == [expected]
        messages = _after(messages, reply)
    assert not _calls(_say(messages, tools=[LOOKUP], parallel_tool_calls=False))


def test_the_prompt_may_choose_the_tool_alone() -> None:
    messages = [_user("CALL lookup\nCALL other \nCALL missing\nCALL me later")]
    (first, *others) = _calls(_say(messages, tools=[OTHER, LOOKUP]))
    assert first[0] == "lookup"
    assert set(json.loads(first[1])) == set(SCHEMA["required"])
    assert others == [("other", "{}"), ("missing", "{}")]


def test_tool_choice_is_honoured() -> None:
    messages = [_user("x")]
    assert not _calls(_say(messages, tools=[LOOKUP], tool_choice="none"))
    named = _say(messages, tools=[LOOKUP, OTHER], tool_choice="named", tool_named="other")
    assert _calls(named) == [("other", "{}")]
    assert named.finish_reason == "stop", "as engines do: only chosen calls end with tool_calls"
    lazy = Rules(seed=0, tool_calls=0, reply_tokens=40)
    assert not _calls(_say(messages, rules=lazy, tools=[LOOKUP]))
    assert _calls(_say(messages, rules=lazy, tools=[LOOKUP], tool_choice="required"))


def test_the_same_request_gets_the_same_reply_and_another_seed_another() -> None:
    messages = [_user("hello")]
    assert _say(messages) == _say(messages)
    assert _say(messages) != _say(messages, rules=Rules(seed=1, tool_calls=2, reply_tokens=40))
    assert _say(messages) != _say([_user("hello!")])


def test_a_limit_cuts_the_reply_and_says_so() -> None:
    assert len(_say([_user("x")], max_tokens=3).tokens) == 3
    assert _say([_user("x")], max_tokens=3).finish_reason == "length"
    assert len(_say([_user("x")], max_tokens=200, ignore_eos=True).tokens) == 200
    assert len(_say([_user("x")], room=5).tokens) == 5
    cut = _say([_user("x")], tools=[LOOKUP], max_tokens=8)
    assert cut.finish_reason == "length"
    assert 0 < len(_calls(cut)[0][1]) < 40


def test_a_stop_text_ends_the_reply_before_it() -> None:
    whole = "".join(token.text for token in _say([_user("x")]).tokens)
    mark = whole[21:26]
    reply = _say([_user("x")], stop=("never there", mark))
    assert "".join(token.text for token in reply.tokens) == whole[: whole.index(mark)]
    assert reply.finish_reason == "stop"
    assert len(reply.tokens) == (whole.index(mark) + len(mark) + 3) // TOKEN_BYTES


def test_options_are_answered_by_a_letter_whose_alternatives_are_the_others() -> None:
    reply = _say([_user("Which?\nA) red\nB) green\nC) blue")], max_tokens=1, top_logprobs=5)
    alternatives = reply.alternatives(0)
    assert reply.tokens[0].text == alternatives[0][0]
    assert sorted(token for token, _ in alternatives) == ["A", "B", "C"]
    logprobs = [logprob for _, logprob in alternatives]
    assert logprobs == sorted(logprobs, reverse=True)
    assert all(logprob < 0 for logprob in logprobs)


@pytest.mark.parametrize("tools", [[], [LOOKUP]], ids=["text", "tool calls"])
def test_a_conversation_that_goes_on_keeps_the_tokens_it_had(tools: list[dict[str, Any]]) -> None:
    messages = [{"role": "system", "content": "Be brief."}, _user("Wie heißt der Fluß?")]
    reply = _say(messages, tools=tools)
    before = render_prompt(messages, tools) + reply.rendered
    after = render_prompt([*_after(messages, reply), _user("And then?")], tools)
    assert after.startswith(before)
    assert len(before) % TOKEN_BYTES == 0
    hashes = block_hashes(before, 4)
    assert block_hashes(after, 4)[: len(hashes)] == hashes
    assert len(reply.rendered) <= len(reply.tokens) * TOKEN_BYTES


def test_another_beginning_changes_every_block() -> None:
    one = block_hashes(render_prompt([_user("a" * 400)], []), 16)
    two = block_hashes(render_prompt([_user("b" + "a" * 399)], []), 16)
    assert len(one) == len(two) == 6
    assert not set(one) & set(two)


def test_calls_render_to_as_many_tokens_as_they_take() -> None:
    reply = _say([_user("x")], tools=[LOOKUP])
    assert len(render_calls(_calls(reply))) == len(reply.tokens) * TOKEN_BYTES
    assert reply.rendered == render_calls(_calls(reply))


@pytest.mark.parametrize(
    "broken", [{"required": 3}, {"properties": {"a": {"minimum": "x", "type": "integer"}}, "required": ["a"]}]
)
def test_a_broken_schema_gets_an_empty_object(broken: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "odd", "parameters": broken}}
    assert _calls(_say([_user("x")], tools=[tool])) == [("odd", "{}")]


def test_a_schema_that_contains_itself_ends() -> None:
    loop = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "odd", "parameters": loop}}
    ((_, text),) = _calls(_say([_user("x")], tools=[tool]))
    assert json.loads(text)["a"]["a"] is not None
