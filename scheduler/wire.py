"""Messages of the contract to events, and effects to messages. Pure.

All that comes over the wire is checked here. What is wrong is a `Fault`, a value, since one bad turn of a batch must
not cost the others. Read next: `streams` and `unary`, which carry the messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from common.ids import ID_SHAPE, DataplaneId, Model, ReplicaName, RunId, TurnId, cut_caller, is_id
from common.model_list import MODEL_CHARACTERS_MAX
from protos import scheduler_pb2, turn_pb2
from scheduler.budgets.forecast import Figure, Forecast
from scheduler.budgets.headers import LimitsTold, read
from scheduler.effects import PlaceTurn, Reason
from scheduler.events import (
    FirstTokenSeen,
    KnownLimits,
    KnownRun,
    KnownTurn,
    Phase,
    Request,
    RunClass,
    RunEnded,
    TurnEnded,
    TurnFailed,
    TurnStarted,
)
from scheduler.summary import Summary

ID_CHARACTERS_MAX = 128
TOOL_CALL_IDS_MAX = 256
TOOL_CALL_ID_CHARACTERS_MAX = 256
TRACEPARENT_CHARACTERS_MAX = 128
AGE_MS_MAX = 7 * 24 * 3600 * 1000
"""Older is as old as this: longer than anything is remembered."""
SEQUENCE_MAX = 2**63 - 1
"""Sequences are milliseconds since 1970 times 2^20, so none that was issued is near."""

FALLBACKS_MAX = 16
TOOL_CHARACTERS_MAX = 64
LIMIT_HEADERS_MAX = 64
TOKENS_MAX = 2**40
USD_MAX = 1e9

ReportEvent = TurnStarted | FirstTokenSeen | TurnEnded | TurnFailed | RunEnded


class Fault(Struct, frozen=True):
    """A message breaks the contract; `message` names the field and what was expected, for people."""

    message: str


_CLASSES: dict[int, RunClass] = {
    turn_pb2.RUN_CLASS_UNSPECIFIED: RunClass.INTERACTIVE,
    turn_pb2.RUN_CLASS_INTERACTIVE: RunClass.INTERACTIVE,
    turn_pb2.RUN_CLASS_BATCH: RunClass.BATCH,
}
_PHASES: dict[int, Phase] = {
    turn_pb2.RUN_PHASE_GENERATING: Phase.GENERATING,
    turn_pb2.RUN_PHASE_PAUSED: Phase.PAUSED,
    turn_pb2.RUN_PHASE_IDLE: Phase.IDLE,
}
_CLASSES_OUT: dict[RunClass, turn_pb2.RunClass.ValueType] = {
    RunClass.INTERACTIVE: turn_pb2.RUN_CLASS_INTERACTIVE,
    RunClass.BATCH: turn_pb2.RUN_CLASS_BATCH,
}
_PHASES_OUT: dict[Phase, turn_pb2.RunPhase.ValueType] = {
    Phase.GENERATING: turn_pb2.RUN_PHASE_GENERATING,
    Phase.PAUSED: turn_pb2.RUN_PHASE_PAUSED,
    Phase.IDLE: turn_pb2.RUN_PHASE_IDLE,
}
_KINDS_OUT: dict[str, turn_pb2.ReplicaKind.ValueType] = {
    "generative": turn_pb2.REPLICA_KIND_GENERATIVE,
    "one-shot": turn_pb2.REPLICA_KIND_ONE_SHOT,
}
_REASONS_OUT: dict[Reason, turn_pb2.RefusalReason.ValueType] = {
    Reason.UNKNOWN_MODEL: turn_pb2.REFUSAL_REASON_UNKNOWN_MODEL,
    Reason.RUN_OF_OTHER_CALLER: turn_pb2.REFUSAL_REASON_RUN_OF_OTHER_CALLER,
    Reason.NOT_SOON: turn_pb2.REFUSAL_REASON_NOT_SOON,
    Reason.NEVER_FITS: turn_pb2.REFUSAL_REASON_NEVER_FITS,
    Reason.DEADLINE: turn_pb2.REFUSAL_REASON_DEADLINE,
    Reason.OVER_BUDGET: turn_pb2.REFUSAL_REASON_OVER_BUDGET,
    Reason.NO_FALLBACK: turn_pb2.REFUSAL_REASON_NO_FALLBACK,
    Reason.MODELS_UNKNOWN: turn_pb2.REFUSAL_REASON_MODELS_UNKNOWN,
}


def read_turn(turn: turn_pb2.Turn) -> Request | Fault:
    """The request that `turn` makes. Callers are cut, tool call ids beyond the limits count as not sent."""
    turn_id, run_id, new_run_id, model = turn.turn_id, turn.run_id, turn.new_run_id, turn.model
    one_shot = turn.kind == turn_pb2.REPLICA_KIND_ONE_SHOT
    run_class = _CLASSES.get(turn.run_class)
    if not is_id(turn_id):
        return Fault(f"turn_id: expected {ID_SHAPE}")
    if run_id and not is_id(run_id):
        return Fault(f"run_id: expected {ID_SHAPE}, or nothing")
    if new_run_id and not is_id(new_run_id):
        return Fault(f"new_run_id: expected {ID_SHAPE}, or nothing")
    if not (run_id or new_run_id or one_shot):
        return Fault("new_run_id: expected an id for the run, since run_id is empty")
    if run_class is None:
        return Fault("run_class: expected RUN_CLASS_INTERACTIVE or RUN_CLASS_BATCH")
    if not 0 <= turn.kind <= turn_pb2.REPLICA_KIND_ONE_SHOT:
        return Fault("kind: expected REPLICA_KIND_GENERATIVE or REPLICA_KIND_ONE_SHOT")
    if not (model or one_shot) or len(model) > MODEL_CHARACTERS_MAX:
        return Fault(f"model: expected the name of a model, 1 to {MODEL_CHARACTERS_MAX} characters")
    request = Request(
        turn_id=TurnId(turn_id),
        run_id=RunId(run_id) if run_id else None,
        new_run_id=RunId(new_run_id or run_id),
        caller=cut_caller(turn.caller),
        run_class=run_class,
        model=Model(model),
        one_shot=one_shot,
        tool_call_ids=_tool_call_ids(turn.tool_call_ids),
    )
    return _with_limits(request, turn) if turn.HasField("prompt_bytes") else request


def _with_limits(request: Request, turn: turn_pb2.Turn) -> Request | Fault:
    """`request` with what matters where there are rate limits, deadlines or money."""
    budget_usd = turn.budget_usd if turn.HasField("budget_usd") else None
    if budget_usd is not None and not 0 <= budget_usd <= USD_MAX:
        return Fault(f"budget_usd: expected 0 to {USD_MAX:g}")
    if not all(map(is_id, turn.fallbacks)):
        return Fault(f"fallbacks: expected names of replicas, each {ID_SHAPE}")
    return replace(
        request,
        prompt_bytes=min(turn.prompt_bytes, TOKENS_MAX),
        max_tokens=min(turn.max_tokens, TOKENS_MAX) if turn.HasField("max_tokens") else None,
        wait_s_max=read_age_s(turn.wait_ms_max) if turn.HasField("wait_ms_max") else None,
        deadline_s=read_age_s(turn.deadline_ms) if turn.HasField("deadline_ms") else None,
        budget_usd=budget_usd,
        fallbacks=tuple(map(ReplicaName, turn.fallbacks[:FALLBACKS_MAX])),
        tool=turn.tool[:TOOL_CHARACTERS_MAX],
    )


def read_limits(headers: Sequence[turn_pb2.LimitHeader]) -> LimitsTold | None:
    """What an answer's headers tell of rate limits; None where there are none."""
    if not headers:
        return None
    return read([(header.name, header.value) for header in headers[:LIMIT_HEADERS_MAX]], {})


