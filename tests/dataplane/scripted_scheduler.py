"""A scheduler that does what a test says: real gRPC, answers by script. Records every message it gets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from protos import scheduler_pb2, scheduler_pb2_grpc, turn_pb2
from protos.scheduler_pb2 import DispatchRequest, DispatchResponse


class ScriptedScheduler(scheduler_pb2_grpc.SchedulerServicer):
    """Places every turn on `url` at once, unless `holds` is set or `refusals` has an answer for its model."""

    def __init__(self) -> None:
        self.url = ""
        self.replica = "engine-0"
        self.holds = False
        self.acknowledges = True
        self.refusals: dict[str, tuple[turn_pb2.RefusalReason.ValueType, str]] = {}
        self.models = ["m"]
        self.classifiers: dict[str, list[str]] = {"c": ["classifier"]}
        """Models of the one-shot replicas, by name."""
        self.healthy: set[str] = set()
        self.watched = 0
        """How often it was asked for its status."""
        self.requests: list[DispatchRequest] = []
        self.turns: list[turn_pb2.Turn] = []
        self.reports: list[turn_pb2.Report] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self._answers: asyncio.Queue[DispatchResponse | None] = asyncio.Queue()
        self._placed = 0
        self._sent = 0
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self, port: int = 0) -> None:
        """Listens on a free port, or on the one it had before."""
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        scheduler_pb2_grpc.add_SchedulerServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()

    async def stop(self) -> None:
        """Ends every stream at once."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def kinds(self, turn_id: str) -> list[str]:
        """The kinds of the reports of a turn, in their order."""
        return [
            turn_pb2.ReportKind.Name(r.kind).removeprefix("REPORT_KIND_") for r in self.reports if r.turn_id == turn_id
        ]

    def last(self, kind: turn_pb2.ReportKind.ValueType) -> turn_pb2.Report | None:
        """The last report of a kind."""
        return next((report for report in reversed(self.reports) if report.kind == kind), None)

    def place(self, turn: turn_pb2.Turn) -> None:
        """Places a turn."""
        self._placed += 1
        placement = turn_pb2.Placement(
            turn_id=turn.turn_id,
            run_id=turn.run_id or turn.new_run_id,
            replica=self.replica,
            url=self.url,
            sequence=self._placed,
        )
        self._answers.put_nowait(DispatchResponse(placements=[placement]))

    def refuse(self, turn: turn_pb2.Turn, reason: turn_pb2.RefusalReason.ValueType, message: str) -> None:
        """Refuses a turn."""
        refusal = turn_pb2.Refusal(turn_id=turn.turn_id, reason=reason, message=message)
        self._answers.put_nowait(DispatchResponse(refusals=[refusal]))

    def tell(self, answer: DispatchResponse) -> None:
        """Sends a message of the stream."""
        self._answers.put_nowait(answer)

    def tell_ended(self, runs: list[tuple[str, str]]) -> None:
        """Tells that runs, each named with its caller, ended."""
        ended = [scheduler_pb2.EndedRun(run_id=r, caller=caller, sequence=self._placed) for r, caller in runs]
        self._answers.put_nowait(DispatchResponse(ended_runs=ended))

    async def Dispatch(  # noqa: N802
        self, request_iterator: AsyncIterator[DispatchRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[DispatchResponse]:
        """One stream."""
        self.metadata.append(dict(context.invocation_metadata() or ()))
        self._answers = asyncio.Queue()
        self._sent = 0
        received = 0

        async def read() -> None:
            nonlocal received
            async for request in request_iterator:
                received = request.sequence
                self._take(request)
            self._answers.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (answer := await self._answers.get()) is not None:
                self._sent += 1
                answer.sequence = self._sent
                answer.acknowledged = received if self.acknowledges else 0
                yield answer
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reader

    def _take(self, request: DispatchRequest) -> None:
        self.requests.append(request)
        self.reports.extend(request.reports)
        for turn in request.admits:
            self.turns.append(turn)
            if turn.model in self.refusals:
                self.refuse(turn, *self.refusals[turn.model])
            elif not self.holds:
                self.place(turn)
        if request.reports and self.acknowledges:
            self._answers.put_nowait(DispatchResponse())

    async def Watch(  # noqa: N802
        self, _request: scheduler_pb2.WatchRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[scheduler_pb2.WatchResponse]:
        """The status, once."""
        self.watched += 1
        generative = scheduler_pb2.ReplicaStatus(
            name="engine-0", kind=turn_pb2.REPLICA_KIND_GENERATIVE, models=self.models
        )
        one_shot = [
            scheduler_pb2.ReplicaStatus(
                name=name, kind=turn_pb2.REPLICA_KIND_ONE_SHOT, models=models, healthy=name in self.healthy
            )
            for name, models in self.classifiers.items()
        ]
        yield scheduler_pb2.WatchResponse(replicas=[generative, *one_shot, generative])

    async def Admit(self, _request: Any, context: Any) -> Any:  # noqa: N802
        """A dataplane uses Dispatch."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "only Dispatch and Watch are scripted")

    async def Report(self, _request_iterator: Any, context: Any) -> Any:  # noqa: N802
        """As Admit."""
        await self.Admit(None, context)

    async def Forecast(self, _request: Any, context: Any) -> Any:  # noqa: N802
        """Not scripted."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not scripted")

    async def Resync(self, _request_iterator: Any, context: Any) -> Any:  # noqa: N802
        """As Admit."""
        await self.Admit(None, context)
