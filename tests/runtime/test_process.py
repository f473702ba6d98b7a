"""`python -m runtime` as a process: what it says when it cannot start, and who may have a state folder."""

from __future__ import annotations

import pathlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from tests.runtime.service_process import RuntimeProcess, running_runtime, tracebacks
from tests.stack import environment


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    """One that runs."""
    with running_runtime(tmp_path_factory.mktemp("process")) as made:
        yield made


def refused(folder: pathlib.Path, settings: Mapping[str, str]) -> str:
    """What a runtime prints that cannot start: one line. Fails if it starts."""
    free = {"LUFTPAUSE_RUNTIME_PORT": "0", "LUFTPAUSE_RUNTIME_GRPC_PORT": "0", "LUFTPAUSE_STATE": str(folder / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "runtime"],
        env=environment({**free, **settings}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if "level=" not in line]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_state_folder_that_is_in_use_is_refused(runtime: RuntimeProcess, tmp_path: pathlib.Path) -> None:
    said = refused(tmp_path, {"LUFTPAUSE_STATE": runtime.settings["LUFTPAUSE_STATE"]})
    assert runtime.service is not None
    assert said == f"another runtime (process {runtime.service.process.pid}) uses the state folder"


@pytest.mark.parametrize("setting", ["LUFTPAUSE_RUNTIME_PORT", "LUFTPAUSE_RUNTIME_GRPC_PORT"])
def test_a_taken_port_is_named_by_its_setting(tmp_path: pathlib.Path, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert refused(tmp_path, {setting: str(port)}) == f"{setting}={port}: Address already in use"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"LUFTPAUSE_RUNTIME_TOOLS": "missing.toml"}, "tools file missing.toml: No such file"),
        ({"LUFTPAUSE_RUNTIME_MODELS": "x"}, "unknown setting LUFTPAUSE_RUNTIME_MODELS"),
        ({"LUFTPAUSE_STATE": "/dev/null/state"}, "LUFTPAUSE_STATE=/dev/null/state: Not a directory"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: pathlib.Path, settings: dict[str, str], expected: str) -> None:
    assert refused(tmp_path, settings).startswith(expected)


def test_it_says_once_where_it_listens(runtime: RuntimeProcess) -> None:
    assert runtime.service is not None
    (line,) = (line for line in runtime.service.text().splitlines() if "event=listening" in line)
    assert f"port={runtime.port} grpc_port={runtime.grpc_port}" in line


def test_only_what_the_sdk_says_of_a_client_that_left_may_be_a_traceback() -> None:
    head = "2026-07-28 10:00:00,000 level=ERROR logger="
    traced = "Traceback (most recent call last):\n"
    left = f"{traced}  File 'x', in _handle_post_request\n    await writer.send(message)\nanyio.ClosedResourceError\n"
    known = f"{head}mcp.server.streamable_http Error\n{left}{head}uvicorn.error Error\n{left}{traced}RuntimeError\n"
    ours = f"{head}runtime Error\n{traced}anyio.ClosedResourceError\n"
    bare = f"{traced}ValueError\n"
    assert tracebacks(known + f"{head}runtime fine\n" + known) == []
    assert tracebacks(known + ours + known) == [ours]
    assert tracebacks(bare + known) == [bare]
