"""Tool calls that a model wrote as text, because its engine knows no parser for its form, or the model slipped. Pure.

Forms: Llama 3 (`<|python_tag|>{…}`, `<function=name>{…}</function>`, or nothing but the JSON object), Qwen and Hermes
(`<tool_call>{…}</tool_call>`), Qwen3-Coder (`<function=name><parameter=key>value…`), Mistral (`[TOOL_CALLS][{…}]`,
`[TOOL_CALLS]name{…}`), DeepSeek (`<｜tool▁call▁begin｜>…`). Must not take an example for a call: what stands in a code
fence with prose around it, or in backticks, is text, and so is every call of a tool that is not offered.

One pass from left to right; a step consumes what it looked at, or is one of few, so the time is linear in the text.
Whether the arguments fit is decided by `arguments`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TextCall:
    """A call found in a text."""

    name: str
    arguments: str
    """A JSON text, an object if the model got it right."""


_FAILURES_MAX = 50
"""Marks that begin no call, after which the rest is text: a failed look at JSON takes time for the whole text."""

Found = tuple[list[TextCall], int] | None
"""Calls, at least one, and where the text goes on after them; None if it is no call."""

_DECODER = json.JSONDecoder(strict=False)
"""Lets newlines stand in strings, as models write them."""
_START = re.compile(
    r"""
      (?P<fence> ^[ ]{0,3}(?:`{3,}|~{3,}) )
    | (?P<function> (?:<tool_call>\s*)?<function=(?P<function_name>[^<>\s]{1,128})> )
    | (?P<hermes> <tool_call>\s*(?=[{\[]) )
    | (?P<llama> <\|python_tag\|>\s*(?=[{\[]) )
    | (?P<mistral> \[TOOL_CALLS\]\s* )
    | (?P<deepseek> (?:<[|｜]tool[▁_]calls[▁_]begin[|｜]>\s*)?<[|｜]tool[▁_]call[▁_]begin[|｜]>\s* )
    """,
    re.VERBOSE | re.MULTILINE,
)
_HERMES_END = re.compile(r"\s*(?:</tool_call>)?")
_FUNCTION_END = re.compile(r"</function>\s*(?:</tool_call>)?")
_PARAMETER = re.compile(r"<parameter=([^<>\s]{1,128})>|</parameter>")
_MISTRAL_NAME = re.compile(r"([\w.-]{1,128})(?:\[CALL_ID\]\w{1,64})?(?:\[ARGS\])?\s*(?={)")
_DEEPSEEK_HEAD = re.compile(
    r"(?:function<[|｜]tool[▁_]sep[|｜]>)?([\w.-]{1,128})(?:<[|｜]tool[▁_]sep[|｜]>)?\s*(?:```(?:json)?\s*)?(?={)"
)
_DEEPSEEK_END = re.compile(
    r"\s*(?:```)?\s*(?:<[|｜]tool[▁_]call[▁_]end[|｜]>)?\s*(?:<[|｜]tool[▁_]calls[▁_]end[|｜]>)?"
)
_BETWEEN = re.compile(r"[\s;,]*")
_TURN_END = re.compile(r"\s*(?:(?:<\|(?:eom_id|eot_id|im_end)\|>|</s>)\s*)?")
_WHOLE_FENCE = re.compile(r"(`{3,}|~{3,})[\w-]*[ \t]*\n(.*)\n[ ]{0,3}\1[ \t]*", re.DOTALL)
_THOUGHT_END = "</think>"


def recover(text: str, offered: Container[str]) -> tuple[str, tuple[TextCall, ...]]:
    """The text without the calls in it, and those calls; `text` itself if there are none. `offered`: names of tools.

    Never raises. What a model thought (all before `</think>`) is not searched.
    """
    thought, mark, said = text.rpartition(_THOUGHT_END)
    body = said.strip()
    fence = _WHOLE_FENCE.fullmatch(body)
    # A fence that another one follows is not the whole: the text between the two is prose.
    inner = fence[2] if fence and fence[1] not in fence[2] else body
    whole = _objects(inner.strip(), 0, offered)
    if whole is not None and _TURN_END.fullmatch(inner.strip(), whole[1]):
        return (thought + mark).strip(), tuple(whole[0])
    rest, calls = _scan(inner, offered)
    if not calls:
        return text, ()
    return (thought + mark + rest).strip(), tuple(calls)


def _scan(text: str, offered: Container[str]) -> tuple[str, list[TextCall]]:
    calls: list[TextCall] = []
    kept: list[str] = []
    done = at = failures = 0
    while failures < _FAILURES_MAX and (start := _START.search(text, at)):
        if start["fence"]:
            at = _after_fence(text, start)
            continue
        is_quoted = text[start.start() - 1 : start.start()] == "`"
        found = None if is_quoted else _at_mark(text, start, offered)
        if found is None:
            at = start.end()
            failures += 1
            continue
        calls.extend(found[0])
        kept.append(text[done : start.start()])
        end = _TURN_END.match(text, found[1])
        done = at = end.end() if end else found[1]
    kept.append(text[done:])
    return "\n".join(part for part in (part.strip() for part in kept) if part), calls


def _after_fence(text: str, start: re.Match[str]) -> int:
    fence = start["fence"].strip()
    closing = re.compile(rf"^[ ]{{0,3}}{re.escape(fence)}", re.MULTILINE).search(text, start.end())
    return closing.end() if closing else len(text)


def _at_mark(text: str, start: re.Match[str], offered: Container[str]) -> Found:
    match start.lastgroup:
        case "hermes":
            found = _objects(text, start.end(), offered)
            return found and (found[0], _end(_HERMES_END, text, found[1]))
        case "llama":
            return _objects(text, start.end(), offered)
        case "mistral":
            named = _MISTRAL_NAME.match(text, start.end())
            return _named(text, named, offered) if named else _objects(text, start.end(), offered)
        case "deepseek":
            named = _DEEPSEEK_HEAD.match(text, start.end())
            found = _named(text, named, offered) if named else None
            return found and (found[0], _end(_DEEPSEEK_END, text, found[1]))
        case _:
            return _function(text, start, offered)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _objects(text: str, at: int, offered: Container[str]) -> Found:
    """Calls as JSON objects, in a list or one after the other; every one must be a call."""
    calls: list[TextCall] = []
    end = at
    while text[at : at + 1] in ("{", "["):
        value, after = _json(text, at)
        items = value if isinstance(value, list) else [value]
        made = [_call(item, offered) for item in items]
        if not made or None in made:
            break
        calls.extend(call for call in made if call is not None)
        end = after
        at = _end(_BETWEEN, text, end)
    return (calls, end) if calls else None


def _call(value: object, offered: Container[str]) -> TextCall | None:
    match value:
        case {"type": "function", "function": dict(inner)}:
            return _call(inner, offered)
        case {"name": str(name), **rest} if name in offered:
            if not rest.keys() <= {"arguments", "parameters", "id", "type"}:
                return None
            if "arguments" not in rest and "parameters" not in rest:
                return None
            given = rest.get("arguments", rest.get("parameters"))
            arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            return TextCall(name, arguments)
        case _:
            return None


def _named(text: str, name: re.Match[str], offered: Container[str]) -> Found:
    """A call whose name stands before the JSON object of its arguments."""
    if name[1] not in offered:
        return None
    value, end = _json(text, name.end())
    return ([TextCall(name[1], json.dumps(value, ensure_ascii=False))], end) if isinstance(value, dict) else None


def _function(text: str, start: re.Match[str], offered: Container[str]) -> Found:
    """`<function=name>` with its arguments as JSON or as `<parameter=key>` tags, up to its end or the text's."""
    name = start["function_name"]
    if name not in offered:
        return None
    if text[start.end() : start.end() + 1] == "{":
        value, after = _json(text, start.end())
        if not isinstance(value, dict):
            return None
        end = _end(_FUNCTION_END, text, _end(_BETWEEN, text, after))
        return [TextCall(name, json.dumps(value, ensure_ascii=False))], max(after, end)
    closing = _FUNCTION_END.search(text, start.end())
    body = text[start.end() : closing.start() if closing else len(text)]
    arguments: dict[str, str] = {}
    key: str | None = None
    began = 0
    for tag in _PARAMETER.finditer(body):
        if key is not None:
            arguments[key] = _value(body[began : tag.start()])
        key, began = tag[1], tag.end()
    if key is not None:
        arguments[key] = _value(body[began:])
    return [TextCall(name, json.dumps(arguments, ensure_ascii=False))], closing.end() if closing else len(text)


def _value(text: str) -> str:
    """The value of a parameter, which stands on lines of its own."""
    return text.removeprefix("\n").removesuffix("\n")


def _json(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at `at`, and where it ends; None and `at` if there is none."""
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None, at
