"""What the engine and the client of `bench relay` say to each other, byte by byte. Pure.

Each request carries a number that its answer repeats, so that an answer that is cut, changed, doubled or somebody
else's is told from the right one by comparing bytes. Sizes are those of real engines: a body of 2 KB, chunks of a
quarter of a kilobyte.
"""

from __future__ import annotations

import functools
import json
import re

MODEL = "m"
BODY_BYTES = 2048
_NUMBER = "%012d"
_WORDS = "of the many words that an agent has said and heard so far in its run "


def request(number: int, chunks: int, pace_ms: int, pad_bytes: int | None = None) -> bytes:
    """A turn as HTTP request: streamed in `chunks` chunks, one each `pace_ms`; 0 chunks: not streamed. With `pad_bytes`
    the chunks are `stamped`, and so much larger."""
    return _request(chunks, pace_ms, pad_bytes) % number


@functools.cache
def _request(chunks: int, pace_ms: int, pad_bytes: int | None) -> bytes:
    fields: dict[str, object] = {"model": MODEL, "user": _NUMBER % 0, "max_tokens": max(1, chunks)}
    if chunks:
        metadata = {"pace_ms": str(pace_ms)} | ({} if pad_bytes is None else {"pad_bytes": str(pad_bytes)})
        fields |= {"stream": True, "stream_options": {"include_usage": True}, "metadata": metadata}
    bare = len(_json({**fields, "messages": [{"role": "user", "content": ""}]}))
    content = (_WORDS * (BODY_BYTES // len(_WORDS) + 1))[: BODY_BYTES - bare]
    body = _json({**fields, "messages": [{"role": "user", "content": content}], "user": _NUMBER})
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {BODY_BYTES}\r\n\r\n"
    )
    return (head + body).encode()


def _json(fields: dict[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def _chunk(choices: list[dict[str, object]], **more: object) -> bytes:
    fields: dict[str, object] = {"id": f"chatcmpl-{_NUMBER}", "object": "chat.completion.chunk", "created": 1700000000}
    return b"data: " + _json({**fields, "model": MODEL, "choices": choices, **more}).encode() + b"\n\n"


def _choice(delta: dict[str, str], finish_reason: str | None) -> list[dict[str, object]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]


_USAGE: dict[str, object] = {"prompt_tokens": 500, "completion_tokens": 80, "total_tokens": 580}
_MESSAGE = {"role": "assistant", "content": _WORDS * 5, "tool_calls": None}
_WHOLE = _json(
    {
        "id": f"chatcmpl-{_NUMBER}",
        "object": "chat.completion",
        "created": 1700000000,
        "model": MODEL,
        "choices": [{"index": 0, "message": _MESSAGE, "logprobs": None, "finish_reason": "stop"}],
        "usage": _USAGE,
    }
).encode()
_EVENT = _chunk(_choice({"content": f"word {_NUMBER}..."}, None))
_STAMPED = _chunk(_choice({"content": f"word {_NUMBER} at {_NUMBER}...%s"}, None))
_STAMP = re.compile(rb'"content":"word (\d+) at (\d+)\.\.\.')
_END = _chunk(_choice({}, "stop")) + _chunk([], usage=_USAGE) + b"data: [DONE]\n\n"


def whole(number: int) -> bytes:
    """The body of the answer to request `number` that is not streamed."""
    return _WHOLE % number


def event(number: int, position: int) -> bytes:
    """The chunk at `position` (from 0) of the answer to request `number`."""
    return _EVENT % (number, position)


def stamped(number: int, position: int, at_us: int, pad_bytes: int) -> bytes:
    """As `event`, with the time at which it is sent, on the clock that all processes share."""
    return _STAMPED % (number, position, at_us, b"x" * pad_bytes)


def stamp(data: bytes) -> tuple[int, int] | None:
    """Position and time of a `stamped` event; None: it is none."""
    found = _STAMP.search(data)
    return None if found is None else (int(found[1]), int(found[2]))


def end(number: int) -> bytes:
    """What follows the last chunk of the answer to request `number`: finish reason, usage, `[DONE]`."""
    return _END % (number, number)


def stream(number: int, chunks: int) -> bytes:
    """The whole body of the streamed answer to request `number`."""
    return b"".join(event(number, position) for position in range(chunks)) + end(number)
