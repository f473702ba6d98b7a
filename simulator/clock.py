"""Virtual time: what is to happen, in order. Must not read a real clock."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class Clock:
    """Events at seconds from 0; those of one moment happen in the order they were set."""

    __slots__ = ("_count", "_events", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        """Lets something happen `delay_s` from now."""
        self._count += 1
        heappush(self._events, (self.now + delay_s, self._count, happen))

    def run(self, until_s: float) -> None:
        """Lets all happen that is due up to `until_s`, which is the time then."""
        events = self._events
        while events and events[0][0] <= until_s:
            self.now, _, happen = heappop(events)
            happen()
        self.now = until_s
