"""The spans of a proxied turn: the turn itself, from its arrival to its end, and below it the engine's request.

Both are made at the turn's end, from times that were taken anyhow. What comes before is an id each, since scheduler and
engine are told their parent. Without tracing there is none of this, and a client's own `traceparent` goes through. The
one line that a turn has in the log, at level debug, is here too.
"""

from __future__ import annotations

import logging
import time

from common.trace_context import TraceContext, parse, trace_id_of
from common.tracing import Tracer
from dataplane.meter import Meter
from dataplane.metrics import CLASSES
from dataplane.request import Request
from dataplane.tickets import Ticket

log = logging.getLogger(__name__)

_HEADER = b"traceparent"
_HEADER_CHARS_MAX = 256
_MODEL_CHARS_MAX = 64
"""Of a model's name in a span's."""


class TurnTrace:
    """One turn's. `ttft_s` is set by the turn when it knows it."""

    __slots__ = ("_context", "_engine", "_parent", "_tracer", "ttft_s")

    def __init__(self, tracer: Tracer, request: Request) -> None:
        """Takes the client's `traceparent` out of what the engine is shown."""
        header = request.headers.get(_HEADER)
        self._tracer = tracer
        self._parent = parse(header.decode("latin-1")) if header is not None else None
        self._context = tracer.begin(self._parent, "turn")
        self._engine: TraceContext | None = None
        self.ttft_s = 0.0
        if header is not None:
            request.lines = [line for line in request.lines if line[: len(_HEADER)].lower() != _HEADER]

    @property
    def traceparent(self) -> str:
        """What the scheduler is told."""
        return self._context.traceparent

    def engine_line(self) -> bytes:
        """The header that the engine is shown, with its line end."""
        if self._engine is None:
            self._engine = self._tracer.begin(self._context, "engine")
        return b"traceparent: %b\r\n" % self._engine.traceparent.encode()

    def over(self, ticket: Ticket, outcome: str, problem: str, meter: Meter | None) -> None:
        """The turn is over. `meter` has read the reply, if one began."""
        if not self._context.sampled:
            return
        now, message = time.monotonic(), ticket.message
        model = message.model
        attributes: dict[str, str | int | float | bool | tuple[str, ...]] = {
            "gen_ai.request.model": model,
            "luftpause.turn_id": ticket.turn_id,
            "luftpause.run_id": ticket.run_id or message.run_id,
            "luftpause.class": CLASSES[message.run_class],
            "luftpause.outcome": outcome,
        }
        if ticket.placed_at:
            attributes["luftpause.replica"] = ticket.replica
            attributes["luftpause.held_ms"] = round((ticket.placed_at - ticket.arrived_at) * 1000)
        if self.ttft_s:
            attributes["gen_ai.response.time_to_first_chunk"] = self.ttft_s
        if meter is not None:
            attributes |= _reply(meter)
        if problem:
            attributes["error.type"] = outcome
        if self._engine is not None:
            told = {"luftpause.replica": ticket.replica, "gen_ai.request.model": model}
            took_s = now - ticket.placed_at
            self._tracer.end(
                "engine", "client", self._engine, self._context, duration_s=took_s, attributes=told, error=problem
            )
        self._tracer.end(
            f"turn {model[:_MODEL_CHARS_MAX]}",
            "server",
            self._context,
            self._parent,
            duration_s=now - ticket.arrived_at,
            attributes=attributes,
            error=problem,
        )


def _reply(meter: Meter) -> dict[str, str | int | float | bool | tuple[str, ...]]:
    told: dict[str, str | int | float | bool | tuple[str, ...]] = {}
    if meter.finish_reason:
        told["gen_ai.response.finish_reasons"] = (meter.finish_reason,)
    usage = meter.usage
    if usage is not None:
        for name, tokens in (
            ("gen_ai.usage.input_tokens", usage.prompt_tokens),
            ("gen_ai.usage.output_tokens", usage.completion_tokens),
            ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
        ):
            if tokens is not None:
                told[name] = tokens
    return told


def passed_on(request: Request) -> str:
    """The trace context that the scheduler is told where the dataplane itself has none."""
    return request.headers.get(_HEADER, b"").decode("latin-1")[:_HEADER_CHARS_MAX]


def log_turn(ticket: Ticket, outcome: str, duration_s: float) -> None:
    """The line of a turn that is over."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug(
            "turn over turn=%s run=%s class=%s replica=%s outcome=%s duration_s=%.3f trace_id=%s",
            ticket.turn_id,
            ticket.run_id or ticket.message.run_id,
            CLASSES[ticket.message.run_class],
            ticket.replica,
            outcome,
            duration_s,
            trace_id_of(ticket.traceparent),
        )
