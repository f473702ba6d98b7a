"""Model turns when the engine or the way to it fails, and what of an answer is believed."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import pathlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from runtime import chat, llm
from runtime.llm import Model, TurnFailedError
from runtime.refusals import NoAnswerError
from runtime.run import RunState, fold
from tests.runtime import journals as j
from tests.runtime.rig import Rig, results, rig
from tests.servers import web_server

Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]

GOOD: dict[str, Any] = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries that a test can wait for."""
    monkeypatch.setattr(llm, "RETRY_PAUSES_S", (0.01, 0.02, 0.03))


class Dataplane:
    """Answers turns from a list, the last one for ever, and remembers what it was sent."""

    def __init__(self, *answers: Respond) -> None:
        self._answers = list(answers)
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.times: list[float] = []

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """One turn."""
        self.requests.append((dict(request.headers), await request.json() if request.can_read_body else {}))
        self.times.append(time.monotonic())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return await answer(request)


def says(body: Any, status: int = 200, **headers: str) -> Respond:
    """An answer of JSON, or of bytes as they are."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return web.Response(body=raw, status=status, headers=headers)

    return answer


async def breaks_off(request: web.Request) -> web.StreamResponse:
    """Begins an answer and closes the connection."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


def streams(*events: bytes, cut: bool = False) -> Respond:
    """An answer of events, each sent by itself; cut, if wanted, before HTTP says that it is whole."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
        if cut:
            assert request.transport is not None
            request.transport.close()
        return response

    return answer


HALF = b'data: {"choices":[{"delta":{"content":"h"},"finish_reason":null}]}\n\n'
REST = b'data: {"choices":[{"delta":{"content":"i"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def told(message: str, **fields: Any) -> bytes:
    """The event of an error."""
    return b"event: error\ndata: " + msgspec.json.encode({"error": {"message": message, **fields}}) + b"\n\n"


@contextlib.asynccontextmanager
async def served(dataplane: Dataplane) -> AsyncIterator[str]:
    """Its base URL, while the block runs."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", dataplane.respond)
    async with web_server(app, handler_cancellation=True, shutdown_timeout=1) as origin:
        yield origin


async def turn(dataplane: Dataplane, **order: Any) -> chat.Reply:
    """One turn of a new run."""
    async with served(dataplane) as url, Model(url, "secret") as model:
        return (await model.turn(fold([j.started(**order)]), (), None)).reply


async def test_a_turn_says_whose_it_is() -> None:
    dataplane = Dataplane(says(GOOD))
    assert (await turn(dataplane, tokens_max=7)).content == "hi"
    headers, body = dataplane.requests[0]
    assert headers["x-luftpause-run-id"] == j.RUN
    assert headers["x-luftpause-caller"] == "me"
    assert headers["x-luftpause-class"] == "interactive"
    assert headers["x-luftpause-wait-s-max"] == "300"
    assert headers["Authorization"] == "Bearer secret"
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "t"}],
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_the_engine_decides_the_length_where_none_is_named() -> None:
    dataplane = Dataplane(says(GOOD))
    await turn(dataplane, tokens_max=0)
    assert "max_tokens" not in dataplane.requests[0][1]


@pytest.mark.parametrize(
    "failing",
    [
        says({"error": {"message": "gone"}}, 502),
        says(b"<html>"),
        says({"choices": []}),
        breaks_off,
        streams(HALF, cut=True),
        streams(HALF, DONE, cut=True),
        streams(HALF),
        streams(HALF, told("gone", code=400), DONE),
        streams(told("gone", status=502)),
    ],
    ids=[
        "5xx",
        "not JSON",
        "no choices",
        "breaks off",
        "stream cut",
        "stream cut after its end",
        "half a stream",
        "error in a stream",
        "5xx in a stream",
    ],
)
async def test_what_may_pass_is_tried_three_times_more(failing: Respond) -> None:
    dataplane = Dataplane(failing, failing, failing, streams(HALF, REST, DONE))
    assert (await turn(dataplane)).content == "hi"
    assert len(dataplane.requests) == 4
    for_ever = Dataplane(failing)
    with pytest.raises(TurnFailedError, match=r"the model's turn failed.*\(4 tries\)"):
        await turn(for_ever)
    assert len(for_ever.requests) == 4


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413])
async def test_a_refusal_fails_the_turn_at_once_with_its_reason(status: int) -> None:
    dataplane = Dataplane(says({"error": {"message": "no generative\nreplica"}}, status))
    with pytest.raises(TurnFailedError, match=f"status {status}: no generative replica"):
        await turn(dataplane)
    assert len(dataplane.requests) == 1


async def test_a_refusal_in_a_stream_fails_the_turn_as_its_status_would() -> None:
    dataplane = Dataplane(streams(b": held\n\n", told("no such model", status=404)))
    with pytest.raises(TurnFailedError, match="status 404: no such model"):
        await turn(dataplane)
    assert len(dataplane.requests) == 1


