"""For how long a client has read nothing of what waits for it. Pure."""

from __future__ import annotations


class Unread:
    """What was seen of one connection. To be looked at often: what happened between two looks is not known."""

    __slots__ = ("_since", "_waiting_bytes")

    def __init__(self) -> None:
        self._waiting_bytes = 0
        self._since = 0.0

    def look(self, waiting_bytes: int, now: float) -> float:
        """Seconds up to loop time `now` without sign that the client took any of the bytes that wait to be sent."""
        if not waiting_bytes or waiting_bytes < self._waiting_bytes or not self._waiting_bytes:
            self._since = now
        self._waiting_bytes = waiting_bytes
        return now - self._since

    def took(self) -> None:
        """The client has read, whatever waits by the next look."""
        self._waiting_bytes = 0
