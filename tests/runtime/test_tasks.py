"""The Tasks extension, spoken as JSON over HTTP to a real runtime."""

from __future__ import annotations

import base64
import json
import pathlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from runtime import approvals, forms
from runtime.run import apply, fold
from tests.runtime.journals import RUN, call, intended, lost, replied, started
from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.waiting import wait_until

VERSION = "2026-07-28"
EXTENSION = "io.modelcontextprotocol/tasks"
DECLARED: dict[str, Any] = {"elicitation": {}, "extensions": {EXTENSION: {}}}
LOOKUP = 'CALL lookup {"query": "x"}'
ASKS = {"task": LOOKUP, "approveTools": ["lookup"]}


class Peer:
    """A client without state: every request declares what it can."""

    def __init__(self, http: aiohttp.ClientSession, runtime: RuntimeProcess) -> None:
        self.http = http
        self.runtime = runtime

    async def ask(
        self, method: str, params: dict[str, Any], *, declares: Any = DECLARED, name: str | None = None
    ) -> dict[str, Any]:
        """The whole answer. `name` replaces the right `Mcp-Name`; an empty one is not sent."""
        meta = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientCapabilities": declares,
        }
        right = params.get("name") or params.get("taskId") or ""
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
            "Mcp-Name": right if name is None else name,
        }
        if name == "":
            del headers["Mcp-Name"]
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        async with self.http.post(self.runtime.mcp_url, json=body, headers=headers) as answer:
            if answer.content_type == "text/event-stream":
                text = await answer.text()
                return dict(json.loads(text[text.index("data: ") + 6 :].splitlines()[0]))
            return dict(await answer.json())

    async def result(self, method: str, params: dict[str, Any], **options: Any) -> dict[str, Any]:
        """The result. Fails if it is an error."""
        answer = await self.ask(method, params, **options)
        assert "result" in answer, answer
        return dict(answer["result"])

    async def code(self, method: str, params: dict[str, Any], **options: Any) -> int:
        """The code of the error. Fails if it is a result."""
        answer = await self.ask(method, params, **options)
        assert "error" in answer, answer
        return int(answer["error"]["code"])

    async def start(self, **arguments: Any) -> str:
        """A new task."""
        made = await self.result("tools/call", {"name": "run", "arguments": arguments})
        assert made["resultType"] == "task", made
        return str(made["taskId"])

    async def get(self, task: str, **options: Any) -> dict[str, Any]:
        """How a task is."""
        told = await self.result("tasks/get", {"taskId": task}, **options)
        assert (told["taskId"], told["resultType"]) == (task, "complete")
        return told

    async def until(self, task: str, status: str) -> dict[str, Any]:
        """How a task is, once it is in `status`."""

        async def reached() -> dict[str, Any] | None:
            told = await self.get(task)
            return told if told["status"] == status else None

        told = await wait_until(reached, 10.0, f"{task} is {status}")
        assert told is not None
        return told

    async def answer(self, task: str, key: str, **response: Any) -> dict[str, Any]:
        """Answers what a task asks."""
        return await self.result("tasks/update", {"taskId": task, "inputResponses": {key: response}})


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    """One runtime for all tests here."""
    with running_runtime(tmp_path_factory.mktemp("tasks")) as made:
        yield made


@pytest.fixture
async def peer(runtime: RuntimeProcess) -> AsyncIterator[Peer]:
    """A client of it."""
    async with aiohttp.ClientSession() as http:
        yield Peer(http, runtime)


def only_key(told: dict[str, Any]) -> str:
    """The key of the one question."""
    (key,) = told["inputRequests"]
    return str(key)


async def test_run_becomes_a_task_that_has_the_result_of_run(peer: Peer) -> None:
    made = await peer.result("tools/call", {"name": "run", "arguments": {"task": LOOKUP}})
    assert made["resultType"] == "task"
    assert made["status"] == "working"
    assert made["pollIntervalMs"] > 0
    assert made.keys().isdisjoint({"result", "inputRequests", "content", "requestState", "task"})
    done = await peer.until(made["taskId"], "completed")
    assert done["result"]["structuredContent"]["state"] == "Completed"
    assert done["result"]["structuredContent"]["toolCalls"] == 1
    assert done["result"]["isError"] is False
    assert done["createdAt"] == made["createdAt"] < done["lastUpdatedAt"]
    assert done["ttlMs"] > 29 * 86_400_000


