"""Decisions at the runtime's surfaces, through the real dataplane, scheduler and engines."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from common.auth import bearer_metadata
from common.grants import CLASSES, Grant
from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc
from runtime import decisions, llm
from runtime.access import Access
from runtime.decisions import Decision, Question
from runtime.llm import Model
from runtime.refusals import InvalidArgumentError, NoAnswerError
from runtime.tree import Tree
from tests.node import installed_modules, run
from tests.runtime.service_process import RuntimeProcess, running_runtime
from tests.runtime.test_llm import Dataplane, Respond, breaks_off, says, served
from tests.runtime.test_mcp import ERAS, call, connected, error
from tests.scheduler.test_host_node import DRIVE_S, FOLDER
from tests.stack import ROOT, running_stack

TOKEN = "secret"
DECIDED = {"label": "b", "probabilities": {"a": 0.4, "b": 0.6}, "unscored": ["c"], "model": "m"}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    """One runtime for all tests here, with a token."""
    settings = {"LUFTPAUSE_TOKEN": TOKEN, "LUFTPAUSE_ENGINE_SPEED": "20"}
    with running_stack(tmp_path_factory.mktemp("stack"), replicas=1, settings=settings, classifier=True) as stack:
        settings["LUFTPAUSE_RUNTIME_DATAPLANE"] = stack.base_url.removesuffix("/v1")
        with running_runtime(tmp_path_factory.mktemp("runtime"), settings) as made:
            yield made


@pytest.mark.e2e
@ERAS
async def test_an_mcp_client_has_a_text_decided(runtime: RuntimeProcess, era: Any) -> None:
    async with connected(runtime, era) as client:
        told = await call(client, "decide", input="You have won a prize!")
        assert (told["label"], told["model"], len(told["probs"])) == ("LABEL_1", "fake-1b", 2)
        labels = [f"label {number}" for number in range(20)]
        told = await call(client, "decide", input="hello", labels=labels)
        assert set(told) == {"label", "probabilities", "unscored", "model"}
        assert [*told["probabilities"], *told["unscored"]] == labels


@pytest.mark.e2e
async def test_the_tool_says_what_it_takes(runtime: RuntimeProcess) -> None:
    async with connected(runtime) as client:
        (tool,) = [tool for tool in (await client.list_tools()).tools if tool.name == "decide"]
    assert tool.description is not None
    assert all(word in tool.description for word in ("label", "probabilities", "unscored", "2 to 20"))
    assert tool.input_schema["required"] == ["input"]
    assert set(tool.input_schema["properties"]) == {"input", "labels", "model"}
    assert all(described["description"] for described in tool.input_schema["properties"].values())
    assert tool.annotations is not None
    assert tool.annotations.read_only_hint


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"input": "a", "labels": ["b"]}, "labels: expected 2 to 20 labels"),
        ({"input": "a", "labels": []}, "labels: expected 2 to 20 labels"),
        ({"input": "a", "labels": [str(number) for number in range(21)]}, "there are 21"),
        ({"input": "a", "labels": ["b", "b"]}, "labels[1]: expected labels that differ"),
        ({"input": " "}, "input: expected a text that is not empty"),
        ({"input": "a", "model": "x"}, "model: no one-shot replica serves model 'x'"),
        ({"input": "a", "model": "x", "labels": ["b", "c"]}, "model: no generative replica serves model 'x'"),
        ({}, "input"),
        ({"input": 3}, "input"),
        ({"input": "a", "label": ["b", "c"]}, "label"),
    ],
)
async def test_what_is_wrong_is_told(runtime: RuntimeProcess, arguments: dict[str, Any], said: str) -> None:
    async with connected(runtime) as client:
        assert said in await error(client, "decide", **arguments)


@pytest.mark.e2e
async def test_a_client_of_another_language_has_a_text_decided(runtime: RuntimeProcess) -> None:
    modules = await installed_modules(FOLDER)
    script = str(pathlib.Path(__file__).with_name("node") / "decide.mjs")
    target = f"127.0.0.1:{runtime.grpc_port}"
    seen = json.loads(await run(modules, DRIVE_S, "node", script, str(ROOT), target, TOKEN))
    assert seen["classified"]["label"] == "LABEL_1"
    assert max(seen["classified"]["probs"]) == seen["classified"]["probabilities"]["LABEL_1"]
    assert set(seen["chosen"]["probabilities"]) == {"billing", "bug", "other"}
    assert seen["chosen"]["probs"] == []
    assert seen["one"].startswith("INVALID_ARGUMENT labels: expected 2 to 20 labels")


@pytest.mark.e2e
async def test_grpc_tells_statuses(runtime: RuntimeProcess) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{runtime.grpc_port}") as channel:
        runs: Any = runtime_pb2_grpc.RunsStub(channel)
        metadata = bearer_metadata(TOKEN)
        told = await runs.Decide(pb.DecideRequest(input="hi", labels=["a", "b"]), metadata=metadata)
        assert told.label in ("a", "b")
        assert sum(told.probabilities.values()) == pytest.approx(1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await runs.Decide(pb.DecideRequest(), metadata=metadata)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await runs.Decide(pb.DecideRequest(input="hi"))
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(("classes", "run_class"), [(CLASSES, "interactive"), (("batch",), "batch")])
def test_a_decision_is_interactive_where_the_token_allows_it(classes: tuple[str, ...], run_class: str) -> None:
    assert Access(Grant("bob", classes=classes), Tree()).decision_class == run_class


async def asked(*answers: Respond, question: Question | None = None) -> tuple[Decision, Dataplane]:
    """What a dataplane that answers so makes of a question."""
    dataplane = Dataplane(*answers)
    async with served(dataplane) as url, Model(url, TOKEN) as model:
        return await decisions.decide(model, question or Question("x", ("a", "b", "c")), "me", "batch"), dataplane


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries that a test can wait for."""
    monkeypatch.setattr(llm, "RETRY_PAUSES_S", (0.01, 0.02, 0.03))


