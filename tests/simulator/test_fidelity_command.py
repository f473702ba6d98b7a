"""`./luftpause bench fidelity` as its user sees it, on two fake engines: sweeps, a profile, a flood on both."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from fakes.engine import profile_file
from fakes.engine.latency import CPU_TESTBED
from loadgen.ports import free_ports
from tests.stack import ROOT, answers, environment, start
from tests.waiting import wait_until_sync

pytestmark = pytest.mark.e2e


def call(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", "bench", "fidelity", *arguments],
        cwd=ROOT,
        env=environment({"TMPDIR": str(folder)}),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_it_fits_a_profile_and_judges_it_on_floods(tmp_path: pathlib.Path) -> None:
    ports = free_ports(2)
    settings = {
        "LUFTPAUSE_ENGINE_PORTS": ",".join(map(str, ports)),
        "LUFTPAUSE_ENGINE_PROFILE": "cpu-testbed",
        "LUFTPAUSE_ENGINE_SPEED": "4",
    }
    engines = start("fakes.engine", settings, tmp_path / "engines.log")
    try:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        wait_until_sync(lambda: all(answers(f"{url}/v1/models") for url in urls))
        options = [word for url in urls for word in ("--engine", url)]
        short = ["--warm-up-s", "1", "--measure-s", "10", "--loads", "1+3", "--seed", "4"]
        files = ["--write", str(tmp_path / "profile.json"), "--json", str(tmp_path / "report.json")]
        done = call(tmp_path, *options, *short, *files)
    finally:
        engines.stop()
    report = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == (0 if report["passed"] else 1), done.stderr
    assert "sweeps: seconds of a turn" in done.stdout
    fitted = profile_file.named(str(tmp_path / "profile.json"))
    assert (fitted.kv_tokens, fitted.block_tokens) == (CPU_TESTBED.kv_tokens, CPU_TESTBED.block_tokens)
    # How near the constants come depends on what else the machine does: test_fit has them exact.
    assert sum(report["constants"].values()) > 0
    assert fitted.texts.chars_per_token == pytest.approx(4.0, rel=0.01)
    assert {row["figure"] for row in report["loads"]} == {"runs/min", "run p50", "cached"}
    assert {row["class"] for row in report["loads"]} == {"interactive", "batch"}
    assert all(row["real"] is not None and row["simulated"] is not None for row in report["loads"])
    assert len(report["bars"]) == len(report["loads"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--engine", "x"], "--engine x: expected"),
        (["--engine", "http://127.0.0.1:9", "--loads", "4"], "--loads 4: expected"),
        (["--engine", "http://127.0.0.1:9", "--profile", "nowhere.json"], "--profile nowhere.json: expected one of"),
    ],
)
def test_wrong_options_are_named(tmp_path: pathlib.Path, arguments: list[str], problem: str) -> None:
    done = call(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr


def test_an_engine_that_is_not_there_is_told_in_one_line(tmp_path: pathlib.Path) -> None:
    [port] = free_ports(1)
    done = call(tmp_path, "--engine", f"http://127.0.0.1:{port}")
    assert (done.returncode, done.stderr) == (1, f"luftpause: engine http://127.0.0.1:{port}: no connection\n")


def test_a_profile_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "profile.json"
    profile_file.write(CPU_TESTBED, path)
    assert profile_file.named(str(path)) == CPU_TESTBED


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kv_tokens": 0}, "kv_tokens must be at least 1"),
        ({"kv_tokens": "x"}, "kv_tokens"),
        ({"colour": 1}, "no field colour"),
        ({"turn_s": -1}, "turn_s must be at least 0"),
        ({"effective_flops": 0}, "effective_flops must be above 0"),
    ],
)
def test_a_file_with_a_wrong_profile_is_refused(
    tmp_path: pathlib.Path, change: dict[str, object], problem: str
) -> None:
    path = tmp_path / "profile.json"
    profile_file.write(CPU_TESTBED, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=problem):
        profile_file.named(str(path))