async def test_an_engine_that_refuses_streams_is_asked_without() -> None:
    dataplane = Dataplane(says({"error": {"message": "stream_options: extra inputs"}}, 422), says(GOOD))
    assert (await turn(dataplane)).content == "hi"
    first, second = (body for _, body in dataplane.requests)
    assert first == {**second, "stream": True, "stream_options": {"include_usage": True}}


async def test_a_compressed_reply_is_not_asked_for_and_not_unpacked() -> None:
    dataplane = Dataplane(says(gzip.compress(msgspec.json.encode(GOOD)), 200, **{"Content-Encoding": "gzip"}))
    with pytest.raises(TurnFailedError, match="coding 'gzip'"):
        await turn(dataplane)
    [(headers, _)] = dataplane.requests
    assert headers["Accept-Encoding"] == "identity"


async def test_a_reply_may_be_as_large_as_is_allowed_however_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "REPLY_BYTES_MAX", 200)
    assert (await turn(Dataplane(streams(*[HALF] * 100, REST, DONE)))).content == "h" * 100 + "i"
    for too_large in (streams(*[HALF] * 300, REST, DONE), streams(b"data: " + b"x" * 300), says(b"x" * 300)):
        with pytest.raises(TurnFailedError, match="larger than 200 bytes"):
            await turn(Dataplane(too_large))


async def test_nobody_there_is_tried_again_and_then_told() -> None:
    async with Model("http://127.0.0.1:1", None) as model:
        with pytest.raises(TurnFailedError, match="Cannot connect"):
            await model.turn(fold([j.started()]), (), None)


async def test_a_429_is_waited_out_as_long_as_it_says() -> None:
    refusals = [says({}, 429, **{"Retry-After": "0.2"}) for _ in range(5)]
    dataplane = Dataplane(*refusals, streams(told("slow down", status=429, retry_after="0.2")), says(GOOD))
    assert (await turn(dataplane)).content == "hi"
    waits = [after - before for before, after in zip(dataplane.times, dataplane.times[1:], strict=False)]
    assert len(waits) == 6
    assert all(wait >= 0.19 for wait in waits)


async def test_a_turn_that_takes_too_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "TURN_LIMIT_S", 0.1)

    async def late(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    with pytest.raises(TurnFailedError, match=r"longer than 0\.1 s"):
        await turn(Dataplane(late))


@pytest.mark.parametrize(
    ("header", "expected_s"),
    [
        (None, 1.0),
        ("2", 2.0),
        ("1.5", 1.5),
        ("0", 0.1),
        ("-3", 0.1),
        ("soon", 1.0),
        ("", 1.0),
        ("nan", 1.0),
        ("inf", 3600.0),
        ("Thu, 01 Jan 1970 00:16:50 GMT", 10.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.1),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, expected_s: float) -> None:
    assert chat.retry_after_s(header, now=1000.0) == expected_s


def test_a_reply_is_read_with_what_it_lacks() -> None:
    call = {"function": {"name": "lookup", "arguments": {"a": 1}}}
    body = {
        "choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": None}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": None},
    }
    reply = chat.read_reply(msgspec.json.encode(body))
    assert reply.calls == (chat.RawCall("", "lookup", '{"a":1}'),)
    assert (reply.content, reply.finish_reason) == ("", "")
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (3, 2, 0)


@pytest.mark.parametrize(("told", "believed"), [(-5, 0), (10**30, chat.TOKENS_MAX)])
def test_no_engine_can_give_tokens_back_or_tell_more_than_can_be_counted(told: int, believed: int) -> None:
    usage = {"prompt_tokens": told, "completion_tokens": told, "prompt_tokens_details": {"cached_tokens": told}}
    reply = chat.read_reply(msgspec.json.encode({**GOOD, "usage": usage}))
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens) == (believed,) * 3


@pytest.mark.parametrize("by_api", [True, False])
async def test_half_a_character_in_arguments_breaks_no_run(
    r: Rig, monkeypatch: pytest.MonkeyPatch, by_api: bool
) -> None:
    arguments = r'{"query": "tea \ud83c and \ud83c\udf75"}'
    call = {"id": "1", "function": {"name": "lookup", "arguments": arguments}}
    written = f'<tool_call>{{"name": "lookup", "arguments": {arguments}}}</tool_call>'
    message = {"tool_calls": [call]} if by_api else {"content": written}
    dataplane = Dataplane(says({"choices": [{"message": message}]}), says(GOOD))
    run = await spent(r, monkeypatch, dataplane, 2)
    assert (run.state, results(run)) == ("Completed", ["lookup did tea ? and 🍵"])


