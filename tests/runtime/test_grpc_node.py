"""The Runs service driven from another language: Node, with stubs made at run time from protos/."""

from __future__ import annotations

import json
import pathlib

from common.auth import Guard
from runtime import grpc_server
from tests.node import installed_modules, run
from tests.runtime.journals import assert_valid
from tests.runtime.rig import rig
from tests.scheduler.test_host_node import DRIVE_S, FOLDER
from tests.stack import ROOT

CLIENT = pathlib.Path(__file__).with_name("node") / "client.mjs"


async def test_node_spawns_approves_watches_reads_and_cancels(tmp_path: pathlib.Path) -> None:
    modules = await installed_modules(FOLDER)
    async with rig(tmp_path) as r, grpc_server.serving(r.runtime, "127.0.0.1", 0, Guard("secret")) as port:
        seen = json.loads(await run(modules, DRIVE_S, "node", str(CLIENT), str(ROOT), f"127.0.0.1:{port}", "secret"))
    assert seen["asked"]["state"] == "RUN_STATE_AWAITING_APPROVAL"
    assert seen["asked"]["pendingApproval"]["tool"] == "delete"
    assert seen["asked"]["budget"]["tokens"] == 9000
    assert seen["approved"]["run"]["handle"] == seen["handle"]
    assert seen["steps"] == ["started", "reply", "callAnswered", "callStarted", "callEnded", "reply", "end"]
    assert (seen["run"]["state"], seen["run"]["caller"]) == ("RUN_STATE_COMPLETED", "node")
    assert_valid(seen["messages"])
    assert seen["cancelled"] == seen["listed"] == [seen["other"]]
    assert seen["invalid"].startswith("INVALID_ARGUMENT task: expected")
    assert seen["unauthenticated"].startswith("UNAUTHENTICATED missing or wrong token")
