"""`POST /v1/decide`: one small question to a model, answered as one turn. Read next: `decision`, `whole_turn`.

Without labels it is a one-shot turn, which belongs to no run. With labels it is a turn of a run of its own, which ends
with it: whatever run the client names, a decision does not touch it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace

import msgspec

from dataplane import decision, errors, whole_turn
from dataplane.decision import DecideRequest, Decision
from dataplane.identity import Identity
from dataplane.limits import TurnLimits
from dataplane.proxy import Proxy
from dataplane.request import Answer, Request
from dataplane.scheduler_client import RECONNECT_S
from dataplane.turn_trace import TurnTrace, passed_on
from dataplane.upstream import Endpoint
from dataplane.work import as_answer
from protos import scheduler_pb2, turn_pb2

KNOWN_S = 2.0
"""How long the list of replicas is believed: as long as the scheduler itself believes its probes."""
REPLICAS_S_MAX = 5.0
"""How long the scheduler may take to tell it."""
MODELS_WITHIN_S = 60.0
"""How long replicas may take to tell their models; the scheduler waits as long for them with turns that name theirs."""


def _classify(endpoint: Endpoint) -> bytes:
    return endpoint.request_line("/classify", versioned=False)


def _choose(endpoint: Endpoint) -> bytes:
    return endpoint.request_line("/chat/completions")


class Decisions:
    """Answers decisions."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._replicas: list[scheduler_pb2.ReplicaStatus] | None = None
        """None: the scheduler has not told them yet."""
        self._known_until = 0.0
        self._asking = asyncio.Lock()
        self._waiting: Counter[str] = Counter()
        """Decisions by caller that name no model and do not know one yet."""

    def waiting_of(self, caller: str) -> int:
        """How many of a caller wait for the name of a model, which is before they are turns that are held."""
        return self._waiting[caller]

    async def decide(self, request: Request, identity: Identity) -> Answer:
        """The answer to `request`, whose body is whole. To be cancelled means that the client left."""
        body = request.take_body()
        self._proxy.metrics.bytes_in += len(body)
        asked = decision.parse(body)
        if isinstance(asked, errors.ApiError):
            return as_answer(asked, "")
        kind = turn_pb2.REPLICA_KIND_GENERATIVE if asked.labels else turn_pb2.REPLICA_KIND_ONE_SHOT
        model = asked.model or await self._default_model(kind, identity.caller)
        if isinstance(model, errors.ApiError):
            return as_answer(model, "")
        trace = TurnTrace(self._proxy.tracer, request) if self._proxy.tracer is not None else None
        turn = turn_pb2.Turn(
            turn_id=self._proxy.new_turn_id(),
            new_run_id=self._proxy.new_run_id() if asked.labels else "",
            caller=identity.caller,
            run_class=identity.run_class,
            kind=kind,
            model=model,
            traceparent=trace.traceparent if trace is not None else passed_on(request),
        )
        limits = replace(identity.limits, budget_usd=None)  # it is a run's, and a decision touches none
        reply = await self._ask(turn, asked, limits, trace)
        if isinstance(reply, errors.ApiError):
            return as_answer(reply, "")
        if reply.head.status >= 300:
            return _as_it_is(reply)
        return _told(asked, model, reply)

    async def _ask(
        self, turn: turn_pb2.Turn, asked: DecideRequest, limits: TurnLimits, trace: TurnTrace | None
    ) -> whole_turn.WholeReply | errors.ApiError:
        if asked.labels:
            body = decision.choose_body(asked.input, asked.labels, turn.model)
            self._proxy.pool.describe_limits(turn, limits, body, 1)
            return await whole_turn.perform(self._proxy, turn, _choose, body, trace)
        body = decision.classify_body(asked.input, turn.model)
        self._proxy.pool.describe_limits(turn, limits, body, None)
        return await whole_turn.perform(self._proxy, turn, _classify, body, trace)

    async def _default_model(self, kind: turn_pb2.ReplicaKind.ValueType, caller: str) -> str | errors.ApiError:
        """The first model of a healthy replica of `kind`, else of any. Waits while it is not known, as a held turn, and
        no longer than replicas may take to tell it once the scheduler tells of them."""
        told_by = None
        self._waiting[caller] += 1
        try:
            while True:
                await self._look()
                able = [each for each in self._replicas or () if each.kind == kind]
                models = sorted((not each.healthy, model) for each in able for model in each.models)
                if models:
                    return models[0][1]
                if self._replicas is not None and not able:
                    return errors.no_replica(kind == turn_pb2.REPLICA_KIND_ONE_SHOT)
                if self._replicas is not None:
                    told_by = told_by or time.monotonic() + MODELS_WITHIN_S
                    if time.monotonic() >= told_by:
                        return errors.models_unknown(each.name for each in able)
                await asyncio.sleep(RECONNECT_S)
        finally:
            self._waiting[caller] -= 1
            self._waiting += Counter()  # forgets callers of whom none waits

    async def _look(self) -> None:
        """Brings the list of replicas up to date, if the scheduler answers."""
        async with self._asking:
            if time.monotonic() >= self._known_until:
                found = await self._proxy.scheduler.replicas(REPLICAS_S_MAX)
                if found is not None:
                    self._replicas, self._known_until = found, time.monotonic() + KNOWN_S


def _told(asked: DecideRequest, model: str, reply: whole_turn.WholeReply) -> Answer:
    """The decision that an engine's answer holds."""
    told: Decision | errors.ApiError | None
    if asked.labels:
        told = decision.read_choice(reply.body, asked.labels, model, reply.replica)
    else:
        told = decision.read_classification(reply.body, model)
    if told is None:
        what = "completion" if asked.labels else "classification"
        told = errors.engine_failed(reply.replica, f"its answer is no {what}")
    return as_answer(told, "") if isinstance(told, errors.ApiError) else Answer(200, msgspec.json.encode(told))


def _as_it_is(reply: whole_turn.WholeReply) -> Answer:
    """An engine's refusal: its status, body and headers, `Retry-After` among them."""
    lines = [line for line in reply.head.lines if not line.lower().startswith(b"content-type:")]
    return Answer(reply.head.status, reply.body, reply.head.content_type or b"application/json", b"".join(lines))