async def test_the_extension_is_advertised(peer: Peer) -> None:
    told = await peer.result("server/discover", {})
    assert told["capabilities"]["extensions"][EXTENSION] == {}


async def test_a_request_that_does_not_declare_the_extension_gets_no_task(peer: Peer) -> None:
    told = await peer.result("tools/call", {"name": "run", "arguments": {"task": LOOKUP}}, declares={})
    assert told["resultType"] == "complete"
    assert told["structuredContent"]["state"] == "Completed"
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        params = {"taskId": told["structuredContent"]["handle"], "inputResponses": {}}
        answer = await peer.ask(method, params, declares={})
        assert answer["error"]["code"] == -32021
        assert answer["error"]["data"]["requiredCapabilities"]["extensions"] == {EXTENSION: {}}


async def test_other_tools_and_refusals_are_answered_at_once(peer: Peer) -> None:
    listed = await peer.result("tools/call", {"name": "tools", "arguments": {}})
    assert (listed["resultType"], listed["isError"]) == ("complete", False)
    refused = await peer.result("tools/call", {"name": "run", "arguments": {"task": "x", "budgetTokens": -1}})
    assert (refused["resultType"], refused["isError"]) == ("complete", True)
    assert "budgetTokens" in refused["content"][0]["text"]


async def test_bad_requests_are_told_by_their_codes(peer: Peer) -> None:
    task = await peer.start(**ASKS)
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        assert await peer.code(method, {"taskId": "nobody", "inputResponses": {}}) == -32602
        assert await peer.code(method, {"taskId": task, "inputResponses": {}}, name="other") == -32020
        assert await peer.code(method, {"taskId": task, "inputResponses": {}}, name="") == -32020
        assert await peer.code(method, {"inputResponses": {}}) == -32602
    encoded = f"=?base64?{base64.b64encode(task.encode()).decode()}?="
    assert await peer.get(task, name=encoded)
    for method in ("tasks/list", "tasks/result"):
        assert await peer.code(method, {"taskId": task}) == -32601
    key = only_key(await peer.until(task, "input_required"))
    assert await peer.code("tasks/update", {"taskId": task, "inputResponses": {key: {"action": "perhaps"}}}) == -32602
    assert await peer.code("tasks/update", {"taskId": task, "inputResponses": []}) == -32602
    assert only_key(await peer.get(task)) == key
    await peer.result("tasks/cancel", {"taskId": task})


@pytest.mark.parametrize(
    ("response", "failed"),
    [
        ({"action": "accept", "content": {"allow": True}}, 0),
        ({"action": "accept", "content": {"allow": False}}, 1),
        ({"action": "decline"}, 1),
    ],
)
async def test_an_approval_is_asked_and_answered_through_the_task(
    peer: Peer, response: dict[str, Any], failed: int
) -> None:
    task = await peer.start(**ASKS)
    asked = await peer.until(task, "input_required")
    (form,) = asked["inputRequests"].values()
    assert form["method"] == "elicitation/create"
    assert form["params"]["message"].startswith("Allow the tool call lookup")
    assert form["params"]["requestedSchema"]["required"] == ["allow"]
    ack = await peer.answer(task, only_key(asked), **response)
    assert ack.keys() <= {"resultType", "_meta"}
    done = await peer.until(task, "completed")
    assert done["result"]["structuredContent"]["failedToolCalls"] == failed


