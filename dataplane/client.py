"""The client's connection, as its turn sees it. `server` has it, `proxy` and `fallback` use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dataplane import errors


class Client(Protocol):
    """The client's connection, as its turn sees it."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Sends bytes as they are."""

    @property
    def takes_chunks(self) -> bool:
        """Whether the client understands chunks; else the end of the connection ends the body."""

    def connection_line(self) -> bytes:
        """The last lines of an answer's head."""

    def answer_error(self, error: errors.ApiError, run_id: str) -> None:
        """Sends a whole answer; the turn is over."""

    def work_over(self) -> None:
        """The answer is whole; the turn is over."""

    def close(self) -> None:
        """Breaks off the answer; the turn is over."""
