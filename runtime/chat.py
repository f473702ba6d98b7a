"""A model turn on the wire: chat completions. Pure.

Everything that is specific to this API is here: what `llm` sends and what of the answer it believes. Read next:
`chat_stream`, for answers that are streams.
"""

from __future__ import annotations

import datetime
import email.utils
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from runtime.records import Order
from runtime.tool_specs import ToolSpec

TOKENS_MAX = 2**40
"""Most tokens that are believed of one turn."""
RETRY_AFTER_S = 1.0
"""Pause after a 429 that names none."""
RETRY_AFTER_S_MIN = 0.1
RETRY_AFTER_S_MAX = 3600.0


class BrokenReplyError(Exception):
    """An answer with status 200 that is no chat completion."""


@dataclass(frozen=True, slots=True)
class RawCall:
    """A tool call as the model wrote it."""

    id: str
    """Empty where there is none."""
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's whole reply."""

    content: str
    calls: tuple[RawCall, ...] = ()
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Tokens of a turn, as an engine tells them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Usage | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_decoder = msgspec.json.Decoder(_Completion)
_models_decoder = msgspec.json.Decoder(_Models)


def request(
    order: Order,
    messages: Sequence[dict[str, Any]],
    tools: Iterable[ToolSpec],
    *,
    may_call: bool = True,
    stream: bool = True,
) -> bytes:
    """The body of a turn's request.

    Streamed, since the first token tells the scheduler what the prompt cost, and so whether keeping prefixes pays.
    Tools stay in a request whose reply may call none: they are in front of the conversation in the prompt, and without
    them nothing of it would be found in the engine's cache.
    """
    body: dict[str, Any] = {"model": order.model, "messages": messages}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if order.tokens_max:
        body["max_tokens"] = order.tokens_max
    offered = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in tools
    ]
    if offered:
        body |= {"tools": offered, "parallel_tool_calls": order.parallel_tool_calls}
        if not may_call:
            body["tool_choice"] = "none"
    return msgspec.json.encode(body)


def read_reply(body: bytes) -> Reply:
    """The reply in the body of an answer. Raises BrokenReplyError."""
    try:
        completion = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenReplyError(f"the answer is no chat completion: {error}") from None
    if not completion.choices:
        raise BrokenReplyError("the answer has no choices")
    choice = completion.choices[0]
    reply = Reply(
        content=choice.message.content or "",
        calls=tuple(map(_raw, choice.message.tool_calls or ())),
        finish_reason=choice.finish_reason or "",
    )
    return counted(reply, completion.usage)


def counted(reply: Reply, usage: Usage | None) -> Reply:
    """The reply with the tokens that an engine tells of it; where it tells none, with 0."""
    usage = usage or Usage()
    details = usage.prompt_tokens_details or _Cached()
    return replace(
        reply,
        prompt_tokens=_tokens(usage.prompt_tokens),
        completion_tokens=_tokens(usage.completion_tokens),
        cached_tokens=_tokens(details.cached_tokens),
    )


def _tokens(told: int | None) -> int:
    """What an engine tells, within what can be: budgets count with it, and gRPC has 64 bits for the sum."""
    return min(max(told or 0, 0), TOKENS_MAX)


def _raw(call: _ToolCall) -> RawCall:
    return RawCall(call.id or "", call.function.name, arguments_text(call.function.arguments))


def arguments_text(arguments: str | dict[str, Any] | None) -> str:
    """A call's arguments as JSON. Some engines send an object, which is not what the API says."""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()


def refuses_stream(status: int, said: str) -> bool:
    """Whether an error answer is about the request's being streamed, or about its asking for usage then."""
    return status in (400, 422) and "stream" in said.lower()


def read_error(body: bytes) -> str:
    """What went wrong, in one line, from the body of an answer with an error status."""
    message: object = None
    try:
        error = msgspec.json.decode(body)["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, IndexError):
        pass
    text = message if isinstance(message, str) else body[:200].decode("utf-8", "replace")
    return " ".join(text.split()) or "no reason given"


def read_first_model(body: bytes) -> str | None:
    """The first name in a list of models; None if there is none."""
    try:
        models = _models_decoder.decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return models[0].id if models else None


def retry_after_s(header: str | None, now: float) -> float:
    """Seconds to wait after a 429 with this `Retry-After`, which is seconds or a date (RFC 9110, 10.2.3); `now` is wall
    clock. What cannot be read is as if it were not there."""
    wait_s = RETRY_AFTER_S
    if header is not None:
        try:
            wait_s = float(header)
        except ValueError:
            try:
                when = email.utils.parsedate_to_datetime(header)
                wait_s = (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp() - now
            except (ValueError, OverflowError):
                pass
    # Not a number compares with nothing.
    return min(max(wait_s, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX) if wait_s == wait_s else RETRY_AFTER_S  # noqa: PLR0124
