"""A runtime that is killed again and again while its runs have effects, and a judge that was outside all the time.

    PYTHONPATH=. python -m tests.runtime.kills 200 50 7        200 kills, 50 runs, seed 7

The judge knows what the runtime acknowledged, and what the tool server's ledger says was done.
"""

from __future__ import annotations

import collections
import contextlib
import json
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import grpc

from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc
from runtime.run import NOT_REPEATED
from tests.runtime.journals import assert_valid
from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.waiting import wait_until_sync

_ENDS = (pb.RUN_STATE_COMPLETED, pb.RUN_STATE_FAILED, pb.RUN_STATE_CANCELLED, pb.RUN_STATE_BUDGET_EXCEEDED)
_SETTLED = (*_ENDS, pb.RUN_STATE_AWAITING_APPROVAL)


class Judge:
    """What is known from outside."""

    def __init__(self) -> None:
        self.spawned: dict[str, str] = {}
        """Mark of each acknowledged run, by handle."""
        self.answers: dict[str, str] = {}
        """Answers that were seen."""
        self.messages: dict[str, list[Any]] = {}
        """The last conversation seen of each run."""
        self.unknown: set[str] = set()
        """Runs that asked about an outcome that is unknown."""

    def see(self, runs: Any) -> int:
        """Looks at every run; how many are settled. Fails where something acknowledged is missing or has changed."""
        settled = 0
        for handle in self.spawned:
            got = runs.Get(pb.GetRequest(handle=handle))
            messages = json.loads(got.messages)
            assert_valid(messages)
            before = self.messages.get(handle, [])
            assert messages[: len(before)] == before, f"{handle} lost an acknowledged round"
            self.messages[handle] = messages
            if got.run.state in _ENDS:
                assert got.run.state == pb.RUN_STATE_COMPLETED, got.run.text
                assert self.answers.setdefault(handle, got.run.text) == got.run.text
            else:
                assert handle not in self.answers, f"{handle} lost its answer"
            if got.run.HasField("pending_approval"):
                assert got.run.pending_approval.outcome_unknown, got.run
                self.unknown.add(handle)
            settled += got.run.state in _SETTLED
        return settled

    def count(self, ledger: pathlib.Path) -> collections.Counter[str]:
        """Effects by tool. Fails where one that must not be repeated was, or a run's was lost without a word."""
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        added = collections.Counter(line["key"] for line in lines if line["tool"] == "add_note")
        assert not [key for key, times in added.items() if times > 1], "an at-most-once effect happened twice"
        for handle, mark in self.spawned.items():
            notes = [line for line in lines if line["tool"] == "add_note" and line["arguments"]["text"] == mark]
            keys = {line["key"] for line in lines if line["arguments"].get("name") == mark}
            assert len(keys) == 1, f"{handle} set its note under {len(keys)} keys"
            assert len(notes) == 1 or handle in self.unknown, f"{handle} has {len(notes)} notes"
            read = [message["content"] for message in self.messages[handle] if message["role"] == "tool"]
            doubts = [text for text in read if text.startswith("Error")]
            # What nobody knows was asked about, and is the one thing that a run may tell its model as an error.
            assert len(read) == 3, f"{handle} made {len(read)} calls"
            assert doubts == ([NOT_REPEATED] if handle in self.unknown else []), f"{handle} was told {doubts}"
        return collections.Counter(line["tool"] for line in lines)


@contextlib.contextmanager
def client(runtime: RuntimeProcess) -> Iterator[Any]:
    """The Runs service."""
    with grpc.insecure_channel(f"127.0.0.1:{runtime.grpc_port}") as channel:
        stub: Any = runtime_pb2_grpc.RunsStub(channel)
        yield stub


def task(mark: str, chance: random.Random) -> str:
    """A task of some calls of each kind, in a random order."""
    calls = [
        f'CALL set_note {{"name": "{mark}", "text": "x"}}',
        f'CALL add_note {{"text": "{mark}"}}',
        f'CALL lookup {{"query": "{mark}"}}',
    ]
    chance.shuffle(calls)
    return "\n".join(calls)


def kill_many(folder: pathlib.Path, kills: int, number: int, seed: int) -> str:
    """Spawns `number` runs while the runtime is killed `kills` times, and judges. What happened, in a line."""
    chance = random.Random(seed)
    judge = Judge()
    settings = {"LUFTPAUSE_TOOLS_NOTE_S": "0.05", "LUFTPAUSE_TOOLS_LOOKUP_S": "0.05", "LUFTPAUSE_ENGINE_SPEED": "5"}
    with running_runtime(folder, settings, begin=False) as runtime:
        for kill in range(kills):
            runtime.start()
            with client(runtime) as runs:
                judge.see(runs)
                for _ in range(number * (kill + 1) // kills - number * kill // kills):
                    mark = f"mark-{len(judge.spawned)}"
                    request = pb.SpawnRequest(task=task(mark, chance), parallel_tool_calls=chance.random() < 0.5)
                    judge.spawned[runs.Spawn(request).handle] = mark
                time.sleep(chance.uniform(0, 0.3))  # the moment of the kill is what is tried here
                runtime.kill()
        runtime.start()
        with client(runtime) as runs:
            wait_until_sync(lambda: judge.see(runs) == len(judge.spawned), 60, "all runs are settled")
            listed = runs.List(pb.ListRequest(states=[pb.RUN_STATE_AWAITING_APPROVAL])).runs
            assert {each.handle for each in listed} == judge.unknown - set(judge.answers)
            for handle in judge.unknown:
                with contextlib.suppress(grpc.RpcError):  # answered by its end already
                    runs.Approve(pb.ApproveRequest(handle=handle, allow=False))
            wait_until_sync(lambda: judge.see(runs) == len(judge.spawned), 60, "all runs are settled")
            assert {run.handle for run in runs.List(pb.ListRequest()).runs} >= set(judge.spawned)
        effects = judge.count(runtime.ledger)
    return f"kills={kills} runs={number} seed={seed} unknown={len(judge.unknown)} effects={dict(effects)}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        print(kill_many(pathlib.Path(made), *map(int, sys.argv[1:4])))
