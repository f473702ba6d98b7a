"""`./luftpause load --spawn`: sub-agents through a real runtime, with the summary of own-loop load."""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from loadgen.mcp_calls import CallError, McpTools
from loadgen.ports import free_ports
from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.stack import ROOT, environment
from tests.waiting import wait_until

TOKEN = "secret"
QUICK = ("--turns", "3", "--context-chars", "4000", "--max-tokens", "16", "--class", "batch", "--json")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    """One runtime for all tests here, with a token."""
    with running_runtime(tmp_path_factory.mktemp("spawning"), {"LUFTPAUSE_TOKEN": TOKEN}) as made:
        yield made


def runs_of(runtime: RuntimeProcess) -> list[dict[str, Any]]:
    """The runs in the runtime's status."""
    request = urllib.request.Request(f"{runtime.url}/status", headers={"Authorization": f"Bearer {TOKEN}"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - our own URL
        return list(json.load(answer)["runs"])


async def start(*arguments: str, **settings: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "load", "--spawn", "3", *QUICK, *arguments),
        cwd=ROOT,
        env=environment({"LUFTPAUSE_TOKEN": TOKEN, **settings}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def load(*arguments: str, **settings: str) -> tuple[int | None, str, str]:
    process = await start(*arguments, **settings)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, out.decode(), err.decode()


async def test_sub_agents_are_spawned_one_after_another_and_counted_as_own_loop_agents_are(
    runtime: RuntimeProcess,
) -> None:
    process = await start("--duration-s", "60", "--target", runtime.mcp_url)
    await wait_until(lambda: sum(each["state"] == "Completed" for each in runs_of(runtime)) >= 6)
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 0, err
    figures = json.loads(out)
    assert (figures["target"], figures["agents"], figures["class"]) == (runtime.mcp_url, 3, "batch")
    assert figures["runs"] >= 3
    assert figures["errors"] == {}
    assert figures["turns"] == figures["turn_s"]["count"] == 3 * figures["runs"]
    assert figures["ttft_s"]["count"] == 0
    # Two of three turns find the prefix of the one before.
    assert 0.6 < figures["cached_share"] < 0.7
    seen = runs_of(runtime)
    assert {
        (each["class"], each["caller"], each["own"]["toolCalls"]) for each in seen if each["own"]["turns"] == 3
    } == {("batch", "load", 2)}
    assert {each["state"] for each in seen} <= {"Completed", "Cancelled"}, "what was under way has been cancelled"


async def test_runs_that_do_not_complete_are_errors_that_say_why(runtime: RuntimeProcess) -> None:
    code, out, err = await load("--duration-s", "2", "--target", runtime.mcp_url, "--model", "missing")
    assert code == 1
    figures = json.loads(out)
    assert (figures["runs"], figures["model"]) == (0, "missing")
    assert figures["runs_failed"] == figures["errors"]["Failed"]
    assert "no turn succeeded" in err
    assert "missing" in figures["error_messages"]["Failed"]


async def test_a_runtime_that_is_not_there_is_told() -> None:
    (port,) = free_ports(1)
    code, _, err = await load("--duration-s", "2", "--target", f"http://127.0.0.1:{port}")
    assert code == 1
    assert "no connection" in err.splitlines()[-1]


async def test_options_of_own_loop_agents_are_refused() -> None:
    code, out, err = await load("--tool-s-min", "0.1")
    assert (code, out) == (2, "")
    assert err == "luftpause: --tool-s-min is for agents that keep their own loop, not for --spawn\n"


async def test_what_is_up_in_the_state_folder_is_the_default_target(tmp_path: pathlib.Path) -> None:
    (port,) = free_ports(1)
    up = {"version": "0", "ready": True, "supervisor": None, "services": [], "dataplane_url": "", "status_url": ""}
    (tmp_path / "up.json").write_text(json.dumps({**up, "scheduler_target": "", "ports": {"--runtime-port": port}}))
    _, out, _ = await load("--duration-s", "0.1", "--state", str(tmp_path))
    assert json.loads(out)["target"] == f"http://127.0.0.1:{port}/mcp"


async def test_errors_of_the_server_and_of_the_tool_are_told_apart(runtime: RuntimeProcess) -> None:
    async with McpTools(runtime.mcp_url, TOKEN) as tools:
        with pytest.raises(CallError, match="error of the tool") as of_the_tool:
            await tools.call("status", handle="run-x")
        with pytest.raises(CallError) as unknown:
            await tools.call("missing")
    async with McpTools(runtime.mcp_url, "wrong") as tools:
        with pytest.raises(CallError, match="status 401"):
            await tools.call("tools")
    assert of_the_tool.value.message.endswith("handle: there is no run 'run-x'")
    assert "missing" in unknown.value.message
