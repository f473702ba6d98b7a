"""Promises about what a runtime does not do, and does not hold, by those who would notice: engines, and its process."""

from __future__ import annotations

import asyncio
import os
import pathlib
import urllib.request

import grpc
import pytest

from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc
from tests.runtime.counting_engine import counting_engine
from tests.runtime.kills import client
from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.waiting import wait_until, wait_until_sync

TASKS = ('lookup {"query": "x"}', 'delete_note {"name": "x"}')
"""Of runs that go on and on, and that wait for a person."""


@pytest.mark.parametrize("killed", [False, True])
async def test_promise_09_no_engine_is_asked_anything_after_a_cancel(tmp_path: pathlib.Path, killed: bool) -> None:
    async with counting_engine() as engine:
        settings = {"LUFTPAUSE_TOOLS_LOOKUP_S": "0.05", "LUFTPAUSE_RUNTIME_DATAPLANE": engine.url}
        with running_runtime(tmp_path, settings, begin=False) as runtime:
            await asyncio.to_thread(runtime.start)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{runtime.grpc_port}") as channel:
                runs = runtime_pb2_grpc.RunsStub(channel)
                tree = [""]
                for number in range(8):
                    request = pb.SpawnRequest(
                        task=TASKS[number % 2], parent=tree[(number + 1) // 2], max_tool_calls=1000
                    )
                    tree.append((await runs.Spawn(request)).handle)
                await wait_until(lambda: all(engine.requests[each] for each in tree[1:]))
                ended = await runs.Cancel(pb.CancelRequest(handle=tree[1]))
                at_once = dict(engine.requests)
            cancelled = set(ended.handles)
            assert tree[1] in cancelled
            if killed:
                runtime.kill()
                await asyncio.to_thread(runtime.start)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{runtime.grpc_port}") as channel:
                runs = runtime_pb2_grpc.RunsStub(channel)
                # A run that is not cancelled tells that the runtime went on meanwhile.
                witness = (await runs.Spawn(pb.SpawnRequest(task=TASKS[0], max_tool_calls=1000))).handle
                await wait_until(lambda: engine.requests[witness] > 20)
                states = {(await runs.Get(pb.GetRequest(handle=each))).run.state for each in cancelled}
                await runs.Cancel(pb.CancelRequest(handle=witness))
    assert states == {pb.RUN_STATE_CANCELLED}
    later = {each: engine.requests[each] - at_once[each] for each in cancelled}
    # A request of each may have been on its way when the cancel was answered, and none before a kill can be after it.
    assert set(later.values()) <= {0, 1}
    assert sum(later.values()) <= 1


def held(runtime: RuntimeProcess) -> tuple[int, float]:
    """Open files, sockets among them, and tasks of the event loop."""
    assert runtime.service is not None
    metrics = urllib.request.urlopen(f"{runtime.url}/metrics").read().decode()  # noqa: S310
    tasks = next(line for line in metrics.splitlines() if line.startswith("luftpause_runtime_tasks "))
    return len(os.listdir(f"/proc/{runtime.service.process.pid}/fd")), float(tasks.split()[1])


def test_promise_12_runs_that_wait_for_a_person_hold_no_file_socket_or_task(tmp_path: pathlib.Path) -> None:
    with running_runtime(tmp_path) as runtime, client(runtime) as runs:

        def wait_with(number: int) -> None:
            for _ in range(number):
                handle = runs.Spawn(pb.SpawnRequest(task='CALL delete_note {"name": "x"}')).handle
                (told,) = runs.Await(pb.AwaitRequest(handles=[handle])).runs
                assert told.state == pb.RUN_STATE_AWAITING_APPROVAL

        wait_with(3)
        files, tasks = held(runtime)
        wait_with(40)
        # A turn's or a client's connection may be open for a moment longer.
        wait_until_sync(lambda: held(runtime)[0] <= files + 2 and held(runtime)[1] <= tasks + 2)
