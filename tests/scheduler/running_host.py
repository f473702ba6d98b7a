"""A host with its gRPC server in this process, and a client of its Dispatch streams.

The clock stands still for placement: `opened` says that the grace is over and the replicas were probed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from common.auth import Guard
from common.ids import ReplicaName
from common.pool import Replica
from protos import turn_pb2
from protos.scheduler_pb2 import DispatchRequest, DispatchResponse, Hello, ResyncRequest
from protos.scheduler_pb2_grpc import SchedulerStub
from scheduler import service
from scheduler.events import ReplicaProbed, Ticked
from scheduler.host import Host
from scheduler.state import GRACE_S

if TYPE_CHECKING:
    from protos.scheduler_pb2_grpc import SchedulerAsyncStub

ANSWER_S = 5.0

A = Replica(ReplicaName("a"), "http://127.0.0.1:1001", models=("m",), max_in_flight=1)
B = Replica(ReplicaName("b"), "http://127.0.0.1:1002", models=("m", "n"))


@dataclass
class RunningHost:
    """The host and a stub that reaches it."""

    host: Host
    port: int
    stub: SchedulerAsyncStub

    def dispatch(self) -> DispatchClient:
        """A new stream, on which nothing has been sent."""
        return DispatchClient(self.stub.Dispatch())


@contextlib.asynccontextmanager
async def running_host(
    replicas: Sequence[Replica] = (A,), guard: Guard | None = None, *, opened: bool = True
) -> AsyncIterator[RunningHost]:
    """Runs a host while the block runs."""
    host = Host(replicas, first_sequence=1000)
    server, port = await service.start(host, "127.0.0.1:0", guard or Guard())
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    stub: SchedulerAsyncStub = SchedulerStub(channel)
    if opened:
        for replica in replicas:
            host.tell_probe(ReplicaProbed(host.now(), replica.name, healthy=True))
        host.tell((Ticked(host.now() + GRACE_S),))
    try:
        yield RunningHost(host, port, stub)
    finally:
        await channel.close()
        await server.stop(None)


class DispatchClient:
    """Writes batches with the right sequence, reads answers."""

    def __init__(self, call: grpc.aio.StreamStreamCall[DispatchRequest, DispatchResponse]) -> None:
        self.call = call
        self.sequence = 0
        self.answers: list[DispatchResponse] = []

    async def send(self, **fields: Any) -> None:
        """Sends one batch with these fields."""
        self.sequence += 1
        await self.call.write(DispatchRequest(sequence=self.sequence, **fields))

    async def open(self, dataplane_id: str = "dp", epoch: int = 1, resync: ResyncRequest | None = None) -> None:
        """Says hello and resyncs, with nothing by default."""
        await self.send(hello=Hello(dataplane_id=dataplane_id, epoch=epoch))
        await self.send(resync=resync or ResyncRequest(complete=True))

    async def until(self, condition: Callable[[list[DispatchResponse]], object]) -> list[DispatchResponse]:
        """Reads answers until they satisfy `condition`; all answers so far."""
        async with asyncio.timeout(ANSWER_S):
            while not condition(self.answers):
                answer = await self.call.read()
                assert isinstance(answer, DispatchResponse), f"the stream ended; answers so far: {self.answers}"
                self.answers.append(answer)
        return self.answers

    async def placement(self, turn_id: str) -> turn_pb2.Placement:
        """The placement of a turn, once it came."""
        answers = await self.until(lambda seen: any(p.turn_id == turn_id for answer in seen for p in answer.placements))
        return next(p for answer in answers for p in answer.placements if p.turn_id == turn_id)

    async def refusal(self, turn_id: str) -> turn_pb2.Refusal:
        """The refusal of a turn, once it came."""
        answers = await self.until(lambda seen: any(r.turn_id == turn_id for answer in seen for r in answer.refusals))
        return next(r for answer in answers for r in answer.refusals if r.turn_id == turn_id)

    async def acknowledged(self) -> None:
        """Waits until all that was sent is performed."""
        await self.until(lambda seen: any(answer.acknowledged == self.sequence for answer in seen))

    async def end(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ended."""
        async with asyncio.timeout(ANSWER_S):
            return await self.call.code(), str(await self.call.details())


def turn(turn_id: str, run_id: str = "", **fields: Any) -> turn_pb2.Turn:
    """A turn of model m, of a run of its own if none is named."""
    values = {"model": "m", "new_run_id": f"run-of-{turn_id}", **fields}
    return turn_pb2.Turn(turn_id=turn_id, run_id=run_id, **values)


def report(kind: str, turn_id: str, **fields: Any) -> turn_pb2.Report:
    """A report; `kind` without its prefix."""
    return turn_pb2.Report(kind=turn_pb2.ReportKind.Value(f"REPORT_KIND_{kind}"), turn_id=turn_id, **fields)
