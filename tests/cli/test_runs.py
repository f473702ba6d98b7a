"""`runs`: with a runtime that has the state folder, and without one."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc
from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.stack import environment

TASK = 'CALL lookup {"query": "x"}\nCALL delete_note {"name": "n"}\nthen answer'
TOKEN = "secret"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    """The last test stops it."""
    with running_runtime(tmp_path_factory.mktemp("runs"), {"LUFTPAUSE_TOKEN": TOKEN}) as made:
        yield made


def call(folder: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Calls `./luftpause runs …` for a state folder."""
    settings = {"LUFTPAUSE_STATE": str(folder), "LUFTPAUSE_TOKEN": TOKEN}
    command = [sys.executable, "-P", "-m", "cli", "runs", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment(settings), cwd=folder.parent
    )


def asked(folder: pathlib.Path, *words: str) -> str:
    """What a command prints that succeeds."""
    done = call(folder, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(folder: pathlib.Path, *words: str, code: int = 1) -> str:
    """What a command prints that fails: one line."""
    done = call(folder, *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stdout
    (line,) = done.stderr.splitlines()
    return line


def spawn(runtime: RuntimeProcess) -> str:
    """A run that waits for an answer about its second call."""
    metadata = (("authorization", f"Bearer {TOKEN}"),)
    with grpc.insecure_channel(f"127.0.0.1:{runtime.grpc_port}") as channel:
        runs: Any = runtime_pb2_grpc.RunsStub(channel)
        handle = str(runs.Spawn(pb.SpawnRequest(task=TASK, system="be brief"), metadata=metadata).handle)
        (run,) = runs.Await(pb.AwaitRequest(handles=[handle]), metadata=metadata).runs
    assert run.state == pb.RUN_STATE_AWAITING_APPROVAL, run
    return handle


def check_told(folder: pathlib.Path, handle: str, *to: str) -> dict[str, Any]:
    """What `runs` and `runs show` say of the run of `spawn`, as JSON."""
    (listed,) = [run for run in json.loads(asked(folder, "--json", *to)) if run["handle"] == handle]
    shown: dict[str, Any] = json.loads(asked(folder, "show", handle, "--json", *to))
    assert (shown["system"], shown["task"]) == ("be brief", TASK)
    first, second = shown["steps"]
    (lookup,) = first["calls"]
    assert (lookup["name"], lookup["arguments"], lookup["failed"]) == ("lookup", {"query": "x"}, False)
    assert lookup["startedAt"] >= first["at"] >= shown["startedAt"]
    assert first["promptTokens"] > 0
    assert second["calls"][0]["needsApproval"] is True
    assert second["calls"][0]["startedAt"] is None
    assert {name: listed[name] for name in ("state", "own")} == {name: shown[name] for name in ("state", "own")}
    return shown


def test_what_cannot_be_done_is_said_in_a_line(tmp_path: pathlib.Path, runtime: RuntimeProcess) -> None:
    folder = runtime.folder / "state"
    file = tmp_path / "new.bundle"
    to = ("--runtime", f"127.0.0.1:{runtime.grpc_port}")
    assert "there is no run 'no'" in refused(folder, "export", "no", str(file), *to)
    assert not file.exists()
    assert "there is no run 'no'" in refused(folder, "show", "no", *to)
    assert "there is no run 'no'" in refused(folder, "fork", "no", "--at", "0", *to)
    assert "holds no runs" in refused(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    assert "No such file" in refused(folder, "import", str(file), *to)
    file.write_text("{}")
    assert "expected what 'runs export' wrote" in refused(folder, "import", str(file), *to)
    assert "put the options behind 'runs show'" in refused(folder, "--json", "show", "no", code=2)
    silent = refused(folder, "--runtime", "127.0.0.1:1")
    assert silent.startswith("luftpause: the runtime at 127.0.0.1:1 is not available: ")
    assert silent.endswith("see ./luftpause status, or name one with --runtime")
    for wrong in ("junk", "http://127.0.0.1:7001", "127.0.0.1:", "a b:1"):
        assert f"--runtime {wrong}: expected HOST:PORT" in refused(folder, "--runtime", wrong, code=2)


def test_the_runtime_that_up_started_is_found_by_its_state_folder(runtime: RuntimeProcess) -> None:
    folder = runtime.folder / "state"
    handle = spawn(runtime)
    up = {
        "version": "0",
        "ready": True,
        "supervisor": None,
        "services": [],
        "ports": {"--runtime-grpc-port": runtime.grpc_port},
        "dataplane_url": "",
        "status_url": "",
        "scheduler_target": "",
    }
    (folder / "up.json").write_text(json.dumps(up))
    assert handle in asked(folder)
    people = asked(folder, "show", handle)
    for part in (handle, "AwaitingApproval", "be brief", "step 0", "→ lookup", "→ delete_note", "waits for an answer"):
        assert part in people


def test_runs_are_told_moved_and_forked_through_the_runtime_and_without_it(runtime: RuntimeProcess) -> None:
    folder = runtime.folder / "state"
    elsewhere = runtime.folder / "elsewhere"
    bundle = runtime.folder / "run.bundle"
    to = ("--runtime", f"127.0.0.1:{runtime.grpc_port}")
    handle = spawn(runtime)
    assert check_told(folder, handle, *to)["state"] == "AwaitingApproval"
    forked = asked(folder, "fork", handle, "--at", "1", *to).strip()
    assert json.loads(asked(folder, "show", forked, "--json", *to))["forkedFrom"] == handle
    asked(folder, "export", handle, str(bundle), *to)
    assert bundle.stat().st_mode & 0o777 == 0o600
    assert check_told(folder, handle, *to)["state"] == "Moved"
    assert "File exists" in refused(folder, "export", handle, str(bundle), *to)
    assert "exported from this store" in refused(folder, "import", str(bundle), *to)

    assert runtime.service is not None
    assert runtime.service.stop() == 0
    assert check_told(folder, handle)["state"] == "Moved"
    assert asked(elsewhere, "import", str(bundle)) == f"{handle}\n"
    assert check_told(elsewhere, handle)["state"] == "AwaitingApproval"
    for again in (elsewhere, runtime.folder / "third"):
        assert "imported already" in refused(again, "import", str(bundle))
    own = asked(elsewhere, "fork", handle, "--at", "0").strip()
    assert len(json.loads(asked(elsewhere, "--json"))) == 2
    asked(elsewhere, "export", own, str(runtime.folder / "fork.bundle"))
