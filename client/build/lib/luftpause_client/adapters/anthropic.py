"""Turns of an anthropic client: `Anthropic(...)`, or whatever has the same `messages`. Goes to the provider itself:
luftpause's dataplane serves chat completions."""

from __future__ import annotations

from typing import Any

from luftpause_client.adapters.answers import AnswerWindows, count, guessed_tokens


class AnthropicTurn:
    """Asks `client` for messages of `model`; `options` go with each request (system, tools). The reply is the
    assistant's message as a dict that can be appended to the messages. `windows` is telemetry.

    The client's own retries are off: they would sleep through a wait that a run should be suspended for.
    """

    def __init__(self, client: Any, model: str, max_tokens: int, **options: Any) -> None:
        self._create = client.with_options(max_retries=0).messages.with_raw_response.create
        self._options = {"model": model, "max_tokens": max_tokens, **options}
        self.windows = AnswerWindows()

    def __call__(self, messages: list[Any]) -> tuple[dict[str, Any], int]:
        """One turn. Prompt tokens that were read from a cache do not count: no window does count them."""
        raw = self._create(messages=messages, **self._options)
        self.windows.take(raw.headers)
        message = raw.parse()
        blocks = [block.model_dump(exclude_none=True) for block in message.content or ()]
        reply = {"role": "assistant", "content": blocks}
        tokens_used = count(
            getattr(message, "usage", None), "input_tokens", "cache_creation_input_tokens", "output_tokens"
        )
        return reply, tokens_used or guessed_tokens([*messages, reply])
