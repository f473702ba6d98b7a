"""W3C trace context: which span a piece of work belongs to, as `traceparent` carries it. Pure.

Ids of spans that must be the same after a restart are derived from names; others are drawn by `tracing`.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

TRACE_ID_CHARS = slice(3, 35)
"""Where the trace id stands in a traceparent."""

_CHARS = 55
"""Of the four fields that every version has."""
_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class TraceContext(NamedTuple):
    """A span, as those below it know it."""

    trace_id: int
    span_id: int
    sampled: bool

    @property
    def traceparent(self) -> str:
        """As it is sent."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.sampled else '00'}"


def parse(traceparent: str) -> TraceContext | None:
    """What `traceparent` says; None where it says nothing that can be used (W3C Trace Context, 3.2.2)."""
    found = _SHAPE.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))
    return context if context.trace_id and context.span_id else None


def usable(told: object) -> str | None:
    """What a client told as `traceparent`, as it may be sent on; None where it says nothing that can be used."""
    return told[:_CHARS] if isinstance(told, str) and parse(told) is not None else None


def trace_id_of(traceparent: str) -> str:
    """The trace's id, for a log line; empty where there is none."""
    return traceparent[TRACE_ID_CHARS] if parse(traceparent) is not None else ""


def derived_trace_id(name: str) -> int:
    """The trace id of what `name` names, always the same."""
    return int.from_bytes(_digest(name)[:16]) or 1


def derived_span_id(name: str) -> int:
    """The span id of what `name` names, always the same."""
    return int.from_bytes(_digest(name)[16:24]) or 1


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
