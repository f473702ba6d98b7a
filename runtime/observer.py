"""What is told of runs to metrics and spans, in one place: as records become durable, and the little that has none.

Must not raise, wait, or change a run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from common.trace_context import parse
from common.tracing import Tracer
from runtime.metrics import Metrics
from runtime.records import AnyRecord
from runtime.refusals import RefusedError
from runtime.run import RunState
from runtime.run_trace import ERROR_CHARS_MAX, RunTraces


class Observer:
    """Of one runtime. Without a tracer, the trace context of a run's request is passed on as it came."""

    def __init__(self, tracer: Tracer | None) -> None:
        self.metrics = Metrics()
        self._tracer = tracer
        self._traces = RunTraces(tracer) if tracer is not None else None

    @property
    def spans_lost(self) -> int:
        """Spans that no collector took."""
        return self._tracer.lost if self._tracer is not None else 0

    def observe(self, run: RunState, record: AnyRecord) -> None:
        """`record` has become durable, of a run that was as `run` before."""
        self.metrics.observe(run, record)
        if self._traces is not None:
            self._traces.observe(run, record)

    def turn_failed(self, run: RunState, duration_s: float, error: str) -> None:
        """The run's next turn got no reply."""
        self.metrics.turns[run.order.run_class, False] += 1
        if self._traces is not None:
            self._traces.turn_failed(run, duration_s, error)

    def recovered(self, run: RunState, recovery_id: str, duration_s: float) -> None:
        """The run was found unfinished at the start, and goes on."""
        self.metrics.recovered += 1
        if self._traces is not None:
            self._traces.recovered(run, recovery_id, duration_s)

    @contextlib.contextmanager
    def decision(self, run_class: str, traceparent: str | None) -> Iterator[str | None]:
        """Within it a decision is made, asked for by a request with `traceparent`; gives what the dataplane is told."""
        if self._tracer is None:
            yield traceparent
            return
        above = parse(traceparent or "")
        span, began, error = self._tracer.begin(above, "decide"), time.monotonic(), ""
        try:
            yield span.traceparent
        except RefusedError as refusal:
            error = str(refusal)[:ERROR_CHARS_MAX]
            raise
        finally:
            told = {"luftpause.class": run_class, **({"error.type": "no_answer"} if error else {})}
            took_s = time.monotonic() - began
            self._tracer.end("decide", "client", span, above, duration_s=took_s, attributes=told, error=error)

    def child_traceparent(self, parent: RunState, traceparent: str | None) -> str | None:
        """The trace context of a run that is started below `parent` by a request with `traceparent`."""
        return traceparent if self._traces is None else self._traces.run(parent).traceparent

    def turn_traceparent(self, run: RunState, step: int) -> str | None:
        """What the dataplane is told with the turn of this step."""
        return run.traceparent if self._traces is None else self._traces.turn(run, step).traceparent

    def call_traceparent(self, run: RunState, step: int, position: int) -> str | None:
        """What the tool is told with this call."""
        return run.traceparent if self._traces is None else self._traces.call(run, step, position).traceparent
