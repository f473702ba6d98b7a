"""Unary admissions: calls that wait for their turn's answer. To the core all of them are one dataplane, never lost.

Several calls may wait for one turn (a client that retries): they get the same answer, and the turn is abandoned when
the last of them is cancelled. Must not decide anything about turns. Read next: `service`, `host`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from common.ids import Caller, DataplaneId, TurnId
from protos.scheduler_pb2 import AdmitResponse
from scheduler import admit_span, wire
from scheduler.effects import PlaceTurn, RefuseTurn, TellRunEnded
from scheduler.events import Request, RunEnded, TurnAbandoned, TurnArrived
from scheduler.host import Host
from scheduler.turns import refuse_foreign

UNARY = DataplaneId("(unary)")
"""No id that a dataplane could have."""


@dataclass(slots=True)
class _Waiting:
    """The calls that wait for one turn."""

    caller: Caller
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
        turn_id, caller = asked.turn_id, asked.caller
        waiting = self._waiting.get(turn_id)
        if waiting is None or waiting.answer.done():
            waiting = self._waiting[turn_id] = _Waiting(caller, traceparent)
        elif waiting.caller != caller:  # the core would say so too, but to the calls that wait
            return _refusal(refuse_foreign(UNARY, turn_id), traceparent)
        waiting.calls += 1
        try:
            self._host.tell((TurnArrived(self._host.now(), UNARY, asked, held_s),))
            return await asyncio.shield(waiting.answer)
        except asyncio.CancelledError:
            if waiting.calls == 1:
                self._host.tell((TurnAbandoned(self._host.now(), UNARY, turn_id, caller),))
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
            if waiting.traceparent and self._host.tracer is not None:
                admit_span.refused(self._host.tracer, effect, waiting.traceparent)
            waiting.answer.set_result(_refusal(effect, waiting.traceparent))

    def end_run(self, event: RunEnded | TellRunEnded) -> None:
        """Nobody here remembers runs."""


def _refusal(effect: RefuseTurn, traceparent: str) -> AdmitResponse:
    response = AdmitResponse()
    reason, message, after_s = effect.reason, effect.message, effect.retry_after_s
    wire.write_refusal(response.refusal, effect.turn_id, reason, message, traceparent, retry_after_s=after_s)
    return response