async def test_all_questions_of_a_round_are_asked_and_each_answer_reaches_its_call(peer: Peer) -> None:
    names = ("first", "second", "third")
    calls = "\n".join(f'CALL set_note {{"name": "{name}", "text": "x"}}' for name in names)
    task = await peer.start(task=calls, approveTools=["set_note"], parallelToolCalls=True)
    asked = (await peer.until(task, "input_required"))["inputRequests"]
    keys = {name: key for name in names for key, form in asked.items() if name in form["params"]["message"]}
    assert set(keys.values()) == set(asked)
    await peer.answer(task, keys["third"], action="accept", content={"allow": True})
    assert set((await peer.get(task))["inputRequests"]) == {keys["first"], keys["second"]}
    await peer.answer(task, keys["second"], action="decline")
    await peer.answer(task, keys["first"], action="accept", content={"allow": True})
    done = await peer.until(task, "completed")
    assert done["result"]["structuredContent"]["failedToolCalls"] == 1
    ledger = peer.runtime.ledger.read_text()
    assert [name in ledger for name in names] == [True, False, True]


async def test_answers_to_what_is_not_asked_are_ignored(peer: Peer) -> None:
    task = await peer.start(**ASKS)
    key = only_key(await peer.until(task, "input_required"))
    await peer.answer(task, "unknown", ignored=True)
    await peer.answer(task, key[: key.rindex("-", 0, key.rindex("-"))], action="accept", content={"allow": True})
    assert only_key(await peer.get(task)) == key
    await peer.answer(task, key, action="accept", content={"allow": True})
    await peer.answer(task, key, action="decline")
    done = await peer.until(task, "completed")
    assert done["result"]["structuredContent"]["failedToolCalls"] == 0
    await peer.answer(task, key, action="decline")


async def test_a_dismissed_form_comes_again_under_another_key(peer: Peer) -> None:
    task = await peer.start(**ASKS)
    first = only_key(await peer.until(task, "input_required"))
    await peer.answer(task, first, action="cancel")
    second = only_key(await peer.get(task))
    assert second != first
    await peer.answer(task, second, action="accept", content={"allow": True})
    await peer.until(task, "completed")


async def test_a_client_that_shows_no_forms_is_told_to_approve(peer: Peer) -> None:
    task = await peer.start(**ASKS)
    await peer.until(task, "input_required")
    told = await peer.get(task, declares={"extensions": {EXTENSION: {}}})
    assert (told["status"], "inputRequests" in told) == ("working", False)
    assert "approve" in told["statusMessage"]
    await peer.result("tools/call", {"name": "approve", "arguments": {"handle": task, "allow": True}})
    await peer.until(task, "completed")


async def test_a_cancelled_task_stays_cancelled(peer: Peer) -> None:
    task = await peer.start(**ASKS)
    for _ in range(2):
        ack = await peer.result("tasks/cancel", {"taskId": task})
        assert ack.keys() <= {"resultType", "_meta"}
        told = await peer.get(task)
        assert told["status"] == "cancelled"
        assert told.keys().isdisjoint({"result", "error", "inputRequests"})


async def test_a_failed_run_is_a_completed_task(peer: Peer) -> None:
    task = await peer.start(task=LOOKUP, budgetTokens=1)
    done = await peer.until(task, "completed")
    assert done["result"]["structuredContent"]["state"] == "BudgetExceeded"


async def test_an_open_task_survives_a_restart(tmp_path: pathlib.Path) -> None:
    with running_runtime(tmp_path) as runtime:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
            peer = Peer(http, runtime)
            task = await peer.start(**ASKS)
            key = only_key(await peer.until(task, "input_required"))
            runtime.kill()
            runtime.start()
            again = await peer.get(task)
            assert again["status"] == "input_required"
            await peer.answer(task, key, action="accept", content={"allow": True})
            done = await peer.until(task, "completed")
            assert done["result"]["structuredContent"]["failedToolCalls"] == 0
            runtime.kill()
            runtime.start()
            assert await peer.get(task) == done


def test_a_call_that_is_asked_about_again_has_another_key() -> None:
    run = fold([started(), replied(0, call(needs_approval=True))])
    keys = []
    for _ in range(3):
        question = approvals.question(run)
        assert question is not None
        keys.append(forms.key(RUN, question))
        for record in (approvals.answer(question, True, 2.0), intended(0, 0), lost(0, 0)):
            run = apply(run, record)
    assert len(set(keys)) == 3
