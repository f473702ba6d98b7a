"""The runs of a runtime that is up, over its gRPC service; the same methods as `runtime.stored_runs`.

Must not open the state folder: the runtime has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from common.auth import bearer_metadata
from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc

_NO_LIMITS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
"""The runtime limits its messages itself."""


class RunsOverGrpc:
    """The runs of one runtime. Methods raise grpc.aio.AioRpcError."""

    def __init__(self, stub: Any, token: str | None) -> None:
        self._stub = stub
        self._metadata = bearer_metadata(token)

    async def all(self) -> list[pb.Run]:
        """Every run, the oldest first."""
        runs: list[pb.Run] = []
        while True:
            request = pb.ListRequest(after=runs[-1].handle if runs else "")
            answer = await self._stub.List(request, metadata=self._metadata)
            runs.extend(answer.runs)
            if not answer.more:
                return runs

    async def get(self, handle: str) -> tuple[pb.GetResponse, list[pb.RunsWatchResponse]]:
        """A whole run, and its records so far."""
        got = await self._stub.Get(pb.GetRequest(handle=handle), metadata=self._metadata)
        request = pb.RunsWatchRequest(handle=handle, until_now=True)
        return got, [record async for record in self._stub.Watch(request, metadata=self._metadata)]

    async def export(self, handle: str) -> bytes:
        """Moves a tree out: its bundle."""
        answer = await self._stub.Export(pb.ExportRequest(handle=handle), metadata=self._metadata)
        return bytes(answer.bundle)

    async def import_(self, bundle: bytes) -> list[str]:
        """Takes a bundle in: the handles of its runs."""
        answer = await self._stub.Import(pb.ImportRequest(bundle=bundle), metadata=self._metadata)
        return list(answer.handles)

    async def fork(self, handle: str, at: int) -> str:
        """Starts a fork: its handle."""
        answer = await self._stub.Fork(pb.ForkRequest(handle=handle, at=at), metadata=self._metadata)
        return str(answer.handle)


@contextlib.asynccontextmanager
async def connected(target: str, token: str | None) -> AsyncIterator[RunsOverGrpc]:
    """The runs of the runtime at `target`, host:port."""
    async with grpc.aio.insecure_channel(target, options=_NO_LIMITS) as channel:
        stub: Any = runtime_pb2_grpc.RunsStub
        yield RunsOverGrpc(stub(channel), token)
