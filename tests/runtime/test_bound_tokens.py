"""Tokens that are bound to a caller: at every surface of the runtime the runs of others do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiohttp
import grpc
import pytest
from mcp_types import ElicitResult

from common.auth import bearer_metadata
from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc
from protos.turn_pb2 import RUN_CLASS_BATCH, RUN_CLASS_INTERACTIVE
from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.runtime.test_mcp import call, connected, error

TOKENS = """
[[token]]
name = "alice"
secret_env = "ALICE_TOKEN"
caller = "alice"

[[token]]
name = "bob"
secret_env = "BOB_TOKEN"
caller = "bob"
classes = ["batch"]

[[token]]
name = "alice-batch"
secret_env = "ALICE_BATCH_TOKEN"
caller = "alice"
classes = ["batch"]

[[token]]
name = "nightly"
secret_env = "NIGHTLY_TOKEN"
classes = ["batch"]
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    folder = tmp_path_factory.mktemp("bound")
    (folder / "tokens.toml").write_text(TOKENS)
    settings = {
        "LUFTPAUSE_TOKEN": "shared",
        "LUFTPAUSE_TOKENS": str(folder / "tokens.toml"),
        "ALICE_TOKEN": "of-alice",
        "ALICE_BATCH_TOKEN": "of-alice-batch",
        "BOB_TOKEN": "of-bob",
        "NIGHTLY_TOKEN": "of-nightly",
    }
    with running_runtime(folder, settings) as made:
        yield made


async def test_mcp_clients_see_and_touch_their_own_runs_only(runtime: RuntimeProcess) -> None:
    async with connected(runtime, token="of-alice") as client:
        handle = (await call(client, "spawn", task="hello"))["handle"]
        assert (await call(client, "await", handles=[handle]))["results"][0]["state"] == "Completed"
        [listed] = (await call(client, "status", handle=handle))["runs"]
        assert (listed["caller"], listed["class"]) == ("alice", "interactive")
    async with connected(runtime, token="of-bob") as client:
        for tool, arguments in (
            ("status", {"handle": handle}),
            ("await", {"handles": [handle]}),
            ("cancel", {"handle": handle}),
            ("approve", {"handle": handle, "allow": True}),
            ("spawn", {"task": "hello", "parent": handle}),
        ):
            assert f"there is no run '{handle}'" in await error(client, tool, **arguments)
        assert "expected batch" in await error(client, "spawn", task="hello", serviceClass="interactive")
        own = (await call(client, "spawn", task="hello"))["handle"]
        [listed] = (await call(client, "status", handle=own))["runs"]
        assert (listed["caller"], listed["class"]) == ("bob", "batch")
    async with connected(runtime, token="of-bob", caller="alice") as client:
        assert "caller: expected 'bob' or nothing" in await error(client, "spawn", task="hello")


async def test_tasks_of_others_do_not_exist_for_mcp_clients(runtime: RuntimeProcess) -> None:
    async with connected(runtime, token="of-alice") as client:
        handle = (await call(client, "spawn", task="hello"))["handle"]
    headers = {
        "Authorization": "Bearer of-bob",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tasks/get",
        "Mcp-Name": handle,
    }
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": handle, "_meta": meta}}
    async with (
        aiohttp.ClientSession() as session,
        session.post(runtime.mcp_url, json=message, headers=headers) as answer,
    ):
        assert f"there is no run '{handle}'" in await answer.text()


