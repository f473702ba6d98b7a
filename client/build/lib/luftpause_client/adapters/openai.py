"""Turns of an openai client: `OpenAI(...)`, or whatever has the same `chat.completions`."""

from __future__ import annotations

from typing import Any

from luftpause_client.adapters.answers import AnswerWindows, count, guessed_tokens


class OpenAITurn:
    """Asks `client` for chat completions of `model`; `options` go with each request (tools, max_tokens, and the
    `extra_headers` that `Luftpause.headers` gives). The reply is the assistant's message as a dict that can be appended
    to the messages. `windows` is telemetry, where the provider answers itself.

    The client's own retries are off: they would sleep through a wait that a run should be suspended for.
    """

    def __init__(self, client: Any, model: str, **options: Any) -> None:
        self._create = client.with_options(max_retries=0).chat.completions.with_raw_response.create
        self._options = {"model": model, **options}
        self.windows = AnswerWindows()

    def __call__(self, messages: list[Any]) -> tuple[dict[str, Any], int]:
        """One turn. ValueError for an answer without choices."""
        raw = self._create(messages=messages, **self._options)
        self.windows.take(raw.headers)
        return read_completion(raw.parse(), messages)


def read_completion(completion: Any, messages: list[Any]) -> tuple[dict[str, Any], int]:
    """The message of a chat completion, and its tokens."""
    if not completion.choices:
        raise ValueError("the answer has no choices")
    message = completion.choices[0].message
    reply: dict[str, Any] = {"role": "assistant", "content": message.content}
    calls = getattr(message, "tool_calls", None)
    if calls:
        reply["tool_calls"] = [call.model_dump(exclude_none=True) for call in calls]
    tokens_used = count(getattr(completion, "usage", None), "prompt_tokens", "completion_tokens")
    return reply, tokens_used or guessed_tokens([*messages, reply])