def read_known_limits(known: turn_pb2.KnownLimits) -> KnownLimits | Fault:
    """What a replica last told, of a resync."""
    if not is_id(known.replica):
        return Fault(f"limits.replica: expected {ID_SHAPE}")
    told = read_limits(known.limit_headers) or LimitsTold()
    return KnownLimits(ReplicaName(known.replica), told, read_age_s(known.age_ms))


def read_age_s(age_ms: int) -> float:
    """Seconds that a turn was held, or that something is old."""
    return min(age_ms, AGE_MS_MAX) / 1000


def read_traceparent(turn: turn_pb2.Turn) -> str:
    """The trace context to send back with the turn's answer; empty where there is none, or none that can be one."""
    traceparent = turn.traceparent
    return traceparent if len(traceparent) <= TRACEPARENT_CHARACTERS_MAX else ""


def read_report(report: turn_pb2.Report, at: float) -> ReportEvent | Fault:
    """The event that `report` tells, which is received at `at` seconds."""
    kind = report.kind
    if report.age_ms:
        at -= read_age_s(report.age_ms)
    if kind == turn_pb2.REPORT_KIND_RUN_ENDED:
        if not is_id(report.run_id):
            return Fault(f"run_id: expected {ID_SHAPE}")
        return RunEnded(at, RunId(report.run_id), cut_caller(report.caller))
    turn_id = TurnId(report.turn_id)
    if not is_id(turn_id):
        return Fault(f"turn_id: expected {ID_SHAPE}")
    if kind == turn_pb2.REPORT_KIND_STARTED:
        return TurnStarted(at, turn_id)
    if kind == turn_pb2.REPORT_KIND_FIRST_TOKEN:
        return FirstTokenSeen(at, turn_id, read_limits(report.limit_headers))
    if kind == turn_pb2.REPORT_KIND_FAILED:
        status = report.status if report.HasField("status") else None
        return TurnFailed(at, turn_id, status, read_limits(report.limit_headers))
    if kind != turn_pb2.REPORT_KIND_ENDED:
        return Fault("kind: expected one of REPORT_KIND_STARTED, _FIRST_TOKEN, _ENDED, _FAILED, _RUN_ENDED")
    return TurnEnded(
        at,
        turn_id,
        has_tool_calls=report.has_tool_calls or bool(report.tool_call_ids),
        tool_call_ids=_tool_call_ids(report.tool_call_ids),
        prompt_tokens=report.prompt_tokens if report.HasField("prompt_tokens") else None,
        completion_tokens=report.completion_tokens if report.HasField("completion_tokens") else None,
        cached_tokens=report.cached_tokens if report.HasField("cached_tokens") else None,
        limits=read_limits(report.limit_headers),
    )