async def test_arguments_that_are_too_long_are_refused_and_not_sent_again(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = {
        "id": "1",
        "function": {"name": "lookup", "arguments": msgspec.json.encode({"query": "x" * 2**21}).decode()},
    }
    dataplane = Dataplane(says({"choices": [{"message": {"tool_calls": [call]}}]}), says(GOOD))
    run = await spent(r, monkeypatch, dataplane, 2)
    assert (run.state, run.steps[0].calls[0].call.arguments) == ("Completed", "{}")
    assert "longer than" in results(run)[0]


async def test_a_run_whose_turn_fails_says_why(r: Rig) -> None:
    run = await r.settled(await r.spawn("x", model="unknown-model"))
    assert run.state == "Failed"
    assert run.end is not None
    assert "unknown-model" in run.end.text


async def test_a_run_that_is_refused_by_limits_can_be_cancelled(tmp_path: pathlib.Path) -> None:
    limited = {"fault": "status", "code": 429, "retry_after": 60, "match": "limited"}
    async with rig(tmp_path, faults=[limited]) as r:
        handle = await r.spawn("limited")
        await r.runtime.await_([handle], timeout_s=0.2)
        assert r.state(handle) == "Running"
        await r.runtime.cancel(handle)
        assert r.state(handle) == "Cancelled"


async def test_a_call_that_was_written_as_text_is_made(r: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    written = '<tool_call>{"name": "lookup", "arguments": {"query": "x"}}</tool_call>'
    async with served(Dataplane(says({"choices": [{"message": {"content": written}}]}), says(GOOD))) as url:
        monkeypatch.setattr(r.model, "_url", url)
        run = await r.settled(await r.spawn("t"))
    assert results(run) == ["lookup did x"]
    assert run.steps[0].content == ""


def calls_lookup(content: str | None = None) -> Respond:
    """A reply that calls a tool, whatever it was asked; by the API, or with `content` as text."""
    call = {"id": "1", "function": {"name": "lookup", "arguments": "{}"}}
    message: dict[str, Any] = {"content": None, "tool_calls": [call]} if content is None else {"content": content}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    return says({"choices": [{"message": message}], "usage": usage})


async def spent(r: Rig, monkeypatch: pytest.MonkeyPatch, dataplane: Dataplane, tool_calls: int) -> RunState:
    """A settled run of so many tool calls, answered by `dataplane`."""
    async with served(dataplane) as url:
        monkeypatch.setattr(r.model, "_url", url)
        return await r.settled(await r.spawn("t", max_tool_calls=tool_calls))


async def test_a_run_without_calls_left_still_shows_its_tools_so_that_its_prompt_begins_as_before(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataplane = Dataplane(calls_lookup(), says(GOOD))
    assert (await spent(r, monkeypatch, dataplane, 1)).usage.turns == 2
    first, last = (body for _, body in dataplane.requests if "messages" in body)
    assert first["tools"] == last["tools"]
    assert ("tool_choice" in first, last["tool_choice"]) == (False, "none")


async def test_a_run_that_may_call_nothing_from_the_start_is_shown_no_tools(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataplane = Dataplane(says(GOOD))
    await spent(r, monkeypatch, dataplane, 0)
    assert not {"tools", "tool_choice"} & dataplane.requests[0][1].keys()


WRITTEN = '<tool_call>{"name": "lookup", "arguments": {}}</tool_call>'


@pytest.mark.parametrize("content", [None, WRITTEN], ids=["by the API", "as text"])
async def test_a_model_that_calls_though_it_may_not_is_asked_again_without_tools(
    r: Rig, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    dataplane = Dataplane(calls_lookup(), calls_lookup(content), says(GOOD))
    run = await spent(r, monkeypatch, dataplane, 1)
    bodies = [body for _, body in dataplane.requests if "messages" in body]
    assert ["tools" in body for body in bodies] == [True, True, False]
    assert bodies[1]["messages"] == bodies[2]["messages"]
    assert (run.end and run.end.text, run.usage.turns, r.times("lookup")) == ("hi", 2, 1)
    assert (run.usage.prompt_tokens, run.usage.cached_tokens) == (20, 16), "what was of no use was used"


async def test_a_model_that_calls_without_being_shown_tools_ends_its_run_all_the_same(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await spent(r, monkeypatch, Dataplane(calls_lookup()), 2)
    assert (run.state, run.usage.turns, run.usage.tool_calls, r.times("lookup")) == ("Completed", 3, 2, 2)


async def test_a_dataplane_that_names_no_model_is_told() -> None:
    for answer, said in (
        (says({"data": []}), "serves no model yet; try again, or name a model"),
        (says({"error": {"message": "no scheduler"}}, 503), "tells of no models: no scheduler; "),
    ):
        async with served(Dataplane(answer)) as url, Model(url, None) as model:
            with pytest.raises(NoAnswerError, match=f"^the dataplane at {url} {said}"):
                await model.first_served()
    async with Model(url, None) as model:
        with pytest.raises(NoAnswerError, match=f"^the dataplane at {url} does not answer; try again"):
            await model.first_served()
