"""The official conformance tests of MCP: of the Tasks extension with tools made for them, the others on the runtime."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re

from tests.node import installed_modules, run
from tests.runtime.conformance_server import own_tools, task_tools

MODULES = pathlib.Path(__file__).with_name("conformance")
SCENARIO_S = 60
AT_ONCE = 3
PLAIN = (
    "server-initialize",
    "server-session-lifecycle",
    "dns-rebinding-protection",
    "http-header-validation",
    "ping",
    "tools-list",
    "caching",
)
TASKS = (
    "tasks-lifecycle",
    "tasks-dispatch-and-envelope",
    "tasks-capability-negotiation",
    "tasks-request-headers",
    "tasks-wire-fields",
    "tasks-mrtr-input",
    "tasks-request-state-removal",
    "tasks-required-task-error",
    "tasks-mrtr-composition",
)


async def conform(url: str, scenarios: tuple[str, ...]) -> None:
    """Runs `scenarios` against the server at `url`. Fails with what each says that is not passed whole."""
    modules = await installed_modules(MODULES)
    # The tests need a newer Node than many systems have, so one comes with them where there is one for the machine.
    own = [str(path.parent) for path in modules.glob("node_modules/node-*/bin/node")]
    environment = {**os.environ, "PATH": os.pathsep.join([*own, os.environ["PATH"]]), "NO_COLOR": "1"}
    tool = str(modules / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(scenario: str) -> None:
        async with turns:
            command = ("node", tool, "server", "--url", url, "--scenario", scenario)
            said = await run(modules, SCENARIO_S, *command, environment=environment)
        passed = re.search(r"Passed: (\d+)/(\d+), 0 failed", said)
        assert passed, f"{scenario}: {said}"
        assert int(passed[1]) == int(passed[2]) > 0, f"{scenario}: {said}"

    await asyncio.gather(*map(one, scenarios))


async def test_the_runtime_passes_the_scenarios_that_need_no_tools_of_theirs(tmp_path: pathlib.Path) -> None:
    async with own_tools(tmp_path) as url:
        await conform(url, PLAIN)


async def test_the_tasks_extension_passes_its_scenarios(tmp_path: pathlib.Path) -> None:
    async with task_tools(tmp_path) as url:
        await conform(url, TASKS)
