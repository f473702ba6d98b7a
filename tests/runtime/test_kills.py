"""The runtime is killed with SIGKILL at random moments; `kills` does the same as often as you like."""

from __future__ import annotations

import pathlib

import grpc

from protos import runtime_pb2 as pb
from tests.runtime.kills import client, kill_many
from tests.runtime.service_process import running_runtime


def test_a_runtime_that_is_killed_loses_no_run_and_repeats_no_effect(tmp_path: pathlib.Path) -> None:
    told = kill_many(tmp_path, kills=4, number=12, seed=1)
    assert told.startswith("kills=4 runs=12")


def test_whoever_awaits_while_it_is_killed_is_told_and_finds_the_run_again(tmp_path: pathlib.Path) -> None:
    with running_runtime(tmp_path, {"LUFTPAUSE_TOOLS_DEEP_SEARCH_S": "1"}) as runtime:
        with client(runtime) as runs:
            handle = runs.Spawn(pb.SpawnRequest(task='CALL deep_search {"query": "tea"}')).handle
            waiting = [runs.Await.future(pb.AwaitRequest(handles=[handle])) for _ in range(2)]
            runtime.kill()
            assert [each.exception().code() for each in waiting] == [grpc.StatusCode.UNAVAILABLE] * 2
        runtime.start()
        with client(runtime) as runs:
            waiting = [runs.Await.future(pb.AwaitRequest(handles=[handle])) for _ in range(2)]
            ends = [each.result().runs[0] for each in waiting]
    assert [each.state for each in ends] == [pb.RUN_STATE_COMPLETED] * 2
    assert ends[0].text == ends[1].text
