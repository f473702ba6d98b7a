"""The engine as a process: its line, its end, its settings."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys

import pytest

from fakes.engine.config import EngineConfig
from loadgen.ports import free_ports
from tests.stack import answers, environment, start
from tests.waiting import wait_until_sync

TIMEOUT_S = 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_an_engine_on_each_port_and_ends_cleanly(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    ports = free_ports(2)
    service = start("fakes.engine", {"LUFTPAUSE_ENGINE_PORTS": ",".join(map(str, ports))}, tmp_path / "log")
    try:
        for port in ports:
            wait_until_sync(lambda port=port: answers(f"http://127.0.0.1:{port}/health"), TIMEOUT_S)  # type: ignore[misc]
        service.process.send_signal(number)
        assert service.process.wait(5) == 0
    finally:
        service.kill()
    lines = service.text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"event=listening service=engine host=127.0.0.1 ports={ports[0]},{ports[1]} ")


def _run(**settings: str) -> tuple[int, str]:
    """Exit code and error output of an engine that does not get far."""
    command = [sys.executable, "-m", "fakes.engine"]
    done = subprocess.run(command, env=environment(settings), capture_output=True, timeout=TIMEOUT_S, check=False)
    return done.returncode, done.stderr.decode()


def test_a_taken_port_is_told_in_one_line(tmp_path: pathlib.Path) -> None:
    (port,) = free_ports(1)
    service = start("fakes.engine", {"LUFTPAUSE_ENGINE_PORTS": str(port)}, tmp_path / "log")
    try:
        wait_until_sync(lambda: answers(f"http://127.0.0.1:{port}/health"), TIMEOUT_S)
        code, errors = _run(LUFTPAUSE_ENGINE_PORTS=str(port))
    finally:
        service.stop()
    assert code == 1
    assert len(errors.splitlines()) == 1
    assert errors.startswith(f"LUFTPAUSE_ENGINE_PORTS={port}: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORTS", "9001,x"),
        ("PORTS", "70000"),
        ("PROFILE", "abacus"),
        ("MAX_MODEL_LEN", "1000000"),
        ("SPEED", "0"),
        ("METRICS", "triton"),
        ("FAULTS", '[{"fault": "melt"}]'),
        ("FAULTS", "{"),
        ("COLOUR", "red"),
    ],
)
def test_a_wrong_setting_is_told(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"LUFTPAUSE_ENGINE_{name}", value)
    with pytest.raises(SystemExit) as caught:
        EngineConfig.read()
    assert f"LUFTPAUSE_ENGINE_{name}" in str(caught.value.code)


def test_a_wrong_setting_ends_the_process_without_a_traceback() -> None:
    code, errors = _run(LUFTPAUSE_ENGINE_PROFILE="abacus")
    assert code == 1
    assert "expected one of laptop-1b" in errors
    assert "Traceback" not in errors
