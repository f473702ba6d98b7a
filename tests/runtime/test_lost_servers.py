"""A call that loses its tool server waits for it, as a run does that begins a turn, and costs the run nothing."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from protos import runtime_pb2 as pb
from tests.runtime.kills import client
from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.stack import ROOT
from tests.waiting import wait_until_sync

DIES_ONCE = """
import os, pathlib, time
from fakes.toolserver import main
folder = pathlib.Path(os.environ["FOLDER"])
if (folder / "died").exists():
    while not (folder / "may-start").exists():
        time.sleep(0.02)
    del os.environ["LUFTPAUSE_TOOLS_FAULT"]
(folder / "died").touch()
main(["--stdio"])
"""
"""A tool server whose first process has the fault; the next ones start when the test says so."""


@contextlib.contextmanager
def faulty(folder: pathlib.Path, fault: str, **settings: str) -> Iterator[tuple[RuntimeProcess, Any]]:
    """A runtime, its client, and a tool server of which a call of `set_note` has the fault."""
    faults = {"LUFTPAUSE_TOOLS_FAULT": fault, "LUFTPAUSE_TOOLS_FAULT_TOOL": "set_note", **settings}
    with running_runtime(folder, faults) as runtime, client(runtime) as runs:
        yield runtime, runs


def restart_tools(runtime: RuntimeProcess) -> None:
    """Starts the tool server again, without its fault."""
    assert runtime.tools is not None
    runtime.tools.kill()
    runtime.settings["LUFTPAUSE_TOOLS_FAULT"] = "none"
    runtime.start_tools()


def spawn(runs: Any, task: str) -> str:
    """A new run's handle."""
    return str(runs.Spawn(pb.SpawnRequest(task=task)).handle)


def sleeps(runs: Any, handle: str, server: str) -> None:
    """Waits until the run waits for the server."""

    def does() -> bool:
        run = runs.Get(pb.GetRequest(handle=handle)).run
        return (run.state, list(run.waits_for)) == (pb.RUN_STATE_SLEEPING, [server])

    wait_until_sync(does)


def read(runs: Any, handle: str) -> list[str]:
    """What the model reads of its calls, once the run is completed."""
    [run] = runs.Await(pb.AwaitRequest(handles=[handle], timeout_s=60)).runs
    assert run.state == pb.RUN_STATE_COMPLETED, run
    messages = json.loads(runs.Get(pb.GetRequest(handle=handle)).messages)
    return [message["content"] for message in messages if message["role"] == "tool"]


def keys(runtime: RuntimeProcess) -> list[str]:
    """Of all effects."""
    return [json.loads(line)["key"] for line in runtime.ledger.read_text().splitlines()]


@pytest.mark.parametrize(("fault", "effects"), [("die-before", 1), ("die-after", 2)])
def test_promise_03_a_repeatable_call_whose_server_dies_waits_for_it_and_is_made_again(
    tmp_path: pathlib.Path, fault: str, effects: int
) -> None:
    with faulty(tmp_path, fault) as (runtime, runs):
        handle = spawn(runs, 'CALL set_note {"name": "n", "text": "t"}')
        sleeps(runs, handle, "fake")
        restart_tools(runtime)
        assert read(runs, handle) == ["n is set."]
        assert (len(keys(runtime)), len(set(keys(runtime)))) == (effects, 1)


def test_promise_03_a_call_that_waits_for_its_server_is_made_again_after_a_restart_too(tmp_path: pathlib.Path) -> None:
    with faulty(tmp_path, "die-after") as (runtime, runs):
        handle = spawn(runs, 'CALL set_note {"name": "n", "text": "t"}')
        sleeps(runs, handle, "fake")
        runtime.kill()
        runtime.start()
        with client(runtime) as again:
            sleeps(again, handle, "fake")
            restart_tools(runtime)
            assert read(again, handle) == ["n is set."]
        assert (len(keys(runtime)), len(set(keys(runtime)))) == (2, 1)


def test_a_model_is_told_of_a_try_that_may_have_had_its_effect(tmp_path: pathlib.Path) -> None:
    with faulty(tmp_path, "die-after", LUFTPAUSE_RUNTIME_TOOLS_WAIT_S="1") as (_, runs):
        [said] = read(runs, spawn(runs, 'CALL set_note {"name": "n", "text": "t"}'))
        assert said.startswith("Error: ")
        assert said.endswith("; it is unknown whether this tool call took effect")


def test_a_call_that_finds_its_server_gone_waits_for_it(tmp_path: pathlib.Path) -> None:
    with faulty(tmp_path, "none") as (runtime, runs):
        assert read(runs, spawn(runs, 'CALL lookup {"query": "q"}'))
        assert runtime.tools is not None
        runtime.tools.kill()
        handle = spawn(runs, 'CALL add_note {"text": "t"}')
        sleeps(runs, handle, "fake")
        restart_tools(runtime)
        assert read(runs, handle) == ["Added note-1."]
        assert len(keys(runtime)) == 1


def test_a_call_waits_for_a_server_over_stdio_that_died_in_it(tmp_path: pathlib.Path) -> None:
    settings = {
        "FOLDER": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "LUFTPAUSE_TOOLS_FAULT": "die-after",
        "LUFTPAUSE_TOOLS_FAULT_TOOL": "set_note",
    }
    with running_runtime(tmp_path, settings, begin=False) as runtime:
        command, passed = [sys.executable, "-c", DIES_ONCE], [*settings, "LUFTPAUSE_TOOLS_LEDGER"]
        (tmp_path / "tools.toml").write_text(
            f'[[server]]\nname = "mortal"\ncommand = {json.dumps(command)}\nenv = {json.dumps(passed)}\n'
        )
        runtime.start()
        with client(runtime) as runs:
            handle = spawn(runs, 'CALL set_note {"name": "n", "text": "t"}')
            sleeps(runs, handle, "mortal")
            (tmp_path / "may-start").touch()
            assert read(runs, handle) == ["n is set."]
        assert (len(keys(runtime)), len(set(keys(runtime)))) == (2, 1)