def read_turn_id(text: str) -> TurnId | None:
    """The turn that `text` names, or None if it can name none."""
    return TurnId(text) if is_id(text) else None


def read_dataplane_id(text: str) -> DataplaneId | Fault:
    """The dataplane that `text` names."""
    return DataplaneId(text) if is_id(text) else Fault(f"dataplane_id: expected {ID_SHAPE}")


def read_known_run(known: turn_pb2.KnownRun) -> KnownRun | Fault:
    """A run of a resync."""
    run_class, phase = _CLASSES.get(known.run_class), _PHASES.get(known.phase)
    if not is_id(known.run_id):
        return Fault(f"runs.run_id: expected {ID_SHAPE}")
    if not is_id(known.replica):
        return Fault(f"runs.replica: expected {ID_SHAPE}")
    if run_class is None:
        return Fault("runs.run_class: expected RUN_CLASS_INTERACTIVE or RUN_CLASS_BATCH")
    if phase is None:
        return Fault("runs.phase: expected RUN_PHASE_GENERATING, RUN_PHASE_PAUSED or RUN_PHASE_IDLE")
    if known.sequence > SEQUENCE_MAX:
        return Fault("runs.sequence: expected one of a placement")
    return KnownRun(
        run_id=RunId(known.run_id),
        caller=cut_caller(known.caller),
        run_class=run_class,
        phase=phase,
        replica=ReplicaName(known.replica),
        sequence=known.sequence,
        turns_done=known.turns_done,
        age_s=read_age_s(known.age_ms),
        tool_call_ids=_tool_call_ids(known.tool_call_ids),
    )


def read_known_turn(known: turn_pb2.KnownTurn) -> KnownTurn | Fault:
    """A turn in flight of a resync."""
    request = read_turn(known.turn)
    if isinstance(request, Fault):
        return Fault(f"turns.turn.{request.message}")
    if request.run_id is None and not request.one_shot:
        return Fault("turns.turn.run_id: expected the run that the turn was placed for")
    if not is_id(known.replica):
        return Fault(f"turns.replica: expected {ID_SHAPE}")
    if known.sequence > SEQUENCE_MAX:
        return Fault("turns.sequence: expected one of a placement")
    age_s = read_age_s(known.age_ms)
    return KnownTurn(request, ReplicaName(known.replica), known.sequence, age_s, known.first_token)


def write_placement(message: turn_pb2.Placement, effect: PlaceTurn, url: str, traceparent: str) -> None:
    """Fills `message`, which is empty."""
    message.turn_id = effect.turn_id
    if effect.run_id is not None:
        message.run_id = effect.run_id
    message.replica = effect.replica
    message.url = url
    message.sequence = effect.sequence
    message.held_ms = max(0, round(effect.held_s * 1000))
    message.traceparent = traceparent


