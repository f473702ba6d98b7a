"""Spans of a service: begun and ended cheaply, exported elsewhere. Nothing of OpenTelemetry is loaded unless it is on.

A span costs its service two calls: `begin` draws an id and asks the sampler, `end` keeps a tuple of times that were
taken anyhow. Encoding and sending are `span_export`'s, in a thread of its own. A service without tracing has no Tracer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from random import getrandbits
from typing import Literal, NamedTuple, Protocol

from common.config import ServiceConfig
from common.trace_context import TraceContext

Kind = Literal["internal", "server", "client"]
Attributes = Mapping[str, str | int | float | bool | tuple[str, ...]]


class Span(NamedTuple):
    """A span that is over."""

    name: str
    kind: Kind
    context: TraceContext
    parent: TraceContext | None
    start_ns: int
    """Nanoseconds since 1970, as `end_ns`."""
    end_ns: int
    attributes: Attributes
    error: str
    """Why it failed, for people; empty: it did not."""


class Export(Protocol):
    """Where spans go. Calls return at once."""

    @property
    def lost(self) -> int:
        """Spans that reached nobody, since the start."""

    def keep(self, span: Span) -> None:
        """Takes a span, or counts it as lost where too many wait."""

    def sampled(self, parent: TraceContext | None, trace_id: int, name: str) -> bool:
        """Whether a span is to be kept, by the standard settings."""

    def close(self) -> None:
        """Sends what waits, for a second at most."""


class Tracer:
    """What a service makes spans with."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self.sampled: Callable[[TraceContext | None, int, str], bool] = export.sampled
        """Whether a span of this parent, trace id and name is to be kept; to be asked once for each."""

    @property
    def lost(self) -> int:
        """Spans that reached nobody, since the start."""
        return self._export.lost

    def begin(self, parent: TraceContext | None, name: str) -> TraceContext:
        """A new span's context: below `parent`, or of a new trace."""
        trace_id = parent.trace_id if parent is not None else getrandbits(128) or 1
        return TraceContext(trace_id, getrandbits(64) or 1, self.sampled(parent, trace_id, name))

    def end(
        self,
        name: str,
        kind: Kind,
        context: TraceContext,
        parent: TraceContext | None,
        *,
        duration_s: float,
        attributes: Attributes,
        error: str = "",
        ended_at: float | None = None,
    ) -> None:
        """The span is over, after `duration_s`: since `ended_at`, in seconds since 1970, or just now."""
        if context.sampled:
            end_ns = time.time_ns() if ended_at is None else int(ended_at * 1e9)
            start_ns = end_ns - int(max(duration_s, 0.0) * 1e9)
            self._export.keep(Span(name, kind, context, parent, start_ns, end_ns, attributes, error))

    def close(self) -> None:
        """Sends what waits; blocks for a second at most. After the service's last span."""
        self._export.close()


def open_tracer(config: ServiceConfig, service: str) -> Tracer | None:
    """The tracer of `service`; None where no endpoint is configured. Ends the process with one line if a standard
    setting (`OTEL_…`) is wrong."""
    if config.otlp_endpoint is None:
        return None
    from common.span_export import OtlpExport  # noqa: PLC0415 - costs memory and time only where it is wanted

    try:
        return Tracer(OtlpExport(service, config.otlp_endpoint, config.otlp_protocol))
    except (ValueError, RuntimeError, OSError) as error:
        sys.exit(f"setting OTEL_…: {error}")
