"""A reply that comes as an event stream, put together from its events. Sans-I/O.

What of it counts is what counts of a whole one, which `chat` reads: the same reply gives the same `Reply` either way,
and however the bytes are cut. Must not keep half a reply: `reply` says whether there is a whole one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from common.sse import EventBuffer, data_of, split
from runtime.chat import BrokenReplyError, RawCall, Reply, Usage, arguments_text, counted, read_error

_CALL_CHARS = 256
"""What a tool call without any text counts as."""


class RefusedInStreamError(Exception):
    """The dataplane says in a stream, whose head is out, what would have been the status of an answer."""

    def __init__(self, status: int, said: str, retry_after: str | None) -> None:
        super().__init__(said)
        self.status = status
        self.said = said
        """In its words."""
        self.retry_after = retry_after
        """The answer's `Retry-After`."""


class _FunctionDelta(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _CallDelta(msgspec.Struct):
    function: _FunctionDelta | None = None
    index: int | None = None
    id: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class _Call:
    """A tool call, as far as it has come."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        """Pieces; none have come where it is empty."""


class ReplyStream:
    """Feed it what comes, then ask for the `reply`."""

    def __init__(self) -> None:
        self._buffer = EventBuffer()
        self._content: list[str] = []
        self._calls: list[_Call] = []
        self._open: dict[int | None, _Call] = {}
        """The last call of each index; None: those of engines that tell none."""
        self._finish_reason = ""
        self._usage: Usage | None = None
        self._kept_chars = 0
        self._has_begun = False
        self._is_done = False

    @property
    def size(self) -> int:
        """What is kept of the reply, in characters; of an event that is not whole yet, in bytes."""
        return self._kept_chars + len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes. Raises BrokenReplyError, or RefusedInStreamError."""
        for event in split(self._buffer.feed(data)):
            self._take(event)

    def reply(self) -> Reply:
        """The reply, after the last bytes. Raises as `feed` does, also where the stream has ended before the reply."""
        rest = self._buffer.flush()
        if rest:
            self._take(rest)
        if not self._has_begun:
            raise BrokenReplyError("the answer has no choices")
        if not self._is_done and not self._finish_reason:
            raise BrokenReplyError("the answer ended before the reply did")
        return counted(
            Reply(
                content="".join(self._content),
                calls=tuple(map(_raw, self._calls)),
                finish_reason=self._finish_reason,
            ),
            self._usage,
        )

    def _take(self, event: bytes) -> None:
        data = data_of(event)
        if self._is_done or not data:
            return
        if data == b"[DONE]":
            self._is_done = True
            return
        try:
            chunk = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BrokenReplyError(f"the answer is no stream of a chat completion: {error}") from None
        if chunk.error is not None:
            raise self._failure(chunk.error, read_error(data))
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices or ():
            self._has_begun = True
            self._take_choice(choice)

    def _failure(self, error: object, said: str) -> BrokenReplyError | RefusedInStreamError:
        # Only the dataplane tells a status. Engines have a code, which is 400 for their own faults too.
        told = error if isinstance(error, dict) else {}
        status, retry_after = told.get("status"), told.get("retry_after")
        if isinstance(status, int) and 400 <= status < 600 and not self._has_begun:
            return RefusedInStreamError(status, said, None if retry_after is None else str(retry_after))
        return BrokenReplyError(f"the answer ended with an error: {said}")

    def _take_choice(self, choice: _Choice) -> None:
        self._finish_reason = choice.finish_reason or self._finish_reason
        if choice.delta is None:
            return
        if choice.delta.content:
            self._content.append(choice.delta.content)
            self._kept_chars += len(choice.delta.content)
        for delta in choice.delta.tool_calls or ():
            self._take_call(delta)

    def _take_call(self, delta: _CallDelta) -> None:
        function = delta.function or _FunctionDelta()
        call = self._open.get(delta.index)
        # Some engines tell no index, or the same for all calls.
        is_other = call is not None and (
            (delta.id and call.id and delta.id != call.id) or (delta.index is None and function.name and call.name)
        )
        if call is None or is_other:
            call = self._open[delta.index] = _Call()
            self._calls.append(call)
            self._kept_chars += _CALL_CHARS
        call.id = call.id or delta.id or ""
        call.name = call.name or function.name or ""
        if function.arguments is not None:
            text = arguments_text(function.arguments)
            call.arguments.append(text)
            self._kept_chars += len(text)


def _raw(call: _Call) -> RawCall:
    if not call.name:
        raise BrokenReplyError("a tool call has no name")
    return RawCall(call.id, call.name, "".join(call.arguments) if call.arguments else arguments_text(None))
