"""`./luftpause bench chaos`: a short one, and that it ends what it starts."""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import sys

import pytest

from loadgen import bench_chaos
from tests.stack import ROOT, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills, freezes and reads processes as Linux allows")


def alive(pids: list[str]) -> list[str]:
    """Those of `pids` that still run."""
    return [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


@pytest.mark.e2e
async def test_nothing_is_lost_doubled_stuck_leaked_or_wrong(tmp_path: pathlib.Path) -> None:
    report = json.loads(json.dumps(await bench_chaos.run(15.0, 1, tmp_path, lambda _what: None)))
    assert report["faults"] == {kind: [] for kind in ("lost", "doubled", "stuck", "leaked", "wrong")}
    assert report["passed"]
    assert report["figures"]["turns"]["answered"] > 100
    assert report["figures"]["sub_agents"]["completed"] > 0
    struck = {fault["target"] for fault in report["plan"] if fault["kind"] == "kill"}
    assert struck
    assert {name for name, starts in report["starts"].items() if starts > 1} == struck | {"runtime"}


@pytest.mark.e2e
async def test_it_ends_all_that_it_started_when_it_is_interrupted(tmp_path: pathlib.Path) -> None:
    bench = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "bench", "chaos", "--seed", "5", "--logs", str(tmp_path / "logs")),
        cwd=ROOT,
        env=environment({}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert bench.stdout is not None
        assert await bench.stdout.readline() == b"seed 5: the same seed makes the same plan\n"
        children = pathlib.Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
        started = await wait_until(lambda: len(children.read_text().split()) == 7 and children.read_text().split())
        assert started
        bench.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(bench.communicate(), 30)
    finally:
        if bench.returncode is None:
            bench.kill()
            await bench.wait()
    assert (bench.returncode, err) == (130, b"luftpause: interrupted\n")
    assert alive(started) == []


def test_elsewhere_than_on_linux_it_says_that_it_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert bench_chaos.main(10, 1, json_output=True) == 0
    assert "skipped" in json.loads(capsys.readouterr().out)
