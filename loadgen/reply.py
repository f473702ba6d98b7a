"""Reads one streamed chat completion: bytes in, what a load needs out. Pure; must not do I/O or read a clock.

Only the fields named in the structs below are decoded, by one typed decoder: it is the work done for every chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCallDelta(msgspec.Struct, gc=False):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    tool_calls: list[_ToolCallDelta] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Chunk).decode


class ReplyError(Exception):
    """The stream is not a chat completion, tells an error, or ended too early. The text is the kind of error."""


@dataclass(slots=True)
class ToolCall:
    """A tool call as far as it was received."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class Reply:
    """One reply as it comes. `feed` it, then `finish` it."""

    __slots__ = ("_calls", "_done", "_rest", "_texts", "_tokens", "_usage", "first_s", "last_s")

    def __init__(self) -> None:
        self._rest = b""
        self._texts: list[str] = []
        self._calls: dict[int, ToolCall] = {}
        self._usage: _Usage | None = None
        self._tokens = 0
        self._done = False
        self.first_s: float | None = None
        """When the first token came, on the clock of `feed`; None: none yet."""
        self.last_s: float | None = None
        """When the last token so far came."""

    def feed(self, data: bytes, at_s: float) -> None:
        """Takes bytes that came at `at_s`. Raises ReplyError."""
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), at_s)

    def finish(self) -> None:
        """Says that the stream has ended. Raises ReplyError if the reply is not whole."""
        if not self._done:
            raise ReplyError("broken off")

    def _event(self, payload: bytes, at_s: float) -> None:
        if payload == b"[DONE]":
            self._done = True
            return
        try:
            chunk = _decode(payload)
        except msgspec.MsgspecError:
            raise ReplyError("unreadable chunk") from None
        if chunk.error is not None:
            raise ReplyError("error in stream")
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices:
            if choice.delta is not None and self._take(choice.delta):
                self._tokens += 1
                self.last_s = at_s
                if self.first_s is None:
                    self.first_s = at_s

    def _take(self, delta: _Delta) -> bool:
        """Whether the delta contained anything generated."""
        if delta.content:
            self._texts.append(delta.content)
        for part in delta.tool_calls or ():
            call = self._calls.setdefault(part.index, ToolCall())
            call.id = part.id or call.id
            if part.function is not None:
                call.name = call.name or part.function.name or ""
                call.arguments += part.function.arguments or ""
        return bool(delta.content or delta.tool_calls)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls so far, in order."""
        return [self._calls[index] for index in sorted(self._calls)]

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt; None where the engine told no usage."""
        return self._usage.prompt_tokens if self._usage else None

    @property
    def completion_tokens(self) -> int:
        """Tokens generated; where the engine told no usage, the chunks that contained any."""
        return self._usage.completion_tokens if self._usage else self._tokens

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that came from the engine's cache; None where it did not tell."""
        details = self._usage.prompt_tokens_details if self._usage else None
        return details.cached_tokens if details else None
