"""An OpenTelemetry collector for tests: takes spans over gRPC or HTTP, as the protocol has it, and shows them.

with grpc_collector() as collector:
    settings = collector.settings      for the services' environment
    collector.named("admit")           what has come so far
"""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class TakenSpan:
    """A span as it came."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    """Empty: none."""
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    is_error: bool
    message: str


@dataclass
class Collector:
    """What has come so far."""

    settings: dict[str, str] = field(default_factory=dict)
    """Environment of services that are to send here."""
    spans: list[TakenSpan] = field(default_factory=list)

    def named(self, name: str) -> list[TakenSpan]:
        """The spans whose name begins with `name`."""
        return [span for span in self.spans if span.name.startswith(name)]

    def take(self, request: Any) -> None:
        """Takes an ExportTraceServiceRequest."""
        for group in request.resource_spans:
            resource = {each.key: _value(each.value) for each in group.resource.attributes}
            self.spans += [_taken(resource["service.name"], span) for each in group.scope_spans for span in each.spans]


@contextlib.contextmanager
def grpc_collector() -> Iterator[Collector]:
    """Takes spans over gRPC while the block runs."""
    collector = Collector()

    class Service:
        def Export(self, request: Any, _context: Any) -> Any:  # noqa: N802
            collector.take(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    with ThreadPoolExecutor(4) as workers:
        server = grpc.server(workers)
        register: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
        register(Service(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        collector.settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }
        try:
            yield collector
        finally:
            server.stop(None).wait()


@contextlib.contextmanager
def http_collector() -> Iterator[Collector]:
    """Takes spans over HTTP while the block runs."""
    collector = Collector()

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    collector.settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    try:
        yield collector
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def _taken(service: str, span: Any) -> TakenSpan:
    return TakenSpan(
        service=service,
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes={each.key: _value(each.value) for each in span.attributes},
        is_error=span.status.code == 2,
        message=span.status.message,
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
