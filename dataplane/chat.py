"""The wire format of chat completions: what luftpause reads of a request, and the one thing it adds to it. Pure.

Nothing here validates a request for the engine: fields that are not needed are not looked at. Replies are read by
`meter`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from dataplane import bodies
from dataplane.errors import ApiError

TOOL_CALL_IDS_MAX = 64
TOOL_CALL_ID_CHARS_MAX = 256
TOOL_CHARS_MAX = 64

MODEL_CHARS_MAX = 512
TOKENS_MAX = 2**53
"""No request allows more: a larger number is one that makes no sense."""

_Scalar = int | float | str | bool | None  # a list may have millions of items
_SPACE = b" \t\r\n"


class _Message(msgspec.Struct, gc=False):  # a body may have millions
    role: str
    tool_call_id: str | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """The fields of a chat completion request that matter to a proxy."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=MODEL_CHARS_MAX)]
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    stream: bool | None = None
    stream_options: _StreamOptions | msgspec.UnsetType | None = msgspec.UNSET
    max_tokens: _Scalar = None
    max_completion_tokens: _Scalar = None

    @property
    def tokens_max(self) -> int | None:
        """Most completion tokens that it allows, where it says so in a way that makes sense."""
        for limit in (self.max_completion_tokens, self.max_tokens):
            if type(limit) is int and 0 < limit <= TOKENS_MAX:
                return limit
        return None

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for usage in the stream."""
        return isinstance(self.stream_options, _StreamOptions) and self.stream_options.include_usage is True

    def tool_call_ids(self) -> tuple[str, ...]:
        """Distinct tool call ids that the messages answer, newest first, at most `TOOL_CALL_IDS_MAX`."""
        found: dict[str, None] = {}
        for message in reversed(self.messages):
            call_id = message.tool_call_id
            if call_id and len(call_id) <= TOOL_CALL_ID_CHARS_MAX:
                found[call_id] = None
                if len(found) == TOOL_CALL_IDS_MAX:
                    break
        return tuple(found)


class _Function(msgspec.Struct, gc=False):
    name: str = ""


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function
    id: str | None = None


class _ToolMessage(_Message):
    tool_calls: list[_ToolCall] | None = None


class _ToolRequest(msgspec.Struct):
    messages: list[_ToolMessage]


_TOOLS_DECODER = msgspec.json.Decoder(_ToolRequest)
_DECODER = msgspec.json.Decoder(ChatRequest)
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TRUE = msgspec.Raw(b"true")


def parse(body: bytes) -> ChatRequest | ApiError:
    """The request in `body`, or a 400 that names the field and what was expected."""
    return bodies.read(body, _DECODER)


def last_tool(body: bytes) -> str:
    """Name of the tool whose result the messages in `body`, which has been parsed, end with; empty: none."""
    try:
        messages = _TOOLS_DECODER.decode(body).messages
    except msgspec.ValidationError:
        return ""
    if messages[-1].role != "tool":
        return ""
    calls = next((message.tool_calls for message in reversed(messages) if message.tool_calls), None) or ()
    answered = [call for call in calls if call.id == messages[-1].tool_call_id] or calls[-1:]
    return answered[0].function.name[:TOOL_CHARS_MAX] if answered else ""


def with_model(body: bytes, model: str) -> bytes:
    """`body`, which has been parsed, with another model; other members keep their bytes and order."""
    members = _RAW_OBJECT.decode(body)
    members["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(members)


def ask_for_usage(body: bytes, request: ChatRequest) -> bytes:
    """`body` with `stream_options.include_usage` set, every other byte as it was where `stream_options` was absent.

    `body` has been parsed to `request`, so it is an object with at least one member. A `stream_options` that is there
    is replaced rather than repeated, since strict parsers refuse a repeated key; other members keep their bytes and
    order. `continuous_usage_stats` has no effect without `include_usage`, and is taken out so that it gets none.
    """
    if request.stream_options is msgspec.UNSET:
        return body.rstrip(_SPACE)[:-1] + b',"stream_options":{"include_usage":true}}'
    members = _RAW_OBJECT.decode(body)
    options: dict[str, msgspec.Raw] = {}
    if request.stream_options is not None:
        options = _RAW_OBJECT.decode(members["stream_options"])
    options.pop("continuous_usage_stats", None)
    options["include_usage"] = _TRUE
    members["stream_options"] = msgspec.Raw(msgspec.json.encode(options))
    return msgspec.json.encode(members)