async def test_the_question_is_asked_for_its_caller() -> None:
    told, dataplane = await asked(says(DECIDED))
    assert told == Decision("b", {"a": 0.4, "b": 0.6}, ["c"], "m")
    headers, body = dataplane.requests[0]
    assert (headers["x-luftpause-caller"], headers["x-luftpause-class"]) == ("me", "batch")
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert body == {"input": "x", "labels": ["a", "b", "c"], "model": None}


@pytest.mark.parametrize(
    "failing",
    [
        says({"error": {"message": "slow"}}, 429, **{"Retry-After": "0.1"}),
        says({}, 502),
        says({"label": 3}),
        breaks_off,
    ],
    ids=["429", "5xx", "no decision", "breaks off"],
)
async def test_what_may_pass_is_tried_again(failing: Respond) -> None:
    _, dataplane = await asked(failing, says(DECIDED))
    assert len(dataplane.requests) == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (says({"error": {"message": "labels[1]: expected x"}}, 400), "labels[1]: expected x"),
        (says({"error": {"message": "labels: engine e gives no logprobs"}}, 422), "labels: engine e gives no logprobs"),
        (says({"error": {"message": "messages: less than 10 tokens"}}, 400), "input: messages: less than 10 tokens"),
        (says({"error": {"message": "no replica serves it"}}, 404), "model: no replica serves it"),
    ],
)
async def test_a_refusal_names_an_argument(answer: Respond, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{said.replace('[', '.').replace(']', '.')}$"):
        await asked(answer)


async def test_what_is_no_text_is_not_even_asked() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^labels: expected Unicode text"):
        await asked(says(DECIDED), question=Question("x", ("a", "\ud800")))


@pytest.mark.parametrize("answer", [says({}, 502), says({}, 401), says(b"junk")], ids=["5xx", "401", "no decision"])
async def test_an_engine_that_does_not_answer_is_no_fault_of_the_arguments(answer: Respond) -> None:
    with pytest.raises(NoAnswerError, match="the model's turn failed"):
        await asked(answer)
