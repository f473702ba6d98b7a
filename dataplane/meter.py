"""Reads replies on their way: usage, first token, finish reason, tool calls. Sans-I/O.

`StreamMeter` for event streams, `ReplyMeter` for whole JSON replies; both say what to relay. The ordinary chunk of a
stream costs a few searches for byte strings and no JSON: `_matters` tells which ones are parsed. Whatever an engine
sends that is not understood is relayed and otherwise ignored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any, cast

import msgspec

from common.sse import EventBuffer, data_of, find_end, split
from dataplane.chat import TOOL_CALL_ID_CHARS_MAX, TOOL_CALL_IDS_MAX

_EVENT_BYTES_MAX = 4 * 2**20
"""An event or a reply larger than this is relayed unread."""
_LISTED_MAX = 64
"""Most choices of a reply, and most tool calls of a choice, that are read of a list that is not short."""
_SHORT_BYTES_MAX = 8 * 1024

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Tokens | None = None


class Usage(msgspec.Struct):
    """Tokens of one turn, as far as the engine tells."""

    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that came from the prefix cache."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


_NULL = msgspec.Raw(b"null")
_NOTHING = (_NULL, msgspec.Raw(b'""'), msgspec.Raw(b"[]"), msgspec.Raw(b"{}"))


def _is_nothing(value: msgspec.Raw) -> bool:
    return value is _NULL or value in _NOTHING


class _ToolCall(msgspec.Struct):
    id: str | None = None


class _Delta(msgspec.Struct):
    content: msgspec.Raw = _NULL
    reasoning_content: msgspec.Raw = _NULL
    reasoning: msgspec.Raw = _NULL
    refusal: msgspec.Raw = _NULL
    function_call: msgspec.Raw = _NULL
    tool_calls: msgspec.Raw = _NULL


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


TOO_LARGE = b"Request too large"
"""What OpenAI says with a 429 where a request is larger than a whole rate limit, so that no wait helps."""


class _Reply(msgspec.Struct):
    choices: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL


class _Listed:
    """Reads lists of `item`. Of a long one no more than `_LISTED_MAX` are made: an event may have a million, which
    would hold up all other turns."""

    __slots__ = ("_first", "_whole")

    def __init__(self, item: type[msgspec.Struct]) -> None:
        there: Any = item | msgspec.UnsetType
        fields = [(f"item_{number}", there, msgspec.UNSET) for number in range(_LISTED_MAX)]
        self._first = msgspec.json.Decoder(msgspec.defstruct("First", fields, array_like=True))
        whole: Any = list[item]  # type: ignore[valid-type]
        self._whole = msgspec.json.Decoder(whole)

    def read(self, raw: msgspec.Raw) -> Sequence[Any]:
        """The items, none of null. Raises msgspec.DecodeError where it is neither that nor a list, or they are not as
        they should be."""
        if raw is _NULL or raw == _NULL:  # not there at all, or null
            return ()
        if memoryview(raw).nbytes <= _SHORT_BYTES_MAX:
            return cast(list[Any], self._whole.decode(raw))
        items = msgspec.structs.astuple(self._first.decode(raw))
        return items[: items.index(msgspec.UNSET)] if items[-1] is msgspec.UNSET else items


_CHOICES = _Listed(_Choice)
_TOOL_CALLS = _Listed(_ToolCall)
_REPLY = msgspec.json.Decoder(_Reply)
_USAGE = msgspec.json.Decoder(Usage)
_PAUSING = frozenset(("tool_calls", "function_call"))


class Meter:
    """What has been read of a reply so far."""

    __slots__ = (
        "done",
        "error",
        "finish_reason",
        "first_token",
        "has_tool_calls",
        "news",
        "too_large",
        "tool_call_ids",
        "usage",
    )

    def __init__(self) -> None:
        self.finish_reason = ""
        self.tool_call_ids: tuple[str, ...] = ()
        self.has_tool_calls = False
        self.usage: Usage | None = None
        self.first_token = False
        self.done = False
        """Whether `[DONE]` has come: the client may now go on, whatever else follows."""
        self.news = False
        """Whether something was read since the owner set this to False."""
        self.error = False
        """Whether the engine reported an error inside a reply with status 200."""
        self.too_large = False
        """Whether that error is about the size of this very request."""

    @property
    def whole(self) -> bool:
        """Whether the reply said that it is complete, which counts where HTTP cannot tell."""
        raise NotImplementedError

    @property
    def template(self) -> tuple[bytes, bytes] | None:
        """What surrounds the text of an event that needs not be fed if it comes next: only a stream can tell."""
        return None

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes of the body; returns those to relay now."""
        raise NotImplementedError

    def finish(self) -> bytes:
        """Takes the end of the body; returns the last bytes to relay."""
        raise NotImplementedError

    def _read(self, document: bytes) -> bool | None:
        """Takes in one JSON document: a chunk or a whole reply. Whether it tells of usage alone; None where it is not
        understood."""
        try:
            reply = _REPLY.decode(document)
            choices = _CHOICES.read(reply.choices)
            parts = []
            for choice in choices:
                part = choice.delta or choice.message
                if part is not None:
                    parts.append((part, _TOOL_CALLS.read(part.tool_calls)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        self.news = True
        if reply.error is not _NULL and reply.error != _NULL:
            self.error = True
            self.too_large = bytes(reply.error).find(TOO_LARGE) >= 0
        has_usage = reply.usage is not _NULL and reply.usage != _NULL
        if has_usage:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.usage = _USAGE.decode(reply.usage)
        for part, calls in parts:
            self._read_part(part, calls)
        for choice in choices:
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason[:64]
                self.has_tool_calls = self.has_tool_calls or choice.finish_reason in _PAUSING
        return has_usage and not choices and reply.choices != _NULL

    def _read_part(self, part: _Delta, calls: Sequence[_ToolCall]) -> None:
        if calls or not _is_nothing(part.function_call):
            self.has_tool_calls = self.first_token = True
        elif not self.first_token:
            texts = (part.content, part.reasoning_content, part.reasoning, part.refusal)
            self.first_token = not all(map(_is_nothing, texts))
        for call in calls:
            if call.id and len(call.id) <= TOOL_CALL_ID_CHARS_MAX and call.id not in self.tool_call_ids:
                self.tool_call_ids = (*self.tool_call_ids, call.id)[-TOOL_CALL_IDS_MAX:]


class ReplyMeter(Meter):
    """Reads a reply that is one JSON document, at its end."""

    __slots__ = ("_parts", "_size", "_whole")

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._size = 0
        self._whole = False

    @property
    def whole(self) -> bool:
        """Whether the document ended where the body did."""
        return self._whole

    def feed(self, data: bytes) -> bytes:
        """Keeps `data` for the end; relays it."""
        self._size += len(data)
        if self._size <= _EVENT_BYTES_MAX:
            self._parts.append(data)
        else:
            self._parts.clear()
        return data

    def finish(self) -> bytes:
        """Reads the reply; nothing is held back."""
        if self._size <= _EVENT_BYTES_MAX:
            self._whole = self._read(b"".join(self._parts)) is not None
            self.first_token = False  # it came at some time that nobody saw
        self._parts.clear()
        return b""


class StreamMeter(Meter):
    """Reads a reply that is an event stream. With `hide_usage`, the chunk that carries only usage is not relayed.

    The ordinary chunk differs from the one before it only inside the string of its content. `template` tells what is
    before and behind that string, so that such a chunk can be relayed without a further look.
    """

    __slots__ = ("_buffer", "_hide_usage", "_tail", "_template")

    def __init__(self, hide_usage: bool) -> None:
        super().__init__()
        self._buffer = EventBuffer()
        self._tail = b""
        """The last bytes of an event that is too large to be read, while it comes."""
        self._hide_usage = hide_usage
        self._template: tuple[bytes, bytes] | None = None

    @property
    def whole(self) -> bool:
        """Whether the stream came to `[DONE]` or to a finish reason."""
        return self.done or bool(self.finish_reason)

    @property
    def template(self) -> tuple[bytes, bytes] | None:
        """Of the last event but its text, if the next bytes begin an event."""
        return self._template if not len(self._buffer) and not self._tail else None

    def finish(self) -> bytes:
        """Reads an event that lacks its empty line."""
        rest = self._buffer.flush()
        relayed = self._read_events(rest + b"\n\n") if rest else b""
        return rest if relayed and self._hide_usage else b""

    def feed(self, data: bytes) -> bytes:
        """Reads the events that are whole with `data`. While usage is hidden, unfinished ones are held back."""
        unread, rest = self._split_unread(data)
        buffer, too_large = self._buffer, b""
        events = relayed = buffer.feed(rest)
        if len(buffer) > _EVENT_BYTES_MAX:
            too_large = buffer.flush()
            self._tail = too_large[-2:]
            self.first_token = self.news = True
        if not self.first_token or _matters(events):
            relayed = self._read_events(events)
        elif not len(buffer):
            self._take_template(events)
        return unread + relayed + too_large if self._hide_usage else data

    def _split_unread(self, data: bytes) -> tuple[bytes, bytes]:
        """What `data` begins with of an event that is too large to be read, and what follows."""
        if not self._tail:
            return b"", data
        joined = self._tail + data
        end = find_end(joined)
        self._tail = joined[-2:] if end < 0 else b""
        at = len(data) if end < 0 else end - len(joined) + len(data)
        return data[:at], data[at:]

    def _take_template(self, events: bytes) -> None:
        """Learns what an ordinary chunk looks like around its content."""
        if events.find(b"\n\n") != len(events) - 2:
            return  # more than one
        for key in _TEXTS:
            start = events.find(key) + len(key)
            end = events.find(b'"', start)
            if start >= len(key) and end > 0 and events.find(b"\\", start, end) < 0:
                self._template = events[:start], events[end:]
                return

    def _read_events(self, events: bytes) -> bytes:
        """Takes in `events`; returns those that the client may see."""
        shown = []
        for event in split(events):
            data = data_of(event)
            if data == b"[DONE]":
                self.done = self.news = True
            if not (data.startswith(b"{") and self._read(data)):
                shown.append(event)
        return b"".join(shown)


_TEXTS = (b'"content":"', b'"content": "', b'"reasoning_content":"', b'"reasoning":"')
_NULLED = tuple(
    (b'"%b"' % key, b'"%b":null' % key, b'"%b": null' % key) for key in (b"finish_reason", b"usage", b"tool_calls")
)


def _matters(events: bytes) -> bool:
    """Whether whole events could hold more than another piece of content. False only if they surely do not.

    Quotes inside JSON strings are escaped, so that a quoted key found here is a key, or part of one with escapes.
    `find`, since `in` takes four times as long on bytes: it first tries whether its left side is a number.
    """
    if events.find(b"[DONE]") >= 0 or events.find(b'"error"') >= 0:
        return True
    for key, null, spaced_null in _NULLED:
        keys = events.count(key)
        if keys and keys != events.count(null) and keys != events.count(null) + events.count(spaced_null):
            return True
    return False
