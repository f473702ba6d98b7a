"""Sub-agents of a chaos: spawns runs of the runtime, keeps what it acknowledged, and sees how they end.

A run that the runtime acknowledged has to come to an end and to keep it, whatever happens to the runtime. Its effects
are in the tool server's ledger. Must not judge: `chaos_check` does.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc

from loadgen.chaos_check import Seen
from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc

PAUSE_S = 0.4
_CALL_WITHIN_S = 5.0
_ENDS = {
    pb.RUN_STATE_COMPLETED: "completed",
    pb.RUN_STATE_FAILED: "failed",
    pb.RUN_STATE_CANCELLED: "cancelled",
    pb.RUN_STATE_BUDGET_EXCEEDED: "budget exceeded",
}


class Spawner:
    """Spawns and looks, from `async with` on; `finish` spawns no more and waits for the ends."""

    def __init__(self, target: str, seed: int, seen: Seen) -> None:
        self._target = target
        self._seen = seen
        self._chance = random.Random(f"spawner:{seed}")
        self._count = 0
        self._ending = False
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Spawner:
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def finish(self, within_s: float) -> None:
        """Returns when all runs have ended, or after `within_s`. Raises what went wrong with the spawner itself."""
        self._ending = True
        await asyncio.wait((self._task,), timeout=within_s)
        if self._task.done():
            self._task.result()

    @property
    def _open(self) -> list[str]:
        return [handle for handle in self._seen.sub_agents if handle not in self._seen.ends]

    async def _work(self) -> None:
        options = (("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 500))
        async with grpc.aio.insecure_channel(self._target, options=options) as channel:
            runs: Any = runtime_pb2_grpc.RunsStub(channel)
            while not self._ending or self._open:
                try:
                    if not self._ending:
                        await self._spawn(runs)
                    for handle in self._open:
                        await self._look(runs, handle)
                except grpc.aio.AioRpcError as error:
                    # A call that was not answered may have been performed: such a run is not one that was acknowledged.
                    if error.code() is grpc.StatusCode.NOT_FOUND:
                        self._seen.wrong.append(f"sub-agent: {error.details()}")
                await asyncio.sleep(PAUSE_S)
            for handle, end in self._seen.ends.items():
                await self._look_again(runs, handle, end)

    async def _spawn(self, runs: Any) -> None:
        mark = f"note-{self._count}"
        self._count += 1
        calls = [f'CALL add_note {{"text": "{mark}"}}', f'CALL lookup {{"query": "{mark}"}}']
        self._chance.shuffle(calls)
        request = pb.SpawnRequest(task="\n".join(calls), parallel_tool_calls=self._chance.random() < 0.5)
        answer = await runs.Spawn(request, timeout=_CALL_WITHIN_S)
        self._seen.sub_agents[answer.handle] = mark

    async def _look(self, runs: Any, handle: str) -> None:
        run = (await runs.Get(pb.GetRequest(handle=handle), timeout=_CALL_WITHIN_S)).run
        if run.state in _ENDS:
            self._seen.ends[handle] = _ENDS[run.state]
        elif run.HasField("pending_approval"):
            self._seen.unknown.add(handle)
            await runs.Approve(pb.ApproveRequest(handle=handle, allow=False), timeout=_CALL_WITHIN_S)

    async def _look_again(self, runs: Any, handle: str, end: str) -> None:
        """What has ended stays so."""
        run = (await runs.Get(pb.GetRequest(handle=handle), timeout=_CALL_WITHIN_S)).run
        if _ENDS.get(run.state) != end:
            self._seen.wrong.append(f"sub-agent {handle} had {end} and is in state {run.state}")
