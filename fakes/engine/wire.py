"""Replies as bytes: OpenAI's chat completions, whole and as server-sent events, and vLLM's `/classify`. Pure.

A stream is a chunk with the role, one chunk a token (none for a token that adds nothing yet), one with the finish
reason, one with the usage where asked, and `[DONE]`. A tool call's id and name are in its first chunk, and only
there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fakes.engine.chat import Chat
from fakes.engine.reply import Reply, Token

DONE = b"data: [DONE]\n\n"

encode = json.JSONEncoder(separators=(",", ":")).encode
"""JSON without spaces, as engines send it."""


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage object, with the cached share of the prompt."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Wire:
    """Writes one reply. `identity` makes its ids unique; `created` is in Unix seconds."""

    __slots__ = ("_chat", "_created", "_head", "_id", "_identity", "_reply", "_usage_null")

    def __init__(self, chat: Chat, reply: Reply, identity: str, created: int) -> None:
        self._chat = chat
        self._reply = reply
        self._identity = identity
        self._id = f"chatcmpl-{identity}"
        self._created = created
        fixed = {"id": self._id, "object": "chat.completion.chunk", "created": created, "model": chat.model}
        self._head = "data: " + encode(fixed)[:-1] + ',"choices":['
        self._usage_null = ',"usage":null' if chat.include_usage else ""

    def role_chunk(self) -> bytes:
        """The first chunk."""
        return self._chunk('{"role":"assistant","content":""}')

    def token_chunk(self, position: int) -> bytes:
        """The chunk of the token at `position`; empty for a token that adds nothing yet."""
        token = self._reply.tokens[position]
        if token.call is not None:
            return self._chunk(encode({"tool_calls": [self._call_delta(token)]}))
        if not token.text:
            return b""
        return self._chunk('{"content":' + encode(token.text) + "}", self._logprobs([position]))

    def end_chunks(self, usage_object: dict[str, Any]) -> bytes:
        """Finish reason, usage where asked, and `[DONE]`."""
        end = self._chunk("{}", finish=encode(self._reply.finish_reason))
        if self._chat.include_usage:
            end += (self._head + '],"usage":' + encode(usage_object) + "}\n\n").encode()
        return end + DONE

    def whole(self, usage_object: dict[str, Any]) -> dict[str, Any]:
        """The reply in one body."""
        tokens = self._reply.tokens
        message: dict[str, Any] = {"role": "assistant", "content": None}
        calls = self._whole_calls()
        if calls:
            message["tool_calls"] = calls
        else:
            message["content"] = "".join(token.text for token in tokens)
        texts = [position for position, token in enumerate(tokens) if token.text and token.call is None]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(texts),
            "finish_reason": self._reply.finish_reason,
        }
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._chat.model,
            "choices": [choice],
            "usage": usage_object,
        }

    def _chunk(self, delta: str, logprobs: dict[str, Any] | None = None, finish: str = "null") -> bytes:
        told = encode(logprobs) if logprobs else "null"
        choice = f'{{"index":0,"delta":{delta},"logprobs":{told},"finish_reason":{finish}}}'
        return f"{self._head}{choice}]{self._usage_null}}}\n\n".encode()

    def _call_delta(self, token: Token) -> dict[str, Any]:
        if not token.is_name:
            return {"index": token.call, "function": {"arguments": token.text}}
        function = {"name": token.text, "arguments": ""}
        return {"index": token.call, "id": self._call_id(token), "type": "function", "function": function}

    def _call_id(self, token: Token) -> str:
        return f"call-{self._identity}-{token.call}"

    def _whole_calls(self) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []
        for token in self._reply.tokens:
            if token.is_name:
                function = {"name": token.text, "arguments": ""}
                calls.append({"id": self._call_id(token), "type": "function", "function": function})
            elif token.call is not None:
                calls[token.call]["function"]["arguments"] += token.text
        return calls

    def _logprobs(self, positions: Sequence[int]) -> dict[str, Any] | None:
        top = self._chat.top_logprobs
        if top is None or not positions:
            return None
        content = []
        for position in positions:
            entries = [
                {"token": token, "logprob": round(logprob, 6), "bytes": list(token.encode())}
                for token, logprob in self._reply.alternatives(position)
            ]
            content.append({**entries[0], "top_logprobs": entries[:top]})
        return {"content": content}


def classification(
    identity: str, created: int, model: str, rows: Sequence[dict[str, Any]], tokens: int
) -> dict[str, Any]:
    """vLLM's answer to `/classify`; `rows` as in `labels.classify`."""
    return {
        "id": f"classify-{identity}",
        "object": "list",
        "created": created,
        "model": model,
        "data": list(rows),
        "usage": usage(tokens, 0, 0),
    }
