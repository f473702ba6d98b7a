"""The gRPC surface: the Scheduler service, standard health and reflection, the token.

Must not decide anything; each method reads, tells the host, answers.
Read next: `streams` for Dispatch, `unary` for Admit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.auth import Guard, TokenInterceptor
from common.grpc_options import message_options
from common.ids import ID_SHAPE, RunId, cut_caller, is_id
from common.tls import PLAIN, Tls
from protos import scheduler_pb2, scheduler_pb2_grpc
from protos.scheduler_pb2 import (
    AdmitRequest,
    AdmitResponse,
    DispatchRequest,
    ForecastRequest,
    ForecastResponse,
    ReportRequest,
    ReportResponse,
    ResyncRequest,
    ResyncResponse,
    WatchRequest,
    WatchResponse,
)
from scheduler import wire
from scheduler.budgets.forecast import STEPS_MAX
from scheduler.events import DataplaneResynced
from scheduler.host import Host
from scheduler.money import forecast_of
from scheduler.resync_parts import ResyncParts, taken_over
from scheduler.streams import Dispatch
from scheduler.unary import UnaryAdmissions

SERVICE_NAME = scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"].full_name
CALLERS_OWN: frozenset[str] = frozenset()
"""What a bound token is let do: nothing. Who admits and reports is believed about engines, which all callers share."""
MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""A resync's part, or a batch after an outage, may be large; a dataplane sends no larger ones."""
FORECAST_STEPS = 10
WATCH_INTERVAL_MS = 2_000
WATCH_INTERVAL_MS_MIN = 100
WATCH_INTERVAL_MS_MAX = 24 * 3600 * 1000

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # else a second scheduler would share the port unnoticed
    *message_options(MESSAGE_BYTES_MAX),
    # A dataplane that vanished without a word is noticed within 15 s, when its turns in flight begin to wait for it.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients may ping as often as they like.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
    ("grpc.http2.max_ping_strikes", 0),
)

Context = grpc.aio.ServicerContext[Any, Any]


class SchedulerService(scheduler_pb2_grpc.SchedulerServicer):
    """The methods of `scheduler.proto`, by its names."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._dispatch = Dispatch(host)
        self._admissions = UnaryAdmissions(host)

    async def Admit(self, request: AdmitRequest, context: Context) -> AdmitResponse:  # noqa: N802
        """INVALID_ARGUMENT for a turn that breaks the contract."""
        asked = wire.read_turn(request.turn)
        if isinstance(asked, wire.Fault):
            await self._refuse(context, f"turn.{asked.message}")
        turn = request.turn
        return await self._admissions.admit(asked, wire.read_age_s(turn.held_ms), wire.read_traceparent(turn))

    async def Report(  # noqa: N802
        self, request_iterator: AsyncIterator[ReportRequest], context: Context
    ) -> ReportResponse:
        """INVALID_ARGUMENT at the first report that breaks the contract; those before it stay taken."""
        taken = 0
        async for request in request_iterator:
            event = wire.read_report(request.report, self._host.now())
            if isinstance(event, wire.Fault):
                await self._refuse(context, f"report {taken + 1}: {event.message}")
            self._host.tell((event,))
            taken += 1
        return ReportResponse(taken=taken)

    async def Resync(  # noqa: N802
        self, request_iterator: AsyncIterator[ResyncRequest], context: Context
    ) -> ResyncResponse:
        """INVALID_ARGUMENT, and nothing applied, if any part breaks the contract."""
        parts = ResyncParts()
        dataplane = None
        async for request in request_iterator:
            named = wire.read_dataplane_id(request.dataplane_id)
            if isinstance(named, wire.Fault):
                await self._refuse(context, named.message)
            if dataplane not in (None, named):
                await self._refuse(context, "dataplane_id: expected the same in every part")
            dataplane = named
            faults = parts.add(request)
            if faults:
                await self._refuse(context, faults[0].message)
            if parts.is_too_large:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, parts.limit)
        if dataplane is None:
            await self._refuse(context, "dataplane_id: expected at least one part that names it")
        if self._host.is_attached(dataplane):
            problem = "dataplane_id: expected one without an open Dispatch stream, which carries its own resync"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
        runs, turns = parts.whole()
        self._host.tell((DataplaneResynced(self._host.now(), dataplane, runs, turns, parts.limits()),))
        runs_taken, turns_taken = taken_over(self._host.state, dataplane, runs, turns)
        return ResyncResponse(runs=runs_taken, turns=turns_taken)

    async def Dispatch(  # type: ignore[override]  # noqa: N802 - the stubs know no method that reads and writes by itself
        self, _request_iterator: AsyncIterator[DispatchRequest], context: Context
    ) -> None:
        """See `streams`."""
        await self._dispatch.serve(context)

    async def Forecast(self, request: ForecastRequest, context: Context) -> ForecastResponse:  # noqa: N802
        """INVALID_ARGUMENT for what is no run or too many steps, NOT_FOUND for a run of which nothing is known."""
        run_id, caller, steps = request.run_id, cut_caller(request.caller), request.steps or FORECAST_STEPS
        if not is_id(run_id):
            await self._refuse(context, f"run_id: expected {ID_SHAPE}")
        if steps > STEPS_MAX:
            await self._refuse(context, f"steps: expected 1 to {STEPS_MAX}, or 0 for {FORECAST_STEPS}")
        found = forecast_of(self._host.state, RunId(run_id), caller, steps, self._host.now())
        if found is None:
            problem = "run_id: expected a run of this caller with a turn that ended at a replica with limits or prices"
            await context.abort(grpc.StatusCode.NOT_FOUND, problem)
        return wire.write_forecast(found)

    async def Watch(self, request: WatchRequest, context: Context) -> AsyncIterator[WatchResponse]:  # noqa: N802
        """INVALID_ARGUMENT for an interval out of bounds."""
        interval_ms = request.interval_ms or WATCH_INTERVAL_MS
        if not WATCH_INTERVAL_MS_MIN <= interval_ms <= WATCH_INTERVAL_MS_MAX:
            expected = f"expected {WATCH_INTERVAL_MS_MIN} to {WATCH_INTERVAL_MS_MAX}, or 0 for {WATCH_INTERVAL_MS}"
            await self._refuse(context, f"interval_ms: {expected}")
        while True:
            yield wire.write_status(self._host.summary())
            await asyncio.sleep(interval_ms / 1000)

    async def _refuse(self, context: Context, problem: str) -> NoReturn:
        self._host.tally.invalid += 1
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)


async def start(host: Host, address: str, guard: Guard, tls: Tls = PLAIN) -> tuple[grpc.aio.Server, int]:
    """Starts the gRPC server on `address` (host:port) and returns it and its port. Raises RuntimeError if it cannot."""
    server = grpc.aio.server(interceptors=(TokenInterceptor(guard, CALLERS_OWN),), options=_OPTIONS)
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(SchedulerService(host), server)
    serving = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(serving, server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    port = tls.listen(server, address)
    await server.start()
    for name in ("", SERVICE_NAME):
        await serving.set(name, health_pb2.HealthCheckResponse.SERVING)
    return server, port
