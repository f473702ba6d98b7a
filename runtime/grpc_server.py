"""The gRPC surface: the Runs service, standard health and reflection, the token.

Must not decide anything; each method reads, asks the service, writes. Read next: `wire`.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import msgspec
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.auth import Guard, TokenInterceptor
from common.grpc_options import message_options
from common.tls import PLAIN, Tls
from common.trace_context import usable
from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc
from runtime import wire
from runtime.access import Access
from runtime.decisions import Question
from runtime.orders import check_count
from runtime.refusals import (
    ArgumentError,
    InvalidArgumentError,
    NoAnswerError,
    NotAllowedError,
    UnknownRunError,
    WrongStateError,
)
from runtime.run import RunState, Usage
from runtime.service import AWAIT_S, Runtime
from runtime.store import StoreError

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Runs"].full_name
CALLERS_OWN = frozenset(
    f"/{SERVICE_NAME}/{method}"
    for method in ("Spawn", "Await", "Watch", "Get", "List", "Cancel", "Approve", "Fork", "Decide")
)
"""What a bound token is let do, with its caller's own runs; bundles may hold anybody's."""
LIST_MAX = 1000
STOP_GRACE_S = 0.2
"""Calls in progress get so long to end by themselves when the runtime stops."""
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""A long run's conversation is one message."""

