"""Calls that models wrote as text, in the shapes that models write."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.text_calls import recover

OFFERED = ("lookup", "add_note", "wiki__search")
LOOKUP = ("lookup", {"query": "Paris"})
NOTE = ("add_note", {"text": "hello"})


def calls_in(text: str) -> tuple[str, list[tuple[str, Any]]]:
    """What is left of the text, and the calls with their arguments decoded."""
    rest, calls = recover(text, OFFERED)
    return rest, [(call.name, json.loads(call.arguments)) for call in calls]


FORMS: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {  # name: text, what is left of it, calls
    "llama": ('<|python_tag|>{"name": "lookup", "parameters": {"query": "Paris"}}<|eom_id|>', "", [LOOKUP]),
    "llama, two": (
        (
            '<|python_tag|>{"name": "lookup", "parameters": {"query": "Paris"}}; '
            '{"name": "add_note", "parameters": {"text": "hello"}}'
        ),
        "",
        [LOOKUP, NOTE],
    ),
    "llama, bare": ('{"name": "lookup", "parameters": {"query": "Paris"}}', "", [LOOKUP]),
    "llama, bare and typed": (
        ' {"type": "function", "name": "lookup", "parameters": {"query": "Paris"}}<|eot_id|>',
        "",
        [LOOKUP],
    ),
    "llama, its own function tag": ('<function=lookup>{"query": "Paris"}</function><|eom_id|>', "", [LOOKUP]),
    "bare with arguments": ('\n{"name": "lookup", "arguments": {"query": "Paris"}}\n', "", [LOOKUP]),
    "bare with encoded arguments": (
        '{"name": "lookup", "arguments": "{\\"query\\": \\"Paris\\"}"}',
        "",
        [LOOKUP],
    ),
    "bare as in the API": (
        '[{"type": "function", "id": "1", "function": {"name": "lookup", "arguments": {"query": "Paris"}}}]',
        "",
        [LOOKUP],
    ),
    "bare list": (
        '[{"name": "lookup", "arguments": {"query": "Paris"}}, {"name": "add_note", "arguments": {"text": "hello"}}]',
        "",
        [LOOKUP, NOTE],
    ),
    "bare in a fence that is all": (
        '```json\n{"name": "lookup", "arguments": {"query": "Paris"}}\n```',
        "",
        [LOOKUP],
    ),
    "bare after a thought": (
        '<think>\nI need it.\n</think>\n\n{"name": "lookup", "arguments": {"query": "Paris"}}',
        "<think>\nI need it.\n</think>",
        [LOOKUP],
    ),
    "hermes": (
        '<tool_call>\n{"name": "lookup", "arguments": {"query": "Paris"}}\n</tool_call>',
        "",
        [LOOKUP],
    ),
    "hermes, two after prose": (
        (
            'Let me see.\n<tool_call>\n{"name": "lookup", "arguments": {"query": "Paris"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "add_note", "arguments": {"text": "hello"}}\n</tool_call><|im_end|>'
        ),
        "Let me see.",
        [LOOKUP, NOTE],
    ),
    "hermes, prose on both sides": (
        'First.\n<tool_call>{"name": "lookup", "arguments": {"query": "Paris"}}</tool_call>\nThen.',
        "First.\nThen.",
        [LOOKUP],
    ),
    "hermes, not closed": (
        (
            '<tool_call>{"name": "lookup", "arguments": {"query": "Paris"}}</tool_call>'
            '<tool_call>{"name": "add_note", "arguments": {"text": "hello"}}'
        ),
        "",
        [LOOKUP, NOTE],
    ),
    "hermes, newline in a string": (
        '<tool_call>{"name": "add_note", "arguments": {"text": "a\nb"}}</tool_call>',
        "",
        [("add_note", {"text": "a\nb"})],
    ),
    "hermes, the tag in a string": (
        '<tool_call>{"name": "add_note", "arguments": {"text": "a</tool_call>b"}}</tool_call>',
        "",
        [("add_note", {"text": "a</tool_call>b"})],
    ),
    "hermes in a fence that is all": (
        '```\n<tool_call>{"name": "lookup", "arguments": {"query": "Paris"}}</tool_call>\n```',
        "",
        [LOOKUP],
    ),
    "qwen3-coder": (
        "I look.\n<tool_call>\n<function=lookup>\n<parameter=query>\nParis\n</parameter>\n</function>\n</tool_call>",
        "I look.",
        [LOOKUP],
    ),
    "qwen3-coder, two parameters, no wrapper": (
        "<function=add_note><parameter=text>a\nb</parameter><parameter=n>3</parameter></function>",
        "",
        [("add_note", {"text": "a\nb", "n": "3"})],
    ),
    "qwen3-coder, not closed": ("<function=lookup>\n<parameter=query>\nParis", "", [LOOKUP]),
    "qwen3-coder, no parameters": ("<function=lookup>\n</function>", "", [("lookup", {})]),
    "mistral": ('[TOOL_CALLS][{"name": "lookup", "arguments": {"query": "Paris"}}]</s>', "", [LOOKUP]),
    "mistral, two": (
        (
            '[TOOL_CALLS] [{"name": "lookup", "arguments": {"query": "Paris"}, "id": "a1"}, '
            '{"name": "add_note", "arguments": {"text": "hello"}}]'
        ),
        "",
        [LOOKUP, NOTE],
    ),
    "mistral, name first": ('[TOOL_CALLS]lookup{"query": "Paris"}', "", [LOOKUP]),
    "mistral, names first": (
        'Yes.[TOOL_CALLS]lookup[ARGS]{"query": "Paris"}[TOOL_CALLS]add_note[CALL_ID]x1[ARGS]{"text": "hello"}',
        "Yes.",
        [LOOKUP, NOTE],
    ),
    "deepseek v3": (
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>lookup\n```json\n"
            '{"query": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add_note\n'
            '```json\n{"text": "hello"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
        ),
        "",
        [LOOKUP, NOTE],
    ),
    "deepseek v3.1": (
        (
            'Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>lookup<｜tool▁sep｜>{"query": "Paris"}'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        "Sure.",
        [LOOKUP],
    ),
    "deepseek, not closed": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>lookup\n```json\n{"query": "Paris"}',
        "",
        [LOOKUP],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_call_is_found_in_the_form_of(form: str) -> None:
    text, rest, calls = FORMS[form]
    assert calls_in(text) == (rest, calls)


CALL = '{"name": "lookup", "arguments": {"query": "Paris"}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "An answer.",
        f"To call it, write {CALL} as JSON.",
        f"An example:\n```json\n{CALL}\n```\nThat is all.",
        f"```json\n{CALL}\n```\nand\n```json\n{CALL}\n```",
        f"An example:\n```\n<tool_call>{CALL}</tool_call>\n```\n",
        f"An example:\n~~~\n<tool_call>{CALL}</tool_call>\n~~~",
        f"An example that is cut off:\n```xml\n<tool_call>{CALL}</tool_call>",
        f"Write `<tool_call>{CALL}</tool_call>` for it.",
        "The form is <tool_call>{…}</tool_call>.",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "lookup", "arguments": {"query": "Par',
        '<tool_call>{"name": "lookup"}</tool_call>',
        "<function=other><parameter=a>1</parameter></function>",
        '[TOOL_CALLS]other{"a": 1}',
        "[TOOL_CALLS]",
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>other\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>',
        '<|python_tag|>print("hello")',
        '{"name": "lookup"}',
        '{"name": "lookup", "arguments": {}, "price": 3}',
        '{"name": "other", "parameters": {}}',
        f"[{CALL}, 3]",
        f"{CALL} is how.",
        '{"answer": 42}',
        "[1, 2, 3]",
        f"<think>Shall I write <tool_call>{CALL}</tool_call>?</think>No.",
    ],
)
def test_what_is_no_call_stays_as_it_is(text: str) -> None:
    assert recover(text, OFFERED) == (text, ())


def test_nothing_is_found_where_no_tool_is_offered() -> None:
    for text, _, _ in FORMS.values():
        assert recover(text, ()) == (text, ())


def test_an_example_in_a_fence_does_not_hide_the_call_after_it() -> None:
    text = f"Not this:\n```\n<tool_call>{CALL}</tool_call>\n```\nBut:\n<tool_call>{CALL}</tool_call>"
    rest, calls = calls_in(text)
    assert calls == [LOOKUP]
    assert rest == f"Not this:\n```\n<tool_call>{CALL}</tool_call>\n```\nBut:"


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<function=lookup>", "<function=x>", "</function>", "<parameter=a>"),
        *("</parameter>", "<|python_tag|>", "[TOOL_CALLS]", "lookup", "[ARGS]", "<｜tool▁calls▁begin｜>"),
        *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "```json\n", "\n```", "```", "~~~"),
        *(CALL, '{"a": 1}', '{"name": "lookup", "arguments": ', "{", "}", "[", "]", '"', "\\", ";", " ", "\n"),
        *("</think>", "`", "</s>", "<|eot_id|>", "words"),
    ]
)


@given(st.lists(PIECES | st.text(max_size=5), max_size=40).map("".join))
def test_no_text_raises(text: str) -> None:
    rest, calls = recover(text, OFFERED)
    assert calls or rest == text
    for call in calls:
        assert call.name in OFFERED
        json.loads(call.arguments)


@given(st.text(alphabet=st.characters(blacklist_characters="<[{")))
def test_ordinary_text_is_untouched(text: str) -> None:
    assert recover(text, OFFERED) == (text, ())


@settings(deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=4).map("".join))
def test_any_short_unit_repeated_takes_little_time(unit: str) -> None:
    began = time.process_time()
    recover(unit * (20_000 // len(unit)), OFFERED)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    "unit",
    [
        *("<tool_call>", "<tool_call> ", "<tool_call>{", '<tool_call>{"', '<tool_call>{":1,"', "<tool_call>[["),
        *("<function=lookup>", "<function=lookup><parameter=a>", '<function=lookup>{"a": "', "[TOOL_CALLS]lookup{"),
        *("[TOOL_CALLS]", "<｜tool▁call▁begin｜>lookup\n```", " ", "\n", "```\n", "~~~ \n", "[", "{", '{"a":', CALL),
    ],
)
def test_ten_times_the_text_takes_no_more_than_some_ten_times_as_long(unit: str) -> None:
    def seconds(chars: int) -> float:
        text = "a" + unit * (chars // len(unit)) + "a"
        began = time.process_time()
        recover(text, OFFERED)
        return time.process_time() - began

    # Quadratic time would be a hundred times as long.
    assert seconds(300_000) < 40 * max(seconds(30_000), 0.002)
