"""Unary admissions: calls that wait for their turn's answer. To the core all of them are one dataplane, never lost.

Several calls may wait for one turn (a client that retries): they get the same answer, and the turn is abandoned when
the last of them is cancelled. Must not decide anything about turns. Read next: `service`, `host`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from common.ids import DataplaneId, TurnId
from protos.scheduler_pb2 import AdmitResponse
from scheduler import admit_span, wire
from scheduler.effects import PlaceTurn, RefuseTurn, TellRunEnded
from scheduler.events import Request, RunEnded, TurnAbandoned, TurnArrived
from scheduler.host import Host

UNARY = DataplaneId("(unary)")
"""No id that a dataplane could have."""


@dataclass(slots=True)
class _Waiting:
    """The calls that wait for one turn."""

    traceparent: str
    answer: asyncio.Future[AdmitResponse] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    calls: int = 0


class UnaryAdmissions:
    """All waiting calls. An outlet of the host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._waiting: dict[TurnId, _Waiting] = {}
        host.attach(UNARY, self)

    async def admit(self, asked: Request, held_s: float, traceparent: str) -> AdmitResponse:
        """The turn's placement or refusal, however long that takes. Cancelled, it abandons the turn."""
        turn_id = asked.turn_id
        waiting = self._waiting.get(turn_id)
        if waiting is None or waiting.answer.done():
            waiting = self._waiting[turn_id] = _Waiting(traceparent)
        waiting.calls += 1
        try:
            self._host.tell((TurnArrived(self._host.now(), UNARY, asked, held_s),))
            return await asyncio.shield(waiting.answer)
        except asyncio.CancelledError:
            if waiting.calls == 1:
                self._host.tell((TurnAbandoned(self._host.now(), turn_id),))
            raise
        finally:
            waiting.calls -= 1
            if waiting.calls == 0 and self._waiting.get(turn_id) is waiting:
                del self._waiting[turn_id]

    def place(self, effect: PlaceTurn, url: str) -> None:
        """See `host.Outlet`."""
        waiting = self._waiting.get(effect.turn_id)
        if waiting is not None and not waiting.answer.done():
            response = AdmitResponse()
            wire.write_placement(response.placement, effect, url, waiting.traceparent)
            if waiting.traceparent and self._host.tracer is not None:
                admit_span.placed(self._host.tracer, effect, waiting.traceparent)
            waiting.answer.set_result(response)

    def refuse(self, effect: RefuseTurn) -> None:
        """See `host.Outlet`."""
        waiting = self._waiting.get(effect.turn_id)
        if waiting is not None and not waiting.answer.done():
            response = AdmitResponse()
            refusal = response.refusal
            traceparent, after_s = waiting.traceparent, effect.retry_after_s
            wire.write_refusal(
                refusal, effect.turn_id, effect.reason, effect.message, traceparent, retry_after_s=after_s
            )
            if traceparent and self._host.tracer is not None:
                admit_span.refused(self._host.tracer, effect, traceparent)
            waiting.answer.set_result(response)

    def end_run(self, event: RunEnded | TellRunEnded) -> None:
        """Nobody here remembers runs."""
