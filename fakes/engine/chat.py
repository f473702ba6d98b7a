"""The body of a chat completion, read and checked. Pure. Read `reply` next, which answers it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fakes.engine.errors import ApiError, bad_field

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TOP_LOGPROBS_MAX = 20

ToolChoice = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat completion as asked for."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = "auto"
    tool_named: str | None = None
    """The tool that must be called, where `tool_choice` is "named"."""
    parallel_tool_calls: bool = True
    max_tokens: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    top_logprobs: int | None = None
    """Alternatives to report per token; None: no logprobs at all."""


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`. Raises ApiError 400."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body: expected a JSON object")
    return body


def parse_chat(raw: bytes) -> Chat:
    """The chat completion in `raw`. Raises ApiError 400 naming the field; fields it does not know are ignored."""
    body = parse_object(raw)
    model = _field(body, "model", _is_str, "a string")
    if model is None:
        raise bad_field("model", "a string")
    if body.get("n") not in (None, 1):
        raise bad_field("n", "1")
    stream = bool(_field(body, "stream", _is_bool, "a boolean"))
    tools = _tools(body)
    tool_choice, tool_named = _tool_choice(body, tools)
    limits = [_field(body, name, _is_positive, "an integer of at least 1") for name in _LIMITS]
    return Chat(
        model=model,
        messages=_messages(body),
        tools=tools,
        tool_choice=tool_choice,
        tool_named=tool_named,
        parallel_tool_calls=_field(body, "parallel_tool_calls", _is_bool, "a boolean") is not False,
        max_tokens=next((limit for limit in limits if limit is not None), None),
        ignore_eos=bool(_field(body, "ignore_eos", _is_bool, "a boolean")),
        stop=_stop(body),
        stream=stream,
        include_usage=_include_usage(body, stream),
        top_logprobs=_top_logprobs(body),
    )


_LIMITS = ("max_completion_tokens", "max_tokens")


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _field(body: Mapping[str, Any], name: str, fits: Callable[[object], bool], expected: str) -> Any:
    """The field's value, or None where it is absent or null."""
    value = body.get(name)
    if value is not None and not fits(value):
        raise bad_field(name, expected)
    return value


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_field("messages", "a non-empty list")
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if not isinstance(message, dict):
            raise bad_field(where, "an object")
        if message.get("role") not in ROLES:
            raise bad_field(f"{where}.role", "one of " + ", ".join(ROLES))
        _check_content(message, where)
        _check_calls(message, where)
    return messages


def _check_content(message: Mapping[str, Any], where: str) -> None:
    content = message.get("content")
    if content is None:
        if message["role"] != "assistant":
            raise bad_field(f"{where}.content", "a string or a list of parts")
    elif isinstance(content, list):
        for position, part in enumerate(content):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise bad_field(f"{where}.content[{position}]", "an object with a type")
            if part["type"] == "text" and not isinstance(part.get("text"), str):
                raise bad_field(f"{where}.content[{position}].text", "a string")
    elif not isinstance(content, str):
        raise bad_field(f"{where}.content", "a string or a list of parts")


def _check_calls(message: Mapping[str, Any], where: str) -> None:
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise bad_field(f"{where}.tool_calls", "a list")
    for position, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not all(isinstance(function.get(k), str) for k in ("name", "arguments")):
            raise bad_field(f"{where}.tool_calls[{position}].function", "an object with the strings name and arguments")


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = body.get("tools")
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise bad_field("tools", "a list")
    for position, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_field(f"tools[{position}].function.name", "a string")
        if not isinstance(function.get("parameters") or {}, dict):
            raise bad_field(f"tools[{position}].function.parameters", "a JSON schema object")
    return tools


def _tool_choice(body: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> tuple[ToolChoice, str | None]:
    choice = body.get("tool_choice")
    if choice is None:
        return "auto", None
    if choice == "none":
        return "none", None
    if not tools:
        raise bad_field("tool_choice", "no tool choice, since no tools are offered")
    if choice == "auto":
        return "auto", None
    if choice == "required":
        return "required", None
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in [tool["function"]["name"] for tool in tools]:
        raise bad_field("tool_choice", "none, auto, required, or an object that names an offered tool")
    return "named", name


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    if stop is None:
        return ()
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise bad_field("stop", "a string or a list of strings, none of them empty")
    return tuple(texts)


def _include_usage(body: Mapping[str, Any], stream: bool) -> bool:
    options = body.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise bad_field("stream_options", "no stream options, since stream is not true")
    if not isinstance(options, dict):
        raise bad_field("stream_options", "an object")
    return bool(_field(options, "include_usage", _is_bool, "a boolean"))


def _top_logprobs(body: Mapping[str, Any]) -> int | None:
    wanted = _field(body, "logprobs", _is_bool, "a boolean")
    top = _field(body, "top_logprobs", _is_int, "an integer")
    if top is None:
        return 0 if wanted else None
    if not wanted:
        raise bad_field("top_logprobs", "logprobs to be true")
    if not 0 <= top <= TOP_LOGPROBS_MAX:
        raise bad_field("top_logprobs", f"an integer from 0 to {TOP_LOGPROBS_MAX}")
    return int(top)
