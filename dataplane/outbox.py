"""What the scheduler is to be told, and what it was told and has not acknowledged. No I/O.

Everything queued goes as one message, up to its limits. A report keeps the time of what it tells until it is sent, as
it may have waited for company; it is kept until it is acknowledged, and else sent again on the next stream. Where turns
may cost money the ended ones themselves are kept too: a scheduler that restarted and never heard of their end is told
that they are in flight, so that it counts what they did cost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from dataplane.tickets import Ticket
from protos import scheduler_pb2, turn_pb2

T = TypeVar("T")

BATCH_MAX = 256
"""Most admissions and most reports in one message."""
_REPORTS_MAX = 20_000
"""Most reports, and ended turns, kept while there is no stream; the oldest go, since the resync tells the same."""
_MESSAGES_MAX = 1_024
"""Most messages whose reports are kept for a scheduler that does not acknowledge."""

_Told = tuple[float, turn_pb2.Report]
"""When it happened, monotonic, and what."""


class Outbox:
    """Queues by kind, oldest first."""

    __slots__ = ("_abandons", "_admits", "_ended", "_renewals", "_reports", "_sent")

    def __init__(self) -> None:
        self._admits: deque[turn_pb2.Turn] = deque()
        self._abandons: deque[str] = deque()
        self._reports: deque[_Told] = deque(maxlen=_REPORTS_MAX)
        self._renewals: deque[str] = deque()
        self._sent: deque[tuple[int, list[_Told]]] = deque(maxlen=_MESSAGES_MAX)
        self._ended: dict[str, Ticket] = {}

    def __bool__(self) -> bool:
        """Whether anything is queued."""
        return bool(self._admits or self._abandons or self._reports or self._renewals)

    @property
    def owes(self) -> bool:
        """Whether the scheduler lacks something that it would not learn from a resync alone."""
        return bool(self._reports or self._abandons or self._sent)

    def admit(self, turn: turn_pb2.Turn) -> None:
        """A turn asks for its admission."""
        self._admits.append(turn)

    def abandon(self, turn_id: str) -> None:
        """The client of a held turn left."""
        self._abandons.append(turn_id)

    def renew(self, turn_ids: Iterable[str]) -> None:
        """These turns are still in flight."""
        self._renewals.extend(turn_ids)

    def report(self, at: float, report: turn_pb2.Report) -> None:
        """Something happened at monotonic time `at`."""
        self._reports.append((at, report))

    def ended(self, ticket: Ticket) -> None:
        """The turn's end is being reported."""
        if ticket.message.HasField("prompt_bytes"):
            self._ended[ticket.turn_id] = ticket
            if len(self._ended) > _REPORTS_MAX:
                del self._ended[next(iter(self._ended))]

    def ended_tickets(self) -> Iterable[Ticket]:
        """Ended turns that the scheduler may not know of."""
        return self._ended.values()

    def batch(self, sequence: int, acknowledged: int, now: float) -> scheduler_pb2.DispatchRequest:
        """Message `sequence`, sent at monotonic time `now`: all that is queued, up to the limits of one message."""
        request = scheduler_pb2.DispatchRequest(
            sequence=sequence,
            acknowledged=acknowledged,
            admits=_take_batch(self._admits),
            abandons=_take_batch(self._abandons),
            renewals=_take_batch(self._renewals),
        )
        if self._reports:
            told = _take_batch(self._reports)
            for at, report in told:
                report.age_ms = round((now - at) * 1000)
            request.reports.extend([report for _, report in told])
            self._sent.append((sequence, told))
        return request

    def acknowledge(self, sequence: int) -> None:
        """Messages up to `sequence` were performed."""
        sent = self._sent
        while sent and sent[0][0] <= sequence:
            _, told = sent.popleft()
            if self._ended:
                for _, report in told:
                    self._ended.pop(report.turn_id, None)

    def queue_again(self, held: Iterable[turn_pb2.Turn]) -> None:
        """After a resync: only the turns that are `held`, and every report that was not acknowledged."""
        self._abandons.clear()
        self._renewals.clear()
        self._admits.clear()
        self._admits.extend(held)
        kept = [told for _, batch in self._sent for told in batch]
        kept.extend(self._reports)
        self._sent.clear()
        self._reports.clear()
        self._reports.extend(kept)


def _take_batch(queue: deque[T]) -> list[T]:
    """Takes the first `BATCH_MAX` of `queue`."""
    if len(queue) <= BATCH_MAX:
        taken = list(queue)
        queue.clear()
        return taken
    return [queue.popleft() for _ in range(BATCH_MAX)]