async def test_grpc_clients_see_and_touch_their_own_runs_only(runtime: RuntimeProcess) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{runtime.grpc_port}") as channel:
        make: Any = runtime_pb2_grpc.RunsStub
        stub = make(channel)
        alice, bob = ({"metadata": bearer_metadata(token)} for token in ("of-alice", "of-bob"))
        handle = (await stub.Spawn(pb.SpawnRequest(task="hello"), **alice)).handle
        assert (await stub.Get(pb.GetRequest(handle=handle), **alice)).run.caller == "alice"
        listed = (await stub.List(pb.ListRequest(), **alice)).runs
        assert handle in [run.handle for run in listed]
        assert {run.caller for run in listed} == {"alice"}
        assert handle not in [run.handle for run in (await stub.List(pb.ListRequest(), **bob)).runs]
        calls = {
            grpc.StatusCode.NOT_FOUND: (
                stub.Get(pb.GetRequest(handle=handle), **bob),
                stub.Await(pb.AwaitRequest(handles=[handle]), **bob),
                stub.Watch(pb.RunsWatchRequest(handle=handle), **bob),
                stub.Cancel(pb.CancelRequest(handle=handle), **bob),
                stub.Approve(pb.ApproveRequest(handle=handle), **bob),
                stub.Fork(pb.ForkRequest(handle=handle), **bob),
                stub.List(pb.ListRequest(after=handle), **bob),
                stub.Spawn(pb.SpawnRequest(task="hello", parent=handle), **bob),
            ),
            grpc.StatusCode.PERMISSION_DENIED: (
                stub.Spawn(pb.SpawnRequest(task="hello", caller="alice"), **bob),
                stub.Export(pb.ExportRequest(handle=handle), **alice),
                stub.Import(pb.ImportRequest(bundle=b"x"), **alice),
            ),
        }
        for code, refused in calls.items():
            for each in refused:
                assert await each.code() is code


async def test_a_token_without_a_caller_speaks_for_any_in_its_classes(runtime: RuntimeProcess) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{runtime.grpc_port}") as channel:
        make: Any = runtime_pb2_grpc.RunsStub
        stub = make(channel)
        alice, nightly = ({"metadata": bearer_metadata(token)} for token in ("of-alice", "of-nightly"))
        handle = (await stub.Spawn(pb.SpawnRequest(task="hello"), **alice)).handle
        assert (await stub.Get(pb.GetRequest(handle=handle), **nightly)).run.handle == handle
        own = (await stub.Spawn(pb.SpawnRequest(task="hello", caller="alice"), **nightly)).handle
        listed = (await stub.List(pb.ListRequest(after=handle), **nightly)).runs
        run = {run.handle: run for run in listed}[own]
        assert (run.caller, run.service_class) == ("alice", RUN_CLASS_BATCH)
        assert await stub.Export(pb.ExportRequest(handle=handle), **nightly).code() is grpc.StatusCode.PERMISSION_DENIED


async def test_the_whole_status_is_not_for_a_bound_token(runtime: RuntimeProcess) -> None:
    async with aiohttp.ClientSession() as session:
        for token, status in (("of-alice", 403), ("shared", 200), ("wrong", 401)):
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(runtime.url + "/status", headers=headers) as answer:
                assert answer.status == status


async def test_a_session_of_another_token_does_not_exist(runtime: RuntimeProcess) -> None:
    client_info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client_info}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    accepts = {"Accept": "application/json, text/event-stream"}
    async with aiohttp.ClientSession(headers=accepts) as http:
        alice, bob, shared = ({"Authorization": f"Bearer {each}"} for each in ("of-alice", "of-bob", "shared"))
        async with http.post(runtime.mcp_url, json=opening, headers=alice) as answer:
            session = {"mcp-session-id": answer.headers["mcp-session-id"]}

        async def status(method: str, headers: dict[str, str], **options: Any) -> int:
            async with http.request(method, runtime.mcp_url, headers=headers | session, **options) as answer:
                return answer.status

        for other in (bob, shared):
            assert await status("POST", other, json=ping) == 404
            assert await status("GET", other) == 404
            assert await status("DELETE", other) == 404
        assert await status("POST", alice, json=ping) == 200
        assert await status("DELETE", alice) == 200


@pytest.mark.parametrize("tokens", [("wrong", "of-bob"), ("of-bob", "wrong"), ("of-alice", "of-bob")])
async def test_two_tokens_in_one_request_are_refused(runtime: RuntimeProcess, tokens: tuple[str, str]) -> None:
    headers = [("Authorization", f"Bearer {token}") for token in tokens]
    async with aiohttp.ClientSession() as http, http.post(runtime.mcp_url, json={}, headers=headers) as answer:
        assert answer.status == 401


DELETES = 'CALL delete_note {"name": "x"}\nthen answer'