BUNDLE_BYTES_MAX = MESSAGE_BYTES_MAX - 1024
"""A bundle is one message too, with little around it."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),  # else a second runtime would share the port unnoticed
    *message_options(MESSAGE_BYTES_MAX),
)

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")

_STATUS: dict[type[ArgumentError], grpc.StatusCode] = {
    InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownRunError: grpc.StatusCode.NOT_FOUND,
    NotAllowedError: grpc.StatusCode.PERMISSION_DENIED,
    WrongStateError: grpc.StatusCode.FAILED_PRECONDITION,
}


_Refused = (ArgumentError, NoAnswerError, StoreError)


def _refusing(method: Callable[[RunsService, Any, Context], Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """`method`, whose call ends with the status of what it raises."""

    @functools.wraps(method)
    async def answer(self: RunsService, request: Any, context: Context) -> T:
        try:
            return await method(self, request, context)
        except _Refused as error:
            refusal = _status_of(error)
        # gRPC keeps what it raises here together with its traceback, in a cycle: the request must not be of that.
        del request
        await context.abort(*refusal)
        raise AssertionError("it raises")

    return answer


def _refusing_stream(
    method: Callable[[RunsService, Any, Context], AsyncIterator[T]],
) -> Callable[..., AsyncIterator[T]]:
    """The same for a method that answers with a stream."""

    @functools.wraps(method)
    async def answer(self: RunsService, request: Any, context: Context) -> AsyncIterator[T]:
        try:
            async for message in method(self, request, context):
                yield message
            return
        except _Refused as error:
            refusal = _status_of(error)
        del request
        await context.abort(*refusal)

    return answer


def _status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, ArgumentError):
        return _STATUS[type(error)], f"{wire.field_of(error.argument)}: {error.problem}"
    return grpc.StatusCode.UNAVAILABLE, str(error)


class RunsService(runtime_pb2_grpc.RunsServicer):
    """The methods of `runtime.proto`, by its names."""

    def __init__(self, runtime: Runtime, guard: Guard) -> None:
        self._runtime = runtime
        self._guard = guard

    @_refusing
    async def Spawn(self, request: pb.SpawnRequest, context: Context) -> pb.SpawnResponse:  # noqa: N802
        """See the contract, as for all methods."""
        access = self._access(context)
        asked, caller = access.check_spawn(wire.read_spawn(request)), access.caller_of(request.caller)
        journal = await self._runtime.spawn(asked, caller, usable(request.traceparent))
        return pb.SpawnResponse(handle=journal.run.run_id)

    @_refusing
    async def Await(self, request: pb.AwaitRequest, context: Context) -> pb.AwaitResponse:  # noqa: N802
        """A client that leaves stops nothing."""
        self._access(context).check("handles", request.handles)
        timeout_s = request.timeout_s if request.HasField("timeout_s") else AWAIT_S
        journals = await self._runtime.await_(request.handles, wire.read_mode(request.mode), timeout_s)
        return pb.AwaitResponse(runs=[self._told(journal.run) for journal in journals])

    @_refusing_stream
    async def Watch(  # noqa: N802
        self, request: pb.RunsWatchRequest, context: Context
    ) -> AsyncIterator[pb.RunsWatchResponse]:
        """Ends with the run."""
        self._access(context).check("handle", [request.handle])
        number = 0
        async for record in self._runtime.watch(request.handle, until_now=request.until_now):
            yield wire.write_record(number, record, self._subtree)
            number += 1

    @_refusing
    async def Get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:  # noqa: N802
        """Reads the journal of a run that has ended."""
        self._access(context).check("handle", [request.handle])
        run = await self._runtime.read(request.handle)
        told = wire.write_run(run, self._subtree(run), task_chars=None)
        return pb.GetResponse(run=told, messages=wire.write_messages(run))

    @_refusing
    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:  # noqa: N802
        """In the order of the starts."""
        if request.limit > LIST_MAX:
            raise InvalidArgumentError("limit", f"expected 1 to {LIST_MAX}, or 0 for {LIST_MAX}")
        states = wire.read_states(request.states)
        access = self._access(context)
        for argument, handle in (("after", request.after), ("root", request.root)):
            if handle:
                self._runtime.tree.get(argument, handle)
                access.check(argument, [handle])
        found = [
            journal.run
            for journal in self._runtime.tree.after(request.after)
            if access.covers(journal)
            and (not states or journal.run.state in states)
            and request.root in ("", journal.run.root)
        ]
        limit = request.limit or LIST_MAX
        return pb.ListResponse(runs=[self._told(run) for run in found[:limit]], more=len(found) > limit)

    @_refusing
    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:  # noqa: N802
        """Answers when the ends are durable."""
        self._access(context).check("handle", [request.handle])
        ended = await self._runtime.cancel(request.handle)
        return pb.CancelResponse(handles=[journal.run.run_id for journal in ended])

    @_refusing
    async def Approve(self, request: pb.ApproveRequest, context: Context) -> pb.ApproveResponse:  # noqa: N802
        """Answers when the answer is durable."""
        self._access(context).check_drive("handle", request.handle)
        journal, allow = await self._runtime.approve(request.handle, request.allow, request.question or None)
        return pb.ApproveResponse(run=self._told(journal.run), allow=allow)

    @_refusing
    async def Decide(self, request: pb.DecideRequest, context: Context) -> pb.DecideResponse:  # noqa: N802
        """Answers when an engine has; a client that leaves stops it."""
        access = self._access(context)
        check_count("labels", request.labels)
        question = Question(request.input, tuple(request.labels) or None, request.model or None)
        caller = access.caller_of(request.caller)
        told = await self._runtime.decide(question, caller, access.decision_class, usable(request.traceparent))
        return pb.DecideResponse(**msgspec.structs.asdict(told))

    @_refusing
    async def Export(self, request: pb.ExportRequest, _context: Context) -> pb.ExportResponse:  # noqa: N802
        """Answers when the runs are marked as moved."""
        return pb.ExportResponse(bundle=await self._runtime.export(request.handle, BUNDLE_BYTES_MAX))

    @_refusing
    async def Import(self, request: pb.ImportRequest, _context: Context) -> pb.ImportResponse:  # noqa: N802
        """Answers when the runs are durable here."""
        journals = await self._runtime.import_(request.bundle)
        return pb.ImportResponse(handles=[journal.run.run_id for journal in journals])

    @_refusing
    async def Fork(self, request: pb.ForkRequest, context: Context) -> pb.ForkResponse:  # noqa: N802
        """Answers when the new run is durable."""
        self._access(context).check_drive("handle", request.handle)
        journal = await self._runtime.fork(request.handle, request.at)
        return pb.ForkResponse(handle=journal.run.run_id)

    def _access(self, context: Context) -> Access:
        return Access(self._guard.admit_call(context), self._runtime.tree)

    def _subtree(self, run: RunState) -> Usage:
        return self._runtime.tree.usage(self._runtime.tree.get("handle", run.run_id))

    def _told(self, run: RunState) -> pb.Run:
        return wire.write_run(run, self._subtree(run))


@contextlib.asynccontextmanager
async def serving(runtime: Runtime, host: str, port: int, guard: Guard, tls: Tls = PLAIN) -> AsyncIterator[int]:
    """Serves gRPC while the block runs; gives the port. Raises RuntimeError if it cannot listen."""
    server = grpc.aio.server(interceptors=(TokenInterceptor(guard, CALLERS_OWN),), options=_OPTIONS)
    runtime_pb2_grpc.add_RunsServicer_to_server(RunsService(runtime, guard), server)
    healthy = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    bound = tls.listen(server, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    await server.start()
    try:
        for name in ("", SERVICE_NAME):
            await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
        yield bound
    finally:
        await server.stop(STOP_GRACE_S)


def check_free(host: str, port: int) -> None:
    """Raises OSError if `port` is taken. gRPC itself would tell so in several lines of its own."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