def write_refusal(
    message: turn_pb2.Refusal,
    turn_id: str,
    reason: Reason | None,
    text: str,
    traceparent: str,
    *,
    retry_after_s: float | None = None,
) -> None:
    """Fills `message`, which is empty; without a `reason` the turn broke the contract."""
    if retry_after_s is not None:
        message.retry_after_ms = math.ceil(retry_after_s * 1000)
    message.turn_id = turn_id
    message.reason = turn_pb2.REFUSAL_REASON_INVALID if reason is None else _REASONS_OUT[reason]
    message.message = text
    message.traceparent = traceparent


def write_forecast(found: Forecast) -> scheduler_pb2.ForecastResponse:
    """The message of a forecast."""

    def figure(value: Figure) -> scheduler_pb2.Figure:
        return scheduler_pb2.Figure(mean=value.mean, deviation=value.deviation, p95=value.p95)

    return scheduler_pb2.ForecastResponse(
        steps=found.steps,
        tokens=figure(found.tokens),
        usd=figure(found.usd),
        wait_s=figure(found.wait_s),
        suspensions=figure(found.suspensions),
    )


def write_status(summary: Summary) -> scheduler_pb2.WatchResponse:
    """The status message of `summary`."""
    message = scheduler_pb2.WatchResponse()
    for replica in summary.replicas:
        message.replicas.add(
            name=replica.name,
            kind=_KINDS_OUT[replica.kind],
            models=replica.models or (),
            healthy=replica.healthy,
            in_flight=replica.in_flight,
            capacity=replica.capacity,
            reserved=replica.reserved,
            engine_running=replica.engine_running,
            engine_waiting=replica.engine_waiting,
            kv_usage=replica.kv_usage,
            limits=[
                scheduler_pb2.LimitStatus(**{name: getattr(limit, name) for name in limit.__struct_fields__})
                for limit in replica.limits
            ],
            rests_s=replica.rests_s,
            batch_prefixes=replica.batch_prefixes,
        )
    for held in summary.held:
        message.held.add(
            run_class=_CLASSES_OUT[held.run_class],
            caller=held.caller,
            turns=held.turns,
            oldest_wait_ms=max(0, round(held.oldest_wait_s * 1000)),
            reason=held.reason,
        )
    for count in summary.runs:
        message.runs.add(phase=_PHASES_OUT[count.phase], run_class=_CLASSES_OUT[count.run_class], runs=count.runs)
    return message


def status_json(summary: Summary) -> Mapping[str, object]:
    """The status as `GET /status` tells it: `WatchResponse`, with enums as lower-case words and waits in seconds."""
    return {
        "replicas": [
            {
                "name": replica.name,
                "kind": replica.kind,
                "models": replica.models,
                "healthy": replica.healthy,
                "in_flight": replica.in_flight,
                "capacity": replica.capacity,
                "reserved": replica.reserved,
                "engine_running": replica.engine_running,
                "engine_waiting": replica.engine_waiting,
                "kv_usage": replica.kv_usage,
                "batch_prefixes": replica.batch_prefixes,
                "limits": [
                    {
                        "dimension": limit.dimension,
                        "limit": round(limit.limit, 6),
                        "left": round(limit.left, 6),
                        "in_flight": round(limit.in_flight, 6),
                        "fixed": limit.fixed,
                        "full_in_s": round(limit.full_in_s, 3),
                        "period_s": round(limit.period_s, 3),
                    }
                    for limit in replica.limits
                ],
                "rests_s": round(replica.rests_s, 3),
            }
            for replica in summary.replicas
        ],
        "held": [
            {
                "class": held.run_class.name.lower(),
                "caller": held.caller,
                "turns": held.turns,
                "oldest_wait_s": round(held.oldest_wait_s, 3),
                "reason": held.reason,
            }
            for held in summary.held
        ],
        "runs": [
            {"phase": count.phase.name.lower(), "class": count.run_class.name.lower(), "runs": count.runs}
            for count in summary.runs
        ],
    }


def _tool_call_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """The ids within the limits. Those beyond identify no run, which is what an id nobody knows does, too."""
    if not ids:
        return ()
    return tuple(text for text in ids[:TOOL_CALL_IDS_MAX] if 0 < len(text) <= TOOL_CALL_ID_CHARACTERS_MAX)
