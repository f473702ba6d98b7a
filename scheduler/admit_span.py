"""The span of an admission: from the turn's arrival to its placement or refusal, below the span that asked for it.

Only turns that carry a trace context have one. Made when the answer is, from times that the core keeps anyhow.
"""

from __future__ import annotations

from common.trace_context import parse
from common.tracing import Tracer
from scheduler.effects import PlaceTurn, RefuseTurn

NAME = "admit"


def placed(tracer: Tracer, effect: PlaceTurn, traceparent: str) -> None:
    """The turn of `traceparent` was placed."""
    parent = parse(traceparent)
    if parent is None:
        return
    attributes = {
        "luftpause.turn_id": effect.turn_id,
        "luftpause.run_id": effect.run_id or "",
        "luftpause.replica": effect.replica,
        "luftpause.held_ms": max(0, round(effect.held_s * 1000)),
    }
    span = tracer.begin(parent, NAME)
    tracer.end(NAME, "internal", span, parent, duration_s=effect.held_s, attributes=attributes)


def refused(tracer: Tracer, effect: RefuseTurn, traceparent: str) -> None:
    """The turn of `traceparent` was refused."""
    parent = parse(traceparent)
    if parent is None:
        return
    attributes = {"luftpause.turn_id": effect.turn_id, "error.type": effect.reason.name.lower()}
    span = tracer.begin(parent, NAME)
    tracer.end(NAME, "internal", span, parent, duration_s=0.0, attributes=attributes, error=effect.message)
