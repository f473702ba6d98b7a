"""Sends spans to an OTLP collector, in batches, from a thread of its own. Loaded only where tracing is on.

The SDK encodes, samples, and sends by its standard settings. Its own pipeline is not used: there a span costs a turn
four times as much, and a collector that is down is reported again and again. Here spans wait in a queue of bounded
length, what finds it full is counted, and the log has one line when sending begins to fail and one when it is over.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import urllib.parse
import uuid

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision, ParentBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from common.trace_context import TraceContext
from common.tracing import Span

QUEUE_MAX = 8_192
"""Spans that wait; at about a kilobyte each."""
BATCH_MAX = 512
"""Spans in one message."""
EVERY_S = 1.0
"""How long a span waits for company."""
CLOSE_S_MAX = 0.7
"""How long the last spans may take; then what is being sent is broken off."""
BREAK_OFF_S_MAX = 0.2
GRPC_PORT = 4317
"""The port by which gRPC is meant where no protocol is set."""

_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}
_FLAGS = {True: TraceFlags(TraceFlags.SAMPLED), False: TraceFlags(TraceFlags.DEFAULT)}
_FINE = Status(StatusCode.UNSET)

log = logging.getLogger("tracing")


class OtlpExport:
    """See `tracing.Export`."""

    def __init__(self, service: str, endpoint: str, protocol: str | None) -> None:
        """Raises ValueError or the like where a standard setting is wrong."""
        # Its lines about a collector that is down would come with every batch.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        names = {"service.name": f"luftpause-{service}", "service.instance.id": str(uuid.uuid4())}
        self._resource = Resource.create({"service.namespace": "luftpause", **names})
        self._scope = InstrumentationScope("luftpause")
        self._sampler = TracerProvider(resource=self._resource, shutdown_on_exit=False).sampler
        self._follows_parents = isinstance(self._sampler, ParentBased)
        parts = urllib.parse.urlsplit(endpoint)
        self._address = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        self._exporter = _exporter(protocol or ("grpc" if parts.port == GRPC_PORT else "http/protobuf"))
        self._queue: collections.deque[Span] = collections.deque()
        self._wake = threading.Event()
        self._closing = False
        self._fails = False
        self.lost = 0
        """See `tracing.Export`."""
        self._thread = threading.Thread(target=self._serve, name="spans", daemon=True)
        self._thread.start()

    def keep(self, span: Span) -> None:
        """See `tracing.Export`."""
        waiting = len(self._queue)
        if waiting >= QUEUE_MAX:
            self.lost += 1
            return
        self._queue.append(span)
        if waiting == BATCH_MAX:
            self._wake.set()

    def sampled(self, parent: TraceContext | None, trace_id: int, name: str) -> bool:
        """See `tracing.Export`."""
        if parent is not None and self._follows_parents:
            return parent.sampled
        return self._sampler.should_sample(None, trace_id, name).decision is Decision.RECORD_AND_SAMPLE

    def close(self) -> None:
        """See `tracing.Export`."""
        self._closing = True
        self._wake.set()
        self._thread.join(CLOSE_S_MAX)
        # Ends the pauses between its tries; a try that hangs is left to the end of the process.
        ending = threading.Thread(target=self._exporter.shutdown, name="spans-end", daemon=True)
        ending.start()
        ending.join(BREAK_OFF_S_MAX)

    def _serve(self) -> None:
        while not self._closing:
            self._wake.wait(EVERY_S)
            self._wake.clear()
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._queue and not (self._closing and self._fails):
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
            self._send(batch)

    def _send(self, batch: list[Span]) -> None:
        done = SpanExportResult.FAILURE
        with contextlib.suppress(Exception):  # whatever a collector does must not end the thread
            done = self._exporter.export([self._readable(span) for span in batch])
        failed = done is not SpanExportResult.SUCCESS
        if failed:
            self.lost += len(batch)
        if failed != self._fails:
            self._fails = failed
            level, what = (logging.WARNING, "not_exported") if failed else (logging.INFO, "exported_again")
            log.log(level, "event=spans_%s collector=%s lost=%d", what, self._address, self.lost)

    def _readable(self, span: Span) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            kind=_KINDS[span.kind],
            context=_span_context(span.context),
            parent=_span_context(span.parent) if span.parent is not None else None,
            resource=self._resource,
            instrumentation_scope=self._scope,
            start_time=span.start_ns,
            end_time=span.end_ns,
            attributes=span.attributes,
            status=Status(StatusCode.ERROR, span.error) if span.error else _FINE,
        )


def _exporter(protocol: str) -> SpanExporter:
    """The SDK's, which reads endpoint, headers, timeout and certificates from the standard settings."""
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        return OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415

    return trace_exporter.OTLPSpanExporter()


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=_FLAGS[context.sampled])
