"""`./luftpause load` as its user sees it: what is on stdout, what on stderr, and the exit code."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
import signal
import sys
from collections.abc import Callable

import pytest

from loadgen.ports import free_ports
from tests.loadgen.scripted_engine import ScriptedEngine
from tests.stack import ROOT, environment
from tests.waiting import wait_until

QUICK = ("--turns", "2", "--context-chars", "100", "--tool-s-min", "0", "--tool-s-max", "0.01")


async def start(*arguments: str, **settings: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "load", *QUICK, *arguments),
        cwd=ROOT,
        env=environment(settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(*arguments: str, **settings: str) -> tuple[int | None, str, str]:
    process = await start(*arguments, **settings)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, out.decode(), err.decode()


async def run_until(condition: Callable[[], bool], *arguments: str, **settings: str) -> tuple[int | None, str, str]:
    """Ends it with Ctrl-C once the condition is true."""
    process = await start("--duration-s", "600", *arguments, **settings)
    try:
        await wait_until(condition, 30)
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), 10)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, out.decode(), err.decode()


async def test_json_prints_one_object_and_nothing_else() -> None:
    async with ScriptedEngine().running() as engine:
        arguments = ("--target", engine.url, "--agents", "2", "--seed", "7", "--json")
        code, out, _ = await run_until(lambda: len(engine.ended_runs) >= 3, *arguments)
    assert code == 0
    figures = json.loads(out)
    assert (figures["target"], figures["model"], figures["seed"]) == (engine.url, "first", 7)
    assert (figures["class"], figures["caller"], figures["agents"]) == ("interactive", "load", 2)
    assert figures["runs"] > 0
    assert figures["errors"] == {}


async def test_it_ends_by_itself_with_the_table_on_stdout_and_the_progress_on_stderr() -> None:
    async with ScriptedEngine().running() as engine:
        code, out, err = await run("--target", engine.url, "--duration-s", "3", "--class", "batch", "--model", "m")
    assert code == 0
    assert "8 batch agents" in out
    assert "run p50 / p90 / p99" in out
    assert "batch: " in err
    assert engine.bodies[0]["model"] == "m"


async def test_what_is_up_in_the_state_folder_is_the_default_target(tmp_path: pathlib.Path) -> None:
    async with ScriptedEngine().running() as engine:
        up = {
            "version": "0",
            "ready": True,
            "supervisor": None,
            "services": [],
            "ports": {},
            "dataplane_url": engine.url.removesuffix("/v1"),
            "status_url": "",
            "scheduler_target": "",
        }
        (tmp_path / "up.json").write_text(json.dumps(up))
        code, out, err = await run_until(lambda: bool(engine.ended_runs), "--state", str(tmp_path), "--json")
    assert code == 0, err
    assert json.loads(out)["target"] == engine.url


async def test_the_token_is_read_from_the_variable_named_and_sent() -> None:
    async with ScriptedEngine().running() as engine:
        arguments = ("--target", engine.url, "--token-env", "MINE")
        code, _, err = await run_until(lambda: bool(engine.ended_runs), *arguments, MINE="secret")
    assert code == 0, err
    assert engine.headers[0]["authorization"] == "Bearer secret"


async def test_a_load_without_one_good_turn_ends_with_1_and_says_why_in_a_line() -> None:
    async with ScriptedEngine(script=["502"] * 1000).running() as engine:
        arguments = ("--target", engine.url, "--agents", "1", "--json")
        code, out, err = await run_until(lambda: len(engine.bodies) == 2, *arguments)
    assert code == 1
    assert json.loads(out)["turns"] == 0
    assert re.fullmatch(
        r"luftpause: no turn succeeded in [\d.]+ s: errors: \d status 502: no luck with 502", err.splitlines()[-1]
    )


async def test_ctrl_c_ends_it_in_the_middle_of_turns() -> None:
    async with ScriptedEngine(tokens=1000, pause_s=0.05).running() as engine:
        code, out, err = await run_until(lambda: len(engine.bodies) == 8, "--target", engine.url, "--json")
    assert code == 1
    assert json.loads(out)["errors"] == {}
    assert err.splitlines()[-1].endswith("no errors, none had ended")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--target", "localhost:80"), "must be an http:// or https:// URL"),
        (("--tool-s-min", "9"), "tool_s_min must be"),
        (("--caller", "a\nb"), "--caller must be printable"),
        (("--context-chars", "99999999"), "context_chars must be"),
    ],
)
async def test_wrong_options_are_told_in_one_line(arguments: tuple[str, ...], problem: str) -> None:
    code, out, err = await run(*arguments)
    assert code == 2
    assert problem in err
    assert len(err.splitlines()) == 1
    assert out == ""


async def test_a_token_that_no_header_can_carry_is_refused_and_not_printed() -> None:
    code, out, err = await run("--target", "http://127.0.0.1:9", LUFTPAUSE_TOKEN="open sesame")
    assert (code, out) == (2, "")
    assert err == "luftpause: LUFTPAUSE_TOKEN: expected printable ASCII without spaces\n"


async def test_nobody_at_the_target_is_told_in_one_line() -> None:
    [port] = free_ports(1)
    code, out, err = await run("--target", f"http://127.0.0.1:{port}/v1")
    assert (code, out) == (1, "")
    assert err == f"luftpause: http://127.0.0.1:{port}/v1/models: Connection refused\n"
