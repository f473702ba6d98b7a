"""The scheduler driven from another language: Node, with stubs made at run time from protos/."""

from __future__ import annotations

import json
import pathlib

from common.auth import Guard
from tests.node import installed_modules, run
from tests.scheduler.running_host import A, running_host
from tests.stack import ROOT

FOLDER = pathlib.Path(__file__).with_name("node")
DRIVE_S = 30


async def test_node_admits_reports_resyncs_dispatches_and_watches() -> None:
    modules = await installed_modules(FOLDER)
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
