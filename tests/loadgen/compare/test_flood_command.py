"""`./luftpause bench flood` as its user sees it: arms in turn on fake engines, the report, the exit code, Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.bench import app
from loadgen.ports import free_ports
from tests.loadgen.scripted_engine import ScriptedEngine
from tests.stack import ROOT, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

AGENTS = ("--batch", "4", "--interactive", "2", "--turns", "2", "--tool-s", "0-0.02")
SMALL = (*AGENTS, "--context-chars", "400", "--max-tokens", "8")
QUICK = ("--warm-up-s", "0.5", "--measure-s", "2", "--repeats", "1", "--seed", "3")
OWN = "mine={python} -P -m loadgen.compare.router --port {port} {engines}"


@contextlib.asynccontextmanager
async def started(folder: pathlib.Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command, with all that it writes for the time being in `folder`."""
    settings = {"LUFTPAUSE_ENGINE_SPEED": "20", "TMPDIR": str(folder), "PEERS": ""}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "bench", "flood", *arguments),
        cwd=ROOT,
        env=environment(settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert left_in(folder) == []


def left_in(folder: pathlib.Path) -> list[str]:
    """What a bench should have cleared up."""
    return [*map(str, folder.glob("luftpause-bench-*")), *processes_in(folder)]


def processes_in(folder: pathlib.Path) -> list[str]:
    """Processes that work in `folder` or below it."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


async def run(folder: pathlib.Path, *arguments: str) -> tuple[int | None, str, str]:
    async with started(folder, *arguments) as process:
        out, err = await asyncio.wait_for(process.communicate(), 90)
        return process.returncode, out.decode(), err.decode()


def entries_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = report["entries"]
    return found


async def test_arms_take_turns_and_a_missed_bar_is_the_exit_code(tmp_path: pathlib.Path) -> None:
    picture = tmp_path / "flood.svg"
    arguments = ("--arms", "alone,router,luftpause", "--require", "interactive=0.001,batch=1000")
    code, out, err = await run(tmp_path, *SMALL, *QUICK, *arguments, "--json", "-", "--svg", str(picture))
    assert code == 1, err
    report = json.loads(out)
    entries = entries_of(report)
    assert list(entries) == ["alone", "router", "luftpause"]
    assert list(entries["alone"]) == ["interactive"]
    for figures in (of for entry in entries.values() for of in entry.values()):
        assert figures["errors"] == {}
        assert figures["runs_per_min"]["median"] > 0
    assert entries["luftpause"]["interactive"]["cached_share"]["median"] > 0.2
    assert [bar["holds"] for bar in report["bars"]] == [True, False]
    assert report["settings"]["seed"] == 3
    assert picture.read_text().startswith("<svg")
    assert "luftpause, 1 of 1: measuring" in err


async def test_sub_agents_flood_an_arm_through_a_runtime_that_ends_with_it(tmp_path: pathlib.Path) -> None:
    arguments = ("--arms", "router,luftpause", "--sub-agents", "batch", "--measure-s", "6", "--json", "-")
    code, out, err = await run(tmp_path, *SMALL, *QUICK, *arguments)
    assert code == 0, err
    for figures in entries_of(json.loads(out)).values():
        assert figures["batch"]["errors"] == figures["interactive"]["errors"] == {}
        assert figures["batch"]["runs_per_min"]["median"] > 0
        # What only their own loop sees tells who is who.
        assert figures["batch"]["ttft_s_p50"] is None
        assert figures["interactive"]["ttft_s_p50"]["median"] > 0


async def test_sessions_are_replayed_by_agents_that_use_text_and_never_say_that_they_end(
    tmp_path: pathlib.Path,
) -> None:
    turns = [[0, 4_000, 400, 0, 0, 5.0, 1], [20, 4_500, 800, 4_000, 0.5, 5.0, 0]]
    traces = tmp_path / "traces.jsonl"
    traces.write_text(json.dumps({"id": "t", "system_tokens": 1, "tool_tokens": 1, "turns": turns}) + "\n")
    async with ScriptedEngine().running() as engine:
        arguments = (
            "--traces",
            str(traces),
            "--tools",
            "text",
            "--no-end",
            "--no-run-id",
            "--arms",
            "luftpause",
            "--arm",
            OWN,
        )
        code, out, err = await run(tmp_path, *SMALL, *QUICK, *arguments, "--engine", engine.url)
    assert code == 0, err
    assert "interactive runs" in out
    assert "mine" in out
    assert engine.ended_runs == []
    measured = [body for body in engine.bodies if body["max_tokens"] in (8, 16)]
    assert len(measured) == len(engine.bodies)
    assert all("tools" not in body for body in measured)
    assert {body["max_tokens"] for body in measured if len(body["messages"]) > 2} == {16}


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
async def test_ctrl_c_ends_everything_that_was_started(tmp_path: pathlib.Path) -> None:
    arguments = ("--arms", "luftpause", "--warm-up-s", "0", "--measure-s", "600", "--repeats", "2")
    async with started(tmp_path, *SMALL, *arguments) as process:
        assert process.stderr
        async with asyncio.timeout(60):
            while b"measuring" not in await process.stderr.readline():
                pass
        await wait_until(lambda: len(processes_in(tmp_path)) >= 3)
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 130
        assert err.decode().splitlines()[-1] == "luftpause: interrupted"


async def test_an_arm_that_does_not_start_is_told_with_its_last_words(tmp_path: pathlib.Path) -> None:
    broken = "broken={python} -c \"import sys; sys.exit('no luck on {port}')\""
    code, out, err = await run(tmp_path, *SMALL, *QUICK, "--arms", "broken", "--arm", broken)
    assert (code, out) == (1, "")
    assert "luftpause: broken ended with exit code 1\n  no luck on " in err


async def test_an_engine_that_is_not_there_is_told_in_one_line(tmp_path: pathlib.Path) -> None:
    [port] = free_ports(1)
    code, _, err = await run(tmp_path, "--engine", f"http://127.0.0.1:{port}", "--arms", "router")
    assert code == 1
    assert err == f"luftpause: engine http://127.0.0.1:{port}: no connection\n"


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (("--arms", "nobody"), 1, "no arm 'nobody'"),
        (("--arms", "router", "--require", "batch=1"), 1, "--require batch needs the arm luftpause"),
        (("--require", "speed=1"), 2, "--require speed=1: expected NAME=NUMBER"),
        (("--tool-s", "a-b"), 2, "--tool-s a-b"),
        (("--tool-s", "2-1"), 2, "tool_s_min"),
        (("--arm", "x"), 2, "expected NAME=COMMAND"),
        (("--profile", "x"), 2, "--profile x: expected one of"),
        (("--engine", "x:1"), 2, "--engine x:1"),
        (("--traces", "x", "--sub-agents", "all"), 2, "--traces is for agents that keep their own loop"),
    ],
)
def test_wrong_calls_are_told_in_one_line_before_anything_is_started(
    arguments: tuple[str, ...], code: int, problem: str
) -> None:
    seen = CliRunner().invoke(app, ["flood", *arguments])
    assert (seen.exit_code, seen.stdout) == (code, "")
    assert problem in seen.stderr
    assert len(seen.stderr.splitlines()) == 1
