"""Tokens without a tokeniser: four bytes each, over a canonical rendering of the messages. Pure. Read `reply` next.

The rendering keeps the one property that matters here: a conversation that goes on renders to a continuation of what
it was, the model's reply included, so that the next turn finds the prefix. Each message is padded to whole tokens for
that; names and arguments of tool calls are part of it, their ids are not (as in chat templates).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

TOKEN_BYTES = 4
"""English text has about four bytes a token."""

ASSISTANT = b"<|assistant|>\n\n\n"
"""Begins an assistant's message; the prompt ends with it."""
assert len(ASSISTANT) % TOKEN_BYTES == 0

CALL = b"<|call|>"
"""Begins a tool call."""


def padded(raw: bytes) -> bytes:
    """`raw` with spaces up to a whole token."""
    return raw + b" " * (-len(raw) % TOKEN_BYTES)


def render_calls(calls: Sequence[tuple[str, str]]) -> bytes:
    """Tool calls as (name, arguments) pairs; each name and each arguments text is whole tokens."""
    return b"".join(padded(CALL + _utf8(name)) + padded(_utf8(arguments)) for name, arguments in calls)


def name_tokens(name: str) -> int:
    """Tokens that it takes to say which tool a call is for."""
    return len(padded(CALL + _utf8(name))) // TOKEN_BYTES


def render_prompt(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> bytes:
    """The prompt's bytes, a multiple of `TOKEN_BYTES`: tools, messages, and the head of the reply to come."""
    parts = [padded(json.dumps(tools, sort_keys=True).encode())] if tools else []
    for message in messages:
        role = message["role"]
        parts.append(ASSISTANT if role == "assistant" else padded(f"<|{role}|>".encode()))
        text = content_text(message.get("content"))
        if text:
            parts.append(padded(_utf8(text)))
        calls = message.get("tool_calls")
        if calls:
            parts.append(render_calls([(c["function"]["name"], c["function"]["arguments"]) for c in calls]))
    parts.append(ASSISTANT)
    return b"".join(parts)


def content_text(content: Any) -> str:
    """The text of a message's content: a string, null, or parts, of which those without text count as their JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part.get("type") == "text" else json.dumps(part) for part in content)


def block_hashes(stream: bytes, block_tokens: int) -> list[int]:
    """Chained hashes of the whole blocks of `stream`.

    Python's own hash: equal within a process, which is all that a cache in one process needs, and salted anew in each.
    """
    size = block_tokens * TOKEN_BYTES
    hashes = []
    previous = 0
    for start in range(0, len(stream) - size + 1, size):
        previous = hash((previous, stream[start : start + size]))
        hashes.append(previous)
    return hashes


def _utf8(text: str) -> bytes:
    # JSON can carry half a surrogate pair, which has no encoding.
    return text.encode("utf-8", "replace")
