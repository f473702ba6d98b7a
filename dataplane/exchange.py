"""One request to an engine and its reply, as those speak of it that send it and the connection that carries it.

Read next: `upstream`, the connection; `proxy` and `whole_turn`, who sends.
"""

from __future__ import annotations

from typing import Protocol

from dataplane.pump import Lane


class EngineError(Exception):
    """The engine could not be reached; the text says why, in a few words."""


class Reply:
    """The head of an engine's reply."""

    __slots__ = ("chunked", "close_delimited", "content_type", "encoded", "length", "lines", "reason", "status")

    def __init__(self) -> None:
        self.status = 0
        self.reason = b""
        self.lines: list[bytes] = []
        """Headers to pass on, each with its line end: all but hop-by-hop ones, the length and our own."""
        self.content_type = b""
        self.length: bytes | None = None
        self.chunked = False
        self.close_delimited = False
        """Whether only the end of the connection ends the body."""
        self.encoded = False
        """Whether the body is compressed, though nobody asked for it: it is passed on, and cannot be read."""


class Exchange(Protocol):
    """One request and its reply, as its connection sees it."""

    def answered(self, reply: Reply) -> None:
        """The reply's head is there. Called once, and `received` right after it."""

    def received(self, data: bytes, complete: bool) -> None:
        """More of the body; with `complete` it is whole, and the connection already belongs to someone else."""

    def lane(self) -> Lane | None:
        """What chunk, if it comes next and alone, needs not be `received`, if there is such a chunk."""

    def lost(self, problem: str, untouched: bool) -> None:
        """There will be no more. `untouched`: a kept connection was closed before the request came there, for sure."""
