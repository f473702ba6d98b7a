"""What adapters share: the windows that the last answer told of, and tokens where an answer tells none."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from luftpause_client.prediction import FIRST_REPLY_TOKENS, TOKENS_A_BYTE, bytes_of
from luftpause_client.windows import Window, windows_in


class AnswerWindows:
    """Telemetry read from answers, so that nothing is asked for it: call it for the windows as they are by now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: tuple[Window, ...] = ()
        self._told_at = 0.0

    def take(self, headers: Mapping[str, str]) -> None:
        """An answer came with `headers`. Headers that tell nothing change nothing."""
        found = windows_in(headers, time.time())
        if found:
            with self._lock:
                self._told, self._told_at = found, time.monotonic()

    def __call__(self) -> tuple[Window, ...]:
        with self._lock:
            told, age_s = self._told, time.monotonic() - self._told_at
        return tuple(aged for window in told if (aged := window.aged(age_s)) is not None)


def guessed_tokens(messages: Sequence[object]) -> int:
    """What a turn is likely to have taken whose answer does not tell."""
    return round(bytes_of(messages) * TOKENS_A_BYTE + FIRST_REPLY_TOKENS)


def count(usage: object, *names: str) -> int:
    """The sum of these counters of a usage record; what is absent or null is 0."""
    return sum(value for name in names if isinstance(value := getattr(usage, name, None), int))
