"""Spans reach a collector, and one that is not there costs nothing."""

from __future__ import annotations

import contextlib
import functools
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from common import span_export
from common.trace_context import TraceContext, parse
from common.tracing import Attributes, Tracer, open_tracer
from scheduler.config import SchedulerConfig
from tests.collector import Collector, grpc_collector, http_collector
from tests.waiting import wait_until_sync

PARENT = parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")


@contextlib.contextmanager
def tracing(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> Iterator[Tracer]:
    """A tracer with these standard settings."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    tracer = open_tracer(SchedulerConfig.read(), "tested")
    assert tracer is not None
    try:
        yield tracer
    finally:
        tracer.close()


def make(tracer: Tracer, name: str = "work", parent: TraceContext | None = PARENT) -> TraceContext:
    """One span of 1.5 s."""
    span = tracer.begin(parent, name)
    attributes: Attributes = {"text": "a", "number": 7, "share": 0.5, "yes": True, "list": ("b", "c")}
    tracer.end(name, "client", span, parent, duration_s=1.5, attributes=attributes, error="it broke")
    return span


def tracer_lost(tracer: Tracer, spans: int) -> bool:
    """Whether so many spans are lost."""
    return tracer.lost == spans


@pytest.mark.parametrize("opened", [grpc_collector, http_collector])
def test_a_span_arrives_as_it_was_made(
    monkeypatch: pytest.MonkeyPatch, opened: Callable[[], contextlib.AbstractContextManager[Collector]]
) -> None:
    with opened() as collector:
        with tracing(monkeypatch, collector.settings) as tracer:
            context = make(tracer)
        [span] = collector.spans
    assert PARENT is not None
    assert (span.service, span.name, span.kind) == ("luftpause-tested", "work", 3)
    assert span.trace_id == f"{PARENT.trace_id:032x}"
    assert (span.span_id, span.parent_id) == (f"{context.span_id:016x}", f"{PARENT.span_id:016x}")
    assert span.end_ns - span.start_ns == 1_500_000_000
    assert span.attributes == {"text": "a", "number": 7, "share": 0.5, "yes": True, "list": ["b", "c"]}
    assert (span.is_error, span.message) == (True, "it broke")


@pytest.mark.parametrize(
    ("sampler", "of_a_new_trace", "of_a_sampled_parent"),
    [
        ({}, True, True),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, False, False),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, False, True),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, False, True),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}, False, False),
    ],
)
def test_sampling_follows_the_standard_settings(
    monkeypatch: pytest.MonkeyPatch, sampler: dict[str, str], of_a_new_trace: bool, of_a_sampled_parent: bool
) -> None:
    with grpc_collector() as collector:
        with tracing(monkeypatch, collector.settings | sampler) as tracer:
            assert make(tracer, "new", None).sampled == of_a_new_trace
            assert make(tracer, "below").sampled == of_a_sampled_parent
            assert PARENT is not None
            # Whoever above decided against it is followed by every sampler that looks at parents, the default one too.
            unsampled = PARENT._replace(sampled=False)
            assert not make(tracer, "unsampled", unsampled).sampled
        assert [bool(collector.named(name)) for name in ("new", "below")] == [of_a_new_trace, of_a_sampled_parent]


def test_what_no_collector_takes_is_counted_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(span_export, "EVERY_S", 0.01)
    refused = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with tracing(monkeypatch, refused) as tracer:
        for lost in (1, 2, 3):
            make(tracer)
            wait_until_sync(functools.partial(tracer_lost, tracer, lost))
    assert [record.getMessage() for record in caplog.records] == [
        "event=spans_not_exported collector=127.0.0.1:1 lost=1"
    ]


def test_a_silent_collector_delays_nobody_and_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with tracing(monkeypatch, {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}) as tracer:
            began = time.perf_counter()
            for _ in range(span_export.QUEUE_MAX * 2):
                make(tracer)
            span_s = (time.perf_counter() - began) / (span_export.QUEUE_MAX * 2)
            assert tracer.lost >= span_export.QUEUE_MAX - span_export.BATCH_MAX
            began = time.perf_counter()
        assert time.perf_counter() - began < 1.5, "close waits for a silent collector"
    assert span_s < 0.001, f"{span_s * 1e6:.0f} µs a span"


def test_a_wrong_setting_ends_the_service_with_a_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")
    with pytest.raises(SystemExit, match=r"^setting OTEL_EXPORTER_OTLP_ENDPOINT: "):
        SchedulerConfig.read()


@pytest.mark.parametrize("module", ["scheduler.__main__", "dataplane.app", "runtime.__main__"])
def test_a_service_without_tracing_loads_nothing_for_it(module: str) -> None:
    loaded = "[m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'opentelemetry.proto'))]"
    code = f"import sys, {module}; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
