"""The OpenAI surface, with the real client."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.fakes.conftest import RunningEngine, StartEngine

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
LOOKUP: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


async def test_a_streamed_reply_is_the_whole_reply_in_pieces(engine: RunningEngine) -> None:
    whole = await engine.client.chat.completions.create(model="fake-1b", messages=HELLO)
    stream = await engine.client.chat.completions.create(
        model="fake-1b", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content for chunk in chunks[1:-2]]
    assert "".join(text or "" for text in texts) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert len(texts) == whole.usage.completion_tokens == chunks[-1].usage.completion_tokens, "one token a chunk"
    assert len({chunk.id for chunk in chunks}) == 1


async def test_usage_is_streamed_only_where_asked(engine: RunningEngine) -> None:
    stream = await engine.client.chat.completions.create(model="fake-1b", messages=HELLO, stream=True, max_tokens=2)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_the_bytes_of_a_stream_are_events_that_end_with_done(engine: RunningEngine) -> None:
    body = {"model": "fake-1b", "messages": HELLO, "stream": True, "max_tokens": 2}
    async with engine.http.post(f"{engine.url}/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        raw = (await response.read()).decode()
    events = raw.split("\n\n")
    assert [event[:6] for event in events] == ["data: "] * 5 + [""]
    assert events[-2] == "data: [DONE]"
    assert list(json.loads(events[0][6:])) == ["id", "object", "created", "model", "choices"]


async def test_an_agent_calls_its_tool_twice_and_answers(engine: RunningEngine) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "look it up"}]
    for turn in range(3):
        reply = await engine.client.chat.completions.create(model="fake-1b", messages=messages, tools=[LOOKUP])
        choice = reply.choices[0]
        if turn == 2:
            assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
            assert choice.message.content
            return
        assert choice.finish_reason == "tool_calls"
        messages.append(cast(ChatCompletionMessageParam, choice.message.model_dump(exclude_none=True)))
        for call in choice.message.tool_calls or []:
            assert call.type == "function"
            assert isinstance(json.loads(call.function.arguments)["query"], str)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "42"})


async def test_streamed_tool_calls_come_in_fragments_with_one_id_each(engine: RunningEngine) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "user", "content": 'CALL lookup {"query": "north"}\nCALL lookup {"query": "south"}'}
    ]
    stream = await engine.client.chat.completions.create(
        model="fake-1b", messages=messages, tools=[LOOKUP], stream=True
    )
    ids: dict[int, list[str]] = {0: [], 1: []}
    arguments = {0: "", 1: ""}
    fragments = 0
    reasons = []
    async for chunk in stream:
        reasons.append(chunk.choices[0].finish_reason)
        for delta in chunk.choices[0].delta.tool_calls or []:
            fragments += 1
            assert delta.function is not None
            ids[delta.index] += [delta.id] if delta.id else []
            arguments[delta.index] += delta.function.arguments or ""
    assert {index: json.loads(text)["query"] for index, text in arguments.items()} == {0: "north", 1: "south"}
    assert [len(found) for found in ids.values()] == [1, 1]
    assert ids[0] != ids[1]
    assert fragments > 6
    assert reasons[-1] == "tool_calls"


async def test_the_second_turn_finds_its_prefix_on_its_engine_and_on_no_other(start_engine: StartEngine) -> None:
    home, stranger = await start_engine(), await start_engine()
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "a long story. " * 100}]
    first = await home.client.chat.completions.create(model="fake-1b", messages=messages)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "go on"},
    ]
    cached = []
    for engine in (home, stranger):
        reply = await engine.client.chat.completions.create(model="fake-1b", messages=messages)
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        cached.append(reply.usage.prompt_tokens_details.cached_tokens or 0)
    assert first.usage is not None
    assert cached[0] >= first.usage.total_tokens - 16, "all whole blocks of prompt and reply"
    assert cached[1] == 0


async def test_logprobs_are_told_for_every_token(engine: RunningEngine) -> None:
    reply = await engine.client.chat.completions.create(
        model="fake-1b", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=4
    )
    told = reply.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert "".join(entry.token for entry in told.content) == reply.choices[0].message.content
    assert [len(entry.top_logprobs) for entry in told.content] == [4, 4, 4]
    stream = await engine.client.chat.completions.create(
        model="fake-1b", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=4, stream=True
    )
    streamed = [chunk.choices[0].logprobs.content[0] async for chunk in stream if chunk.choices[0].logprobs]  # type: ignore[index]
    assert streamed == told.content


async def test_models_health_and_the_key(start_engine: StartEngine) -> None:
    engine = await start_engine(key="replica-key", model="some/model")
    models = await engine.client.models.list()
    assert [model.id for model in models.data] == ["some/model"]
    async with engine.http.get(f"{engine.url}/health") as response:
        assert response.status == 200
    with pytest.raises(openai.AuthenticationError) as caught:
        await engine.client.with_options(api_key="client-key").models.list()
    assert "replica-key" not in caught.value.response.text
    assert (await engine.json("POST", "/classify", {"model": "some/model", "input": "x"}))[0] == 401


async def test_classify_labels_each_input_always_the_same(start_engine: StartEngine) -> None:
    engine = await start_engine(labels="good,bad,odd")
    status, answer = await engine.json("POST", "/classify", {"model": "fake-1b", "input": ["a", "b", "a"]})
    assert status == 200
    rows = answer["data"]
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert {**rows[0], "index": 2} == rows[2]
    for row in rows:
        assert row["num_classes"] == len(row["probs"]) == 3
        assert sum(row["probs"]) == pytest.approx(1)
        assert row["label"] == ["good", "bad", "odd"][row["probs"].index(max(row["probs"]))]


def _chat(**fields: Any) -> dict[str, Any]:
    return {"model": "fake-1b", "messages": HELLO, **fields}


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"messages": HELLO}, 400, "model"),
        (_chat(model=3), 400, "model"),
        (_chat(model="nope"), 404, "model"),
        ({"model": "fake-1b"}, 400, "messages"),
        (_chat(messages=[]), 400, "messages"),
        (_chat(messages=["x"]), 400, "messages[0]"),
        (_chat(messages=[{"role": "chief", "content": "x"}]), 400, "messages[0].role"),
        (_chat(messages=[{"role": "user", "content": 3}]), 400, "messages[0].content"),
        (_chat(messages=[{"role": "user", "content": [3]}]), 400, "messages[0].content[0]"),
        (_chat(messages=[{"role": "assistant", "tool_calls": [{}]}]), 400, "messages[0].tool_calls[0].function"),
        (_chat(n=2), 400, "n"),
        (_chat(max_tokens=0), 400, "max_tokens"),
        (_chat(max_completion_tokens="x"), 400, "max_completion_tokens"),
        (_chat(stream="yes"), 400, "stream"),
        (_chat(stream_options={"include_usage": True}), 400, "stream_options"),
        (_chat(stop=[""]), 400, "stop"),
        (_chat(tools={}), 400, "tools"),
        (_chat(tools=[{"type": "function"}]), 400, "tools[0].function.name"),
        (_chat(tool_choice="required"), 400, "tool_choice"),
        (_chat(tools=[LOOKUP], tool_choice={"function": {"name": "nope"}}), 400, "tool_choice"),
        (_chat(top_logprobs=3), 400, "top_logprobs"),
        (_chat(logprobs=True, top_logprobs=21), 400, "top_logprobs"),
        (_chat(messages=[{"role": "user", "content": "x" * 70_000}]), 400, "messages"),
        (_chat(max_tokens=16_380), 400, "max_tokens"),
    ],
)
async def test_a_wrong_request_is_refused_naming_the_field(
    engine: RunningEngine, body: dict[str, Any], status: int, param: str
) -> None:
    found, answer = await engine.json("POST", "/v1/chat/completions", body)
    assert (found, answer["error"]["param"]) == (status, param)
    assert param.partition("[")[0] in answer["error"]["message"]
    assert (await engine.stats())["refused"] == 1
    assert not engine.engine.busy


@pytest.mark.parametrize("raw", [b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/classify"])
async def test_a_body_that_is_no_json_object_is_refused(engine: RunningEngine, path: str, raw: bytes) -> None:
    async with engine.http.post(engine.url + path, data=raw) as response:
        assert response.status == 400
        assert "JSON" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("body", [{"input": "x"}, {"model": "fake-1b"}, {"model": "fake-1b", "input": [3]}])
async def test_a_wrong_classification_is_refused(engine: RunningEngine, body: dict[str, Any]) -> None:
    status, answer = await engine.json("POST", "/classify", body)
    assert (status, answer["error"]["param"] in ("model", "input")) == (400, True)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/nothing"), ("PUT", "/")])
async def test_unknown_paths_get_an_error_in_json(engine: RunningEngine, method: str, path: str) -> None:
    status, answer = await engine.json(method, path)
    assert (status, path in answer["error"]["message"]) == (404, True)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/chat/completions", "POST"), ("POST", "/health", "GET"), ("PUT", "/fake/faults", "POST, GET, DELETE")],
)
async def test_a_wrong_method_is_told_the_right_ones(
    engine: RunningEngine, method: str, path: str, allowed: str
) -> None:
    async with engine.http.request(method, engine.url + path) as response:
        assert (response.status, response.headers["Allow"]) == (405, allowed)
        assert method in (await response.json())["error"]["message"]


async def test_a_body_that_is_too_long_is_refused(start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fakes.engine.server.BODY_BYTES_MAX", 1_000)
    engine = await start_engine()
    body = _chat(messages=[{"role": "user", "content": "x" * 2_000}])
    status, answer = await engine.json("POST", "/v1/chat/completions", body)
    assert (status, "1000" in answer["error"]["message"]) == (413, True)
    assert (await engine.stats())["refused"] == 1


async def test_out_of_blocks_every_stream_still_gets_all_its_tokens(start_engine: StartEngine) -> None:
    engine = await start_engine(kv_tokens=1_024, speed=1_000.0)

    async def tokens(number: int) -> int:
        stream = await engine.client.chat.completions.create(
            model="fake-1b",
            messages=[{"role": "user", "content": f"{number} " * 100}],
            max_tokens=200,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        return len([chunk async for chunk in stream if chunk.choices[0].delta.content])

    assert await asyncio.gather(*(tokens(number) for number in range(12))) == [200] * 12
    assert engine.engine.totals.preemptions > 0
    assert engine.blocks_used == 0
    assert (await engine.stats())["served"] == 12
