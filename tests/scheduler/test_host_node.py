"""The scheduler driven from another language: Node, with stubs made at run time from protos/."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pathlib
import shutil

import pytest

from common.auth import Guard
from tests.scheduler.running_host import A, running_host
from tests.stack import ROOT

FOLDER = pathlib.Path(__file__).with_name("node")
CACHE = ROOT / ".venv" / "node"
INSTALL_S = 120
DRIVE_S = 30


async def run(folder: pathlib.Path, timeout_s: float, *command: str) -> str:
    """What `command`, run in `folder`, prints; an AssertionError with all of it if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode(errors="replace")
    return out.decode()


async def installed_modules() -> pathlib.Path:
    """A folder outside the tracked files where the modules of the lock file are installed, once for each lock file."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        message = f"{' and '.join(missing)} not installed"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    lock = (FOLDER / "package-lock.json").read_bytes()
    folder = CACHE / hashlib.sha256(lock).hexdigest()[:16]
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(FOLDER / name, folder)
        await run(folder, INSTALL_S, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        (folder / "installed").touch()
    return folder


async def test_node_admits_reports_resyncs_dispatches_and_watches() -> None:
    modules = await installed_modules()
    async with running_host((A,), guard=Guard("secret")) as running:
        client = str(FOLDER / "client.mjs")
        seen = json.loads(await run(modules, DRIVE_S, "node", client, str(ROOT), f"127.0.0.1:{running.port}", "secret"))
    unary, dispatch, (replica,) = seen["unary"], seen["dispatch"], seen["replicas"]
    assert unary["outcome"] == "placement"
    assert (unary["placement"]["runId"], unary["placement"]["url"]) == ("run-of-u1", A.url)
    assert unary["placement"]["traceparent"].startswith("00-0123")
    assert unary["taken"] == 2
    assert unary["refusal"]["reason"] == "REFUSAL_REASON_UNKNOWN_MODEL"
    assert seen["invalid"].startswith("INVALID_ARGUMENT turn.turn_id: expected")
    assert seen["unauthenticated"].startswith("UNAUTHENTICATED missing or wrong token")
    assert seen["resynced"] == {"runs": 1, "turns": 0}
    assert [placement["turnId"] for placement in dispatch["placements"]] == ["d1"]
    assert dispatch["placements"][0]["sequence"] > unary["placement"]["sequence"]
    assert [refusal["reason"] for refusal in dispatch["refusals"]] == ["REFUSAL_REASON_INVALID"]
    assert (replica["name"], replica["kind"], replica["healthy"]) == ("a", "REPLICA_KIND_GENERATIVE", True)
    assert (replica["inFlight"], replica["capacity"], replica["models"]) == (0, 1, ["m"])
