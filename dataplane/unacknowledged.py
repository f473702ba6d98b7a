"""Reports that the scheduler has not acknowledged: they are sent again on the next stream. No I/O.

Of a run with a budget of money the ended turns themselves are kept too: a scheduler that restarted and never heard of
their end is told that they are in flight, so that it counts what they did cost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from dataplane.tickets import Ticket
from protos import turn_pb2

T = TypeVar("T")

BATCH_MAX = 256
"""Most admissions and most reports in one message."""
_MESSAGES_MAX = 1_024
"""Most messages whose reports are kept for a scheduler that does not acknowledge."""


class Unacknowledged:
    """The reports of one stream after another, oldest first."""

    __slots__ = ("_ended", "_sent")

    def __init__(self) -> None:
        self._sent: deque[tuple[int, list[turn_pb2.Report]]] = deque(maxlen=_MESSAGES_MAX)
        self._ended: dict[str, Ticket] = {}

    def __bool__(self) -> bool:
        return bool(self._sent)

    def ended(self, ticket: Ticket) -> None:
        """The turn's end is being reported."""
        if ticket.message.HasField("budget_usd"):
            self._ended[ticket.turn_id] = ticket

    def tickets(self) -> Iterable[Ticket]:
        """Ended turns that the scheduler may not know of."""
        return self._ended.values()

    def sent(self, sequence: int, reports: list[turn_pb2.Report]) -> None:
        """Message `sequence` carried `reports`."""
        self._sent.append((sequence, reports))

    def acknowledge(self, sequence: int) -> None:
        """Messages up to `sequence` were performed."""
        sent = self._sent
        while sent and sent[0][0] <= sequence:
            _, reports = sent.popleft()
            if self._ended:
                for report in reports:
                    self._ended.pop(report.turn_id, None)

    def take(self) -> list[turn_pb2.Report]:
        """All reports, to be sent again on a new stream."""
        kept = [report for _, reports in self._sent for report in reports]
        self._sent.clear()
        return kept


def take_batch(queue: deque[T]) -> list[T]:
    """Takes the first `BATCH_MAX` of `queue`."""
    if len(queue) <= BATCH_MAX:
        taken = list(queue)
        queue.clear()
        return taken
    return [queue.popleft() for _ in range(BATCH_MAX)]