async def test_a_token_brings_about_no_run_or_turn_of_a_class_that_it_has_not(runtime: RuntimeProcess) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{runtime.grpc_port}") as channel:
        make: Any = runtime_pb2_grpc.RunsStub
        stub = make(channel)
        alice, batch, nightly = (
            {"metadata": bearer_metadata(token)} for token in ("of-alice", "of-alice-batch", "of-nightly")
        )
        handle = (await stub.Spawn(pb.SpawnRequest(task=DELETES), **alice)).handle
        await stub.Await(pb.AwaitRequest(handles=[handle]), **alice)
        for token in (batch, nightly):
            before = len((await stub.List(pb.ListRequest(), **token)).runs)
            for call_ in (
                stub.Spawn(pb.SpawnRequest(task="hello", service_class=RUN_CLASS_INTERACTIVE), **token),
                stub.Spawn(pb.SpawnRequest(task="hello", parent=handle), **token),
                stub.Spawn(pb.SpawnRequest(task="hello", parent=handle, service_class=RUN_CLASS_BATCH), **token),
                stub.Fork(pb.ForkRequest(handle=handle), **token),
                stub.Approve(pb.ApproveRequest(handle=handle, allow=True), **token),
                stub.Import(pb.ImportRequest(bundle=b"x"), **token),
            ):
                assert await call_.code() is grpc.StatusCode.PERMISSION_DENIED
            assert len((await stub.List(pb.ListRequest(), **token)).runs) == before
            own = (await stub.Spawn(pb.SpawnRequest(task=DELETES), **token)).handle
            await stub.Await(pb.AwaitRequest(handles=[own]), **token)
            forked = (await stub.Fork(pb.ForkRequest(handle=own), **token)).handle
            child = (await stub.Spawn(pb.SpawnRequest(task="hello", parent=own), **token)).handle
            for each in (own, forked, child):
                run = (await stub.Get(pb.GetRequest(handle=each), **token)).run
                assert run.service_class == RUN_CLASS_BATCH
            assert (await stub.Approve(pb.ApproveRequest(handle=own, allow=True), **token)).allow
        assert (await stub.Get(pb.GetRequest(handle=handle), **batch)).run.state == pb.RUN_STATE_AWAITING_APPROVAL
        assert (await stub.Cancel(pb.CancelRequest(handle=handle), **batch)).handles == [handle]


async def test_an_mcp_client_answers_no_question_of_a_class_that_its_token_has_not(runtime: RuntimeProcess) -> None:
    async def accept(*_: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"allow": True})

    async with connected(runtime, token="of-alice") as client:
        handle = (await call(client, "spawn", task=DELETES))["handle"]
        await call(client, "await", handles=[handle])
    for era in ("legacy", "2026-07-28"):
        async with connected(runtime, era, elicitation_callback=accept, token="of-alice-batch") as client:
            [told] = (await call(client, "await", handles=[handle], timeout=5))["results"]
            assert told["state"] == "AwaitingApproval"
            refusal = "handle: expected a run of class batch, not interactive: the token allows no other"
            assert refusal in await error(client, "approve", handle=handle, allow=True)
            assert "parent: expected a run of class batch" in await error(client, "spawn", task="x", parent=handle)
            assert "parent: expected a run of class batch" in await error(client, "run", task="x", parent=handle)


async def test_a_task_of_a_class_that_the_token_has_not_is_told_and_not_answered(runtime: RuntimeProcess) -> None:
    async with connected(runtime, token="of-alice") as client:
        handle = (await call(client, "spawn", task=DELETES))["handle"]
        await call(client, "await", handles=[handle])
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
    }

    async def ask(token: str, method: str, **params: Any) -> dict[str, Any]:
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": method,
            "Mcp-Name": handle,
        }
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"taskId": handle, "_meta": meta} | params}
        async with (
            aiohttp.ClientSession() as session,
            session.post(runtime.mcp_url, json=message, headers=headers) as answer,
        ):
            return dict(await answer.json())

    (form,) = (await ask("of-alice", "tasks/get"))["result"]["inputRequests"]
    assert (await ask("of-alice-batch", "tasks/get"))["result"]["status"] == "working"
    given = {form: {"action": "accept", "content": {"allow": True}}}
    refused = await ask("of-alice-batch", "tasks/update", inputResponses=given)
    assert "expected a run of class batch" in refused["error"]["message"]
    assert (await ask("of-alice", "tasks/get"))["result"]["status"] == "input_required"
