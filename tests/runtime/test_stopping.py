"""The runtime ends in time, whatever its tool servers do."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import ElicitRequestParams, ElicitResult

from common.auth import Guard
from protos import runtime_pb2 as pb
from runtime import http
from runtime.__main__ import CUT_S
from runtime.origins import Served
from tests.runtime.kills import client
from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.runtime.test_mcp import call, connected
from tests.stack import ROOT
from tests.waiting import wait_until_sync

LISTENS_TO_NOTHING = """
import os, pathlib, signal, time
from fakes.toolserver import main
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
main(["--stdio"])
while True:
    time.sleep(1)
"""
"""A tool server that works, ignores SIGTERM, and stays when its input ends."""


IN_TIME_S = 5.0
"""By design it takes 3.5 s; a loaded machine has the rest."""


def stop_s(runtime: RuntimeProcess) -> float:
    """Seconds that the runtime takes to end after SIGTERM."""
    assert runtime.service is not None
    began = time.monotonic()
    assert runtime.service.stop() == 0
    return time.monotonic() - began


@pytest.mark.parametrize("is_called", [False, True])
def test_it_ends_in_5_s_with_a_child_that_listens_to_nothing(tmp_path: pathlib.Path, is_called: bool) -> None:
    pid_file = tmp_path / "pid"
    settings = {"PYTHONPATH": str(ROOT), "PID_FILE": str(pid_file), "LUFTPAUSE_TOOLS_NOTE_S": "60"}
    with running_runtime(tmp_path, settings, begin=False) as runtime:
        command = [sys.executable, "-c", LISTENS_TO_NOTHING]
        (tmp_path / "tools.toml").write_text(
            f'[[server]]\nname = "stubborn"\ncommand = {json.dumps(command)}\nenv = {json.dumps([*settings])}\n'
        )
        runtime.start()
        with client(runtime) as runs:
            if is_called:
                handle = runs.Spawn(pb.SpawnRequest(task='CALL add_note {"text": "a"}')).handle
                records = (told.WhichOneof("record") for told in runs.Watch(pb.RunsWatchRequest(handle=handle)))
                assert "call_started" in records
            assert stop_s(runtime) < IN_TIME_S
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)


SPEAKS_LATE = """
import os, pathlib, time
pathlib.Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
time.sleep(60)
"""


def test_it_ends_in_5_s_while_its_tool_servers_are_still_starting(tmp_path: pathlib.Path) -> None:
    pid_file = tmp_path / "pid"
    with running_runtime(tmp_path, {"PID_FILE": str(pid_file)}, begin=False) as runtime:
        command = [sys.executable, "-c", SPEAKS_LATE]
        (tmp_path / "tools.toml").write_text(
            f'[[server]]\nname = "late"\ncommand = {json.dumps(command)}\nenv = ["PID_FILE"]\n'
        )
        runtime.start(wait=False)
        wait_until_sync(lambda: pid_file.exists() and pid_file.read_text() != "")
        assert stop_s(runtime) < IN_TIME_S


async def test_it_ends_in_5_s_while_a_person_is_shown_a_form(tmp_path: pathlib.Path) -> None:
    shown = asyncio.Event()

    async def never_answers(_context: Any, _params: ElicitRequestParams) -> ElicitResult:
        shown.set()
        await asyncio.Event().wait()
        raise AssertionError

    with running_runtime(tmp_path) as runtime:
        async with connected(runtime, "legacy", elicitation_callback=never_answers) as client:
            handle = (await call(client, "spawn", task='CALL delete_note {"name": "n"}'))["handle"]
            waiting = asyncio.create_task(call(client, "await", handles=[handle]))
            async with asyncio.timeout(IN_TIME_S):
                await shown.wait()
            assert await asyncio.to_thread(stop_s, runtime) < IN_TIME_S
            (told,) = (await waiting)["results"]
            assert told["state"] == "AwaitingApproval"


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_request_that_is_cut_off_by_the_end_is_answered(has_begun: bool) -> None:
    sent: list[Any] = []

    async def hangs(_scope: Any, _receive: Any, send: Any) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    served = Served.of((), (), listens_on="127.0.0.1", has_token=False)
    closing: Any = SimpleNamespace(is_closing=True)
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": [(b"host", b"127.0.0.1")]}
    asking = asyncio.ensure_future(http._guarded(hangs, Guard(), served, closing)(scope, receive, send))
    await asyncio.sleep(0)
    asking.cancel()
    await asking
    assert sent[0]["status"] == (200 if has_begun else 503)
    assert sent[-1]["type"] == "http.response.body"
    assert not sent[-1].get("more_body")


def test_an_end_that_hangs_is_cut_short_and_tells_where() -> None:
    script = "import time; from runtime.__main__ import _Stop; _Stop().begin(); time.sleep(60)"
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert 'File "<string>", line 1' in ended.stderr
    assert time.monotonic() - began > CUT_S
