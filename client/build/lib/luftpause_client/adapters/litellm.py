"""Turns of LiteLLM, which is imported when the turn is made."""

from __future__ import annotations

import importlib
from typing import Any

from luftpause_client.adapters.answers import AnswerWindows
from luftpause_client.adapters.openai import read_completion

_PREFIX = "llm_provider-"
"""LiteLLM's mark on the headers that are the provider's."""


class LiteLLMTurn:
    """Asks `litellm.completion` for `model`; `options` go with each request (api_base, api_key, tools, and the
    `extra_headers` that `Luftpause.headers` gives). The reply is the assistant's message as a dict that can be appended
    to the messages. `windows` is telemetry, where the provider answers itself. ImportError without litellm.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self._complete = importlib.import_module("litellm").completion
        self._options = {"model": model, "num_retries": 0, "max_retries": 0, **options}
        self.windows = AnswerWindows()

    def __call__(self, messages: list[Any]) -> tuple[dict[str, Any], int]:
        """One turn. ValueError for an answer without choices."""
        completion = self._complete(messages=messages, **self._options)
        headers = (getattr(completion, "_hidden_params", None) or {}).get("additional_headers") or {}
        self.windows.take({name.removeprefix(_PREFIX): str(value) for name, value in headers.items()})
        return read_completion(completion, messages)
