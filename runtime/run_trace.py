"""The spans of a run, by the GenAI conventions: `invoke_agent`, and below it `chat` a turn, `execute_tool` a call.

Their ids follow from the run's own, so that what is traced after a restart hangs below the same spans, and nothing of
it needs to be journaled. A span is made when its record has become durable, which takes its time, by the runtime that
wrote it; it ended when the record says.
"""

from __future__ import annotations

from common.trace_context import TraceContext, derived_span_id, derived_trace_id, parse
from common.tracing import Attributes, Tracer
from runtime.records import AnyRecord, Ended, LostTrack, Replied, Returned, State
from runtime.run import RunState

PROVIDER = "luftpause"
"""`gen_ai.provider.name`: which provider answers is for the pool to choose."""
ERROR_CHARS_MAX = 300

_FAILURES = (State.FAILED, State.BUDGET_EXCEEDED)


class RunTraces:
    """Makes the spans of all runs."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def run(self, run: RunState) -> TraceContext:
        """The run's own span, below the one of its parent or of the request that started it."""
        above = parse(run.traceparent or "")
        trace_id = above.trace_id if above is not None else derived_trace_id(run.run_id)
        sampled = self._tracer.sampled(above, trace_id, "invoke_agent")
        return TraceContext(trace_id, derived_span_id(run.run_id), sampled)

    def turn(self, run: RunState, step: int) -> TraceContext:
        """The span of a turn, which the dataplane is told."""
        return self._below(run, "chat", f"{run.run_id}/{step}")

    def call(self, run: RunState, step: int, position: int) -> TraceContext:
        """The span of a tool call, which the tool is told. A call that a person had repeated has another one."""
        answers = run.steps[step].calls[position].answers
        return self._below(run, "execute_tool", f"{run.run_id}/{step}/{position}/{answers}")

    def observe(self, run: RunState, record: AnyRecord) -> None:
        """`record` has become durable, of a run that was as `run` before."""
        match record:
            case Replied():
                told: Attributes = {
                    "gen_ai.response.finish_reasons": (record.finish_reason,),
                    "gen_ai.usage.input_tokens": record.prompt_tokens,
                    "gen_ai.usage.output_tokens": record.completion_tokens,
                    "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
                }
                self._end_turn(run, record.duration_s, told, "", record.at)
            case Returned():
                error = "the call failed" if record.failed else ""
                self._end_call(run, record, record.duration_s, "tool_error", error)
            case LostTrack():
                self._end_call(run, record, 0.0, "outcome_unknown", record.known)
            case Ended():
                self._end_run(run, record)
            case _:
                pass

    def turn_failed(self, run: RunState, duration_s: float, error: str) -> None:
        """The run's next turn got no reply."""
        self._end_turn(run, duration_s, {"error.type": "turn_failed"}, error[:ERROR_CHARS_MAX])

    def recovered(self, run: RunState, recovery_id: str, duration_s: float) -> None:
        """The run was found unfinished and goes on."""
        parent = self.run(run)
        attributes = {"luftpause.recovery_id": recovery_id, "luftpause.run_id": run.run_id}
        span = self._tracer.begin(parent, "recover")
        self._tracer.end("recover", "internal", span, parent, duration_s=duration_s, attributes=attributes)

    def _below(self, run: RunState, name: str, key: str) -> TraceContext:
        parent = self.run(run)
        sampled = self._tracer.sampled(parent, parent.trace_id, name)
        return TraceContext(parent.trace_id, derived_span_id(key), sampled)

    def _end_turn(
        self, run: RunState, duration_s: float, told: Attributes, error: str, ended_at: float | None = None
    ) -> None:
        step, model = len(run.steps), run.order.model
        attributes = {**_shared(run, "chat"), "gen_ai.request.model": model, "luftpause.step": step, **told}
        span, parent = self.turn(run, step), self.run(run)
        self._tracer.end(
            f"chat {model}",
            "client",
            span,
            parent,
            duration_s=duration_s,
            attributes=attributes,
            error=error,
            ended_at=ended_at,
        )

    def _end_call(self, run: RunState, record: Returned | LostTrack, took_s: float, kind: str, error: str) -> None:
        call = run.steps[record.step].calls[record.call].call
        attributes = {
            **_shared(run, "execute_tool"),
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "extension",
            "luftpause.step": record.step,
            **({"error.type": kind} if error else {}),
        }
        span, parent = self.call(run, record.step, record.call), self.run(run)
        self._tracer.end(
            f"execute_tool {call.name}",
            "internal",
            span,
            parent,
            duration_s=took_s,
            attributes=attributes,
            error=error,
            ended_at=record.at,
        )

    def _end_run(self, run: RunState, record: Ended) -> None:
        failed = record.state in _FAILURES
        attributes = {
            **_shared(run, "invoke_agent"),
            "gen_ai.request.model": run.order.model,
            "luftpause.class": str(run.order.run_class),
            "luftpause.state": str(record.state),
            "luftpause.turns": run.usage.turns,
            "luftpause.tool_calls": run.usage.tool_calls,
            **({"error.type": str(record.state)} if failed else {}),
        }
        self._tracer.end(
            "invoke_agent",
            "internal",
            self.run(run),
            parse(run.traceparent or ""),
            duration_s=record.at - run.started_at,
            attributes=attributes,
            error=record.text[:ERROR_CHARS_MAX] if failed else "",
            ended_at=record.at,
        )


def _shared(run: RunState, operation: str) -> dict[str, str | int | float | bool | tuple[str, ...]]:
    """What every span of a run says."""
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.conversation.id": run.run_id,
        "luftpause.run_id": run.run_id,
    }
