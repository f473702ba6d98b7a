"""`POST /v1/decide`: which turn it makes, what the engine is asked, what the client gets."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from dataplane import whole_turn
from protos import turn_pb2
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import request
from tests.dataplane.scripted_engine import OK, Call, Script, chunk, whole
from tests.stack import Stack, fetched, running_stack
from tests.waiting import wait_until, wait_until_sync

CLASSIFY: dict[str, Any] = {"input": "buy now"}
CHOOSE: dict[str, Any] = {"input": "pay me", "labels": ["billing", "bill"]}
ROW = {"index": 0, "label": "spam", "probs": [0.2, 0.8], "num_classes": 2}
CLASSIFIED = json.dumps({"data": [ROW], "usage": {"prompt_tokens": 3, "completion_tokens": 0}}).encode()
TOKEN = {"token": "B", "logprob": -0.1, "top_logprobs": [{"token": "B", "logprob": -0.1}]}
CHOSEN = json.dumps(
    {
        "choices": [{"message": {"content": "B"}, "logprobs": {"content": [TOKEN]}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 1},
    }
).encode()


def decide(body: Any, *lines: str) -> bytes:
    """The bytes of a request."""
    return request(body, *lines, path="/v1/decide")


def sends(*parts: bytes) -> Script:
    """An engine that answers every request with `parts`."""

    async def answer(call: Call) -> None:
        await call.send(*parts)

    return answer


@pytest.fixture
async def running(rig: Rig) -> Rig:
    """A dataplane that knows the scheduler; the engine classifies or chooses, as it is asked."""

    async def answer(call: Call) -> None:
        await call.send(whole(CLASSIFIED if "/classify" in call.line else CHOSEN))

    rig.engine.script = answer
    await rig.start()
    await rig.connected()
    return rig


async def test_without_labels_a_classifier_answers_as_a_turn_of_no_run(running: Rig) -> None:
    response = await running.ask(decide(CLASSIFY, "x-luftpause-caller: me", "x-luftpause-run-id: r"))
    assert (response.status, response.json) == (
        200,
        {"label": "spam", "probabilities": {"spam": 0.8}, "unscored": [], "model": "classifier", "probs": [0.2, 0.8]},
    )
    turn = running.scheduler.turns[0]
    assert (turn.kind, turn.run_id, turn.new_run_id) == (turn_pb2.REPLICA_KIND_ONE_SHOT, "", "")
    assert (turn.caller, turn.run_class, turn.model) == ("me", turn_pb2.RUN_CLASS_INTERACTIVE, "classifier")
    call = running.engine.calls[0]
    assert call.line == "POST /classify HTTP/1.1"
    assert json.loads(call.body) == {"model": "classifier", "input": "buy now"}
    assert call.headers["x-request-id"] == turn.turn_id
    await running.reported("STARTED", "ENDED")
    assert running.app is not None
    assert running.app.snapshot()["gauges"]["runs"] == 0


async def test_with_labels_a_generative_model_answers_one_token_as_a_run_that_ends(running: Rig) -> None:
    traceparent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    response = await running.ask(decide(CHOOSE, "x-luftpause-run-id: r", f"traceparent: {traceparent}"))
    assert response.json == {"label": "bill", "probabilities": {"bill": 1.0}, "unscored": ["billing"], "model": "m"}
    turn = running.scheduler.turns[0]
    assert (turn.kind, turn.run_id, turn.model) == (turn_pb2.REPLICA_KIND_GENERATIVE, "", "m")
    assert turn.run_class == turn_pb2.RUN_CLASS_INTERACTIVE
    call = running.engine.calls[0]
    assert call.line == "POST /v1/chat/completions HTTP/1.1"
    assert call.headers["traceparent"] == traceparent
    assert json.loads(call.body)["max_tokens"] == 1
    await running.reported("STARTED", "ENDED")
    ended = running.scheduler.last(turn_pb2.REPORT_KIND_ENDED)
    assert ended is not None
    assert (ended.prompt_tokens, ended.completion_tokens) == (40, 1)
    over = running.scheduler.last(turn_pb2.REPORT_KIND_RUN_ENDED)
    assert over is not None
    assert over.run_id == turn.new_run_id
    assert running.app is not None
    assert running.app.snapshot()["gauges"]["runs"] == 0


@pytest.mark.parametrize("body", [CLASSIFY, CHOOSE])
async def test_a_decision_waits_as_long_as_its_client_says_and_takes_no_runs_money(
    running: Rig, body: dict[str, Any]
) -> None:
    lines = ("x-luftpause-wait-s-max: 3", "x-luftpause-deadline: 2000-01-01", "x-luftpause-budget-usd: 1")
    await running.ask(decide(body, *lines))
    turn = running.scheduler.turns[0]
    assert (turn.wait_ms_max, turn.deadline_ms, turn.HasField("budget_usd")) == (3000, 0, False)


async def test_model_and_class_are_as_the_client_says(running: Rig) -> None:
    await running.ask(decide({**CHOOSE, "model": "other"}, "x-luftpause-class: batch"))
    turn = running.scheduler.turns[0]
    assert (turn.model, turn.run_class) == ("other", turn_pb2.RUN_CLASS_BATCH)


@pytest.mark.parametrize("base", ["", "/", "/v1", "/gate", "/gate/v1"])
async def test_classify_lies_beside_the_version_of_the_api(running: Rig, base: str) -> None:
    running.scheduler.url += base
    assert (await running.ask(decide(CLASSIFY))).status == 200
    assert (await running.ask(decide(CHOOSE))).status == 200
    classify, chat = (call.line.split()[1] for call in running.engine.calls)
    assert classify == ("/gate/classify" if "gate" in base else "/classify")
    assert chat == ("/gate/chat/completions" if base == "/gate" else f"{base.rstrip('/') or '/v1'}/chat/completions")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "body: expected JSON, it is empty"),
        (b"[]", "body: expected object, got array"),
        ({}, "input: expected a value, it is missing"),
        ({"input": 3}, "input: expected string, got int"),
        ({"input": ["a"]}, "input: expected string, got array"),
        ({"input": " \n"}, "input: expected a text that is not empty"),
        ({"input": "a", "labels": "b"}, "labels: expected array | null, got str"),
        ({"input": "a", "labels": []}, "labels: expected 2 to 20 labels, or none to ask a classifier; there are 0"),
        ({"input": "a", "labels": ["b"]}, "labels: expected 2 to 20 labels, or none to ask a classifier; there are 1"),
        (
            {"input": "a", "labels": [str(n) for n in range(21)]},
            "labels: expected 2 to 20 labels, or none to ask a classifier; there are 21",
        ),
        ({"input": "a", "labels": ["b", "c", "b"]}, "labels[2]: expected labels that differ, 'b' is there twice"),
        ({"input": "a", "labels": ["b", " "]}, "labels[1]: expected a line of 1 to 256 printable characters"),
        ({"input": "a", "labels": ["b", "c\nD) d"]}, "labels[1]: expected a line of 1 to 256 printable characters"),
        ({"input": "a", "labels": ["b", "c" * 257]}, "labels[1]: expected a line of 1 to 256 printable characters"),
        ({"input": "a", "labels": ["b", 3]}, "labels[1]: expected string, got int"),
        ({"input": "a", "model": ""}, "model: expected string of length >= 1"),
        ({"input": "a", "label": ["b", "c"]}, "label: there is no such field"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else None,
)
async def test_what_is_wrong_is_a_400_that_names_the_field(running: Rig, body: Any, message: str) -> None:
    response = await running.ask(decide(body))
    assert response.status == 400
    assert response.error == message
    assert running.scheduler.turns == []


async def test_an_input_that_no_model_reads_is_a_413(running: Rig) -> None:
    response = await running.ask(decide({"input": "x" * 1_000_001}))
    assert (response.status, response.error) == (413, "input: expected at most 1000000 characters")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(b"", method="GET", path="/v1/decide"), 405),
        (decide(CLASSIFY, "x-luftpause-class: urgent"), 400),
        (decide(CLASSIFY, "x-luftpause-run-id: a b"), 400),
    ],
    ids=["method", "class", "run id"],
)
async def test_method_and_headers_are_checked_as_elsewhere(running: Rig, data: bytes, status: int) -> None:
    assert (await running.ask(data)).status == status


async def test_a_token_is_wanted(rig: Rig) -> None:
    rig.engine.script = sends(whole(CLASSIFIED))
    await rig.start(token="secret")
    assert (await rig.ask(decide(CLASSIFY))).status == 401
    assert (await rig.ask(decide(CLASSIFY, "authorization: Bearer secret"))).status == 200


async def test_without_a_classifier_in_the_pool_it_says_so(running: Rig) -> None:
    running.scheduler.classifiers = {}
    response = await running.ask(decide(CLASSIFY))
    assert (response.status, response.error) == (
        404,
        "model: no one-shot replica (a classifier) is in the pool; name labels to ask a generative one",
    )


async def test_an_unknown_model_is_a_404(running: Rig) -> None:
    message = "no one-shot replica serves model 'x'"
    running.scheduler.refusals["x"] = (turn_pb2.REFUSAL_REASON_UNKNOWN_MODEL, message)
    response = await running.ask(decide({**CLASSIFY, "model": "x"}))
    assert (response.status, response.error) == (404, message)
    assert running.scheduler.reports == []


async def test_while_the_models_are_not_known_it_waits_as_if_held(running: Rig) -> None:
    running.scheduler.classifiers = {"c": []}
    client = await running.client()
    await client.send(decide(CLASSIFY))
    await wait_until(lambda: running.scheduler.watched)
    running.scheduler.classifiers = {"c": ["late"]}
    assert (await client.response()).json["model"] == "late"


async def test_models_that_are_never_told_are_not_waited_for_for_ever(
    running: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.decide.MODELS_WITHIN_S", 0.1)
    running.scheduler.classifiers = {"c": []}
    response = await running.ask(decide(CLASSIFY))
    assert response.status == 503
    assert response.json["error"]["code"] == "models_unknown"
    assert response.error == "model: these replicas never told their models: c"


async def test_a_healthy_replica_is_preferred_where_no_model_is_named(running: Rig) -> None:
    running.scheduler.classifiers = {"a": ["ill"], "c": ["well"]}
    running.scheduler.healthy = {"c"}
    assert (await running.ask(decide(CLASSIFY))).json["model"] == "well"


@pytest.mark.parametrize("body", [CLASSIFY, CHOOSE], ids=["one-shot", "labels"])
async def test_an_engines_refusal_is_passed_on_as_it_is(running: Rig, body: dict[str, Any]) -> None:
    refusal = b'{"error": {"message": "slow down"}}'
    running.engine.script = sends(whole(refusal, "429 Too Many Requests", "retry-after: 7"))
    response = await running.ask(decide(body))
    assert (response.status, response.body, response.headers["retry-after"]) == (429, refusal, "7")
    await wait_until(lambda: "FAILED" in running.scheduler.kinds(running.scheduler.turns[0].turn_id))


@pytest.mark.parametrize("body", [CLASSIFY, CHOOSE], ids=["one-shot", "labels"])
@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (whole(b"{}"), "its answer is no"),
        (whole(b"not JSON"), "its answer is no"),
        (OK + b"content-length: 100\r\n\r\n{}", "closed the connection"),
        (OK + b"\r\n{", "closed the connection"),
        (b"junk\r\n\r\n", "answered what is not HTTP"),
        (OK + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"x" * 2**20) * 5, "its answer is larger than"),
    ],
    ids=["empty", "no JSON", "cut off", "cut off by its end", "no HTTP", "too large"],
)
async def test_an_engine_that_fails_is_a_502(running: Rig, body: dict[str, Any], answer: bytes, what: str) -> None:
    async def fail(call: Call) -> None:
        await call.send(answer)
        call.writer.close()

    running.engine.script = fail
    response = await running.ask(decide(body))
    assert response.status == 502
    assert response.error.startswith(f"engine engine-0: {what}")
    assert running.app is not None
    await wait_until(lambda: running.app is not None and running.app.snapshot()["gauges"]["in_flight"] == 0)


async def test_an_engine_that_cannot_be_reached_is_a_502(running: Rig) -> None:
    running.scheduler.url = "http://127.0.0.1:1"
    response = await running.ask(decide(CLASSIFY))
    assert (response.status, response.error) == (502, "engine engine-0: connection refused")
    await running.reported("STARTED", "FAILED")


async def test_an_engine_that_is_silent_for_too_long_is_a_504(running: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async def think(call: Call) -> None:
        await call.left()

    monkeypatch.setattr(whole_turn, "STALL_S_MAX", 0.1)
    running.engine.script = think
    response = await running.ask(decide(CLASSIFY))
    assert (response.status, response.error) == (504, "engine engine-0: no byte for 0.1 s")
    await running.reported("STARTED", "FAILED")
    await wait_until(lambda: running.engine.open == 0)


@pytest.mark.parametrize("body", [CLASSIFY, {**CLASSIFY, "model": "classifier"}], ids=["no model", "a model"])
async def test_while_the_scheduler_is_gone_it_waits_as_if_held(rig: Rig, body: dict[str, Any]) -> None:
    rig.engine.script = sends(whole(CLASSIFIED))
    port = rig.scheduler.port
    await rig.scheduler.stop()
    await rig.start()
    client = await rig.client()
    await client.send(decide(body))
    await rig.scheduler.start(port)
    assert (await client.response()).json["label"] == "spam"


async def test_an_engine_without_logprobs_is_a_422_that_names_the_labels(running: Rig) -> None:
    running.engine.script = sends(whole(b'{"choices": [{"message": {"content": "A"}}]}'))
    response = await running.ask(decide(CHOOSE))
    assert response.status == 422
    assert response.error.startswith("labels: engine engine-0 gives no log probabilities")


async def test_a_kept_connection_that_the_engine_closed_is_replaced(running: Rig) -> None:
    client = await running.client()
    assert (await client.ask(decide(CLASSIFY))).status == 200
    running.engine.drop_connections()
    assert (await client.ask(decide(CLASSIFY))).status == 200
    assert running.engine.connections == 2


async def test_a_client_that_leaves_while_held_reaches_no_engine(running: Rig) -> None:
    running.scheduler.holds = True
    client = await running.client()
    await client.send(decide(CHOOSE))
    turn = (await wait_until(lambda: running.scheduler.turns))[0]
    client.close()
    await wait_until(lambda: any(turn.turn_id in each.abandons for each in running.scheduler.requests))
    assert running.engine.calls == []


async def test_a_client_that_leaves_closes_the_engines_connection(running: Rig) -> None:
    async def think(call: Call) -> None:
        await call.left()
        call.writer.close()

    running.engine.script = think
    client = await running.client()
    await client.send(decide(CHOOSE))
    await wait_until(lambda: running.engine.calls)
    client.close()
    await wait_until(lambda: running.engine.open == 0)
    await running.reported("STARTED", "FAILED")
    over = running.scheduler.last(turn_pb2.REPORT_KIND_RUN_ENDED)
    assert over is not None
    assert over.run_id == running.scheduler.turns[0].new_run_id


async def test_a_one_shot_turn_in_flight_is_told_to_a_scheduler_that_restarts(running: Rig) -> None:
    async def think(call: Call) -> None:
        await wait_until(lambda: resynced)
        await call.send(whole(CLASSIFIED))

    resynced: list[turn_pb2.KnownTurn] = []
    running.engine.script = think
    client = await running.client()
    await client.send(decide(CLASSIFY))
    await wait_until(lambda: running.engine.calls)
    port = running.scheduler.port
    await running.scheduler.stop()
    running.scheduler.requests.clear()
    await running.scheduler.start(port)
    resyncs = await wait_until(lambda: [each.resync for each in running.scheduler.requests if each.resync.complete])
    assert resyncs
    resynced += [turn for each in running.scheduler.requests for turn in each.resync.turns]
    assert [known.turn.kind for known in resynced] == [turn_pb2.REPLICA_KIND_ONE_SHOT]
    assert [run for each in running.scheduler.requests for run in each.resync.runs] == []
    assert (await client.response()).status == 200


@pytest.fixture
def stack(tmp_path: pathlib.Path) -> Iterator[Stack]:
    settings = {"LUFTPAUSE_ENGINE_LABELS": "ham,spam", "LUFTPAUSE_ENGINE_SPEED": "20"}
    with running_stack(tmp_path, replicas=1, classifier=True, settings=settings) as started:
        yield started


@pytest.mark.e2e
def test_through_real_processes_no_run_is_left(stack: Stack) -> None:
    def ask(body: Any) -> tuple[int, Any]:
        netloc = urllib.parse.urlsplit(stack.base_url).netloc
        with contextlib.closing(http.client.HTTPConnection(netloc, timeout=30)) as connection:
            connection.request("POST", "/v1/decide", json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    status, told = ask({"input": "win money"})
    assert (status, told["model"]) == (200, "fake-1b")
    assert told["label"] in ("ham", "spam")
    assert told["probabilities"][told["label"]] == max(told["probs"])
    labels = [f"label {n}" for n in range(20)]
    status, told = ask({"input": "win money", "labels": labels})
    assert status == 200, told
    assert list(told["probabilities"]) == labels
    assert told["label"] == max(labels, key=told["probabilities"].__getitem__)
    assert ask({"input": "a", "model": "x"})[0] == 404
    assert ask({"input": "a", "model": "x", "labels": ["b", "c"]})[0] == 404

    def runs_and_turns() -> int:
        status = json.loads(fetched(f"{stack.status_url}/status") or b"{}")
        counts: list[int] = [run["runs"] for run in status["runs"]] + [each["in_flight"] for each in status["replicas"]]
        return sum(counts)

    wait_until_sync(lambda: runs_and_turns() == 0, what="no run and no turn is left")
