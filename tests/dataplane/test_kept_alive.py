"""A streamed turn that waits hears comments, if that is set; what fails later is an event then."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from common.ids import ReplicaName
from common.pool import Pool, Replica
from dataplane.kept_alive import COMMENT
from protos import turn_pb2
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, RawClient, request
from tests.dataplane.scripted_engine import DONE, STREAM, Call, answer_ok, chunk, delta, event, whole
from tests.waiting import wait_until

STREAMED = {**CHAT, "stream": True}
SHORT_S = 0.05
REPLY = b"".join(event(delta(content=text)) for text in ("a", "b", "c")) + event(delta(finish_reason="stop")) + DONE
"""What `answer_ok` streams."""


async def admitted(rig: Rig) -> turn_pb2.Turn:
    """The latest turn, which the scheduler has heard of when this returns."""
    await wait_until(lambda: rig.scheduler.turns)
    return rig.scheduler.turns[-1]


async def opened(rig: Rig, *lines: str, body: dict[str, object] = STREAMED) -> tuple[RawClient, dict[str, str]]:
    """A client whose turn is held, and the head that came with the first comment."""
    rig.scheduler.holds = True
    client = await rig.client()
    await client.send(request(body, *lines))
    status, headers = await client.head()
    assert status == 200
    assert await client.chunk() == COMMENT
    return client, headers


async def rest(client: RawClient) -> bytes:
    """All that still comes of a body, without comments."""
    parts = []
    while part := await client.chunk():
        parts.append(part)
    return b"".join(parts).replace(COMMENT, b"")


def error_of(last: bytes) -> dict[str, object]:
    """The error that a body ends with."""
    kind, data = last.removesuffix(b"\n\n").rsplit(b"\n\n", 1)[-1].split(b"\n")
    assert kind == b"event: error"
    error: dict[str, object] = json.loads(data.removeprefix(b"data: "))["error"]
    return error


async def test_a_held_stream_hears_comments_and_then_its_reply_unchanged(rig: Rig) -> None:
    await rig.start(keep_alive_s=SHORT_S)
    client, headers = await opened(rig, "x-luftpause-run-id: r")
    assert headers["content-type"] == "text/event-stream"
    assert headers["x-luftpause-run-id"] == "r"
    assert await client.chunk() == COMMENT
    rig.scheduler.place(await admitted(rig))
    assert await rest(client) == REPLY
    # The connection goes on.
    assert (await client.ask(request(b"", method="GET", path="/health"))).status == 200


async def test_comments_go_on_while_the_engine_is_silent(rig: Rig) -> None:
    begins = asyncio.Event()

    async def silent_first(call: Call) -> None:
        await begins.wait()
        await answer_ok(call)

    rig.engine.script = silent_first
    await rig.start(keep_alive_s=SHORT_S)
    client = await rig.client()
    await client.send(request(STREAMED))
    assert (await client.head())[0] == 200
    await wait_until(lambda: rig.engine.calls)
    for _ in range(3):
        assert await client.chunk() == COMMENT
    begins.set()
    assert (await rest(client)).endswith(b"data: [DONE]\n\n")
    await rig.reported("STARTED", "FIRST_TOKEN", "ENDED")


async def test_a_turn_that_is_not_streamed_hears_nothing_before_its_answer(rig: Rig) -> None:
    await rig.start(keep_alive_s=SHORT_S)
    rig.scheduler.holds = True
    client = await rig.client()
    await client.send(request(CHAT))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(4 * SHORT_S):
            await client.head()
    rig.scheduler.place(await admitted(rig))
    assert "x-accel-buffering" not in (await client.response()).headers


async def test_a_refusal_that_comes_late_is_an_event(rig: Rig) -> None:
    await rig.start(keep_alive_s=SHORT_S)
    client, _ = await opened(rig)
    turn = await admitted(rig)
    rig.scheduler.refuse(turn, turn_pb2.REFUSAL_REASON_UNKNOWN_MODEL, "no generative replica serves model 'm'")
    said = {"message": "no generative replica serves model 'm'", "type": "invalid_request_error"}
    assert error_of(await rest(client)) == {**said, "code": "model_not_found", "status": 404}


@pytest.mark.parametrize("body", [b'{"error": {"message": "slow down", "code": "busy"}}', b"slow down"])
async def test_an_engines_refusal_that_comes_late_is_an_event_with_its_status(rig: Rig, body: bytes) -> None:
    rig.engine.script = lambda call: call.send(whole(body, "429 Too Many Requests", "retry-after: 7"))
    await rig.start(keep_alive_s=SHORT_S)
    client, _ = await opened(rig)
    rig.scheduler.place(await admitted(rig))
    error = error_of(await rest(client))
    assert (error["message"], error["status"], error["retry_after"]) == ("slow down", 429, "7")
    await rig.reported("STARTED", "FAILED")
    report = rig.scheduler.last(turn_pb2.REPORT_KIND_FAILED)
    assert report is not None
    assert (report.error, report.status) == ("engine answered 429", 429)


async def test_an_engine_that_cannot_be_reached_is_an_event(rig: Rig) -> None:
    await rig.start(keep_alive_s=SHORT_S)
    client, _ = await opened(rig)
    await rig.engine.stop()
    rig.scheduler.place(await admitted(rig))
    error = error_of(await rest(client))
    assert (error["message"], error["status"]) == ("engine engine-0: connection refused", 502)


async def test_an_answer_that_is_no_stream_is_an_event(rig: Rig) -> None:
    rig.engine.script = lambda call: call.send(whole(b"{}"))
    await rig.start(keep_alive_s=SHORT_S)
    client, _ = await opened(rig)
    rig.scheduler.place(await admitted(rig))
    assert error_of(await rest(client))["status"] == 502


async def test_a_stream_that_breaks_off_after_comments_is_broken_off_as_any_other(rig: Rig) -> None:
    async def die(call: Call) -> None:
        await call.send(STREAM, chunk(event(delta(content="a"))))
        call.writer.close()

    rig.engine.script = die
    await rig.start(keep_alive_s=SHORT_S)
    client, _ = await opened(rig)
    rig.scheduler.place(await admitted(rig))
    with pytest.raises(asyncio.IncompleteReadError):
        await rest(client)


async def test_a_client_that_leaves_after_comments_is_no_longer_held(rig: Rig) -> None:
    await rig.start(keep_alive_s=SHORT_S)
    client, _ = await opened(rig)
    client.close()
    await wait_until(lambda: rig.app is not None and not rig.app.snapshot()["gauges"]["held"])
    await wait_until(lambda: rig.app is not None and not rig.app.snapshot()["gauges"]["connections"])


async def test_a_client_of_http_1_0_gets_comments_without_chunks(rig: Rig) -> None:
    await rig.start(keep_alive_s=SHORT_S)
    rig.scheduler.holds = True
    client = await rig.client()
    await client.send(request(STREAMED).replace(b"HTTP/1.1", b"HTTP/1.0"))
    _, headers = await client.head()
    assert headers["connection"] == "close"
    assert await client.reader.readexactly(len(COMMENT)) == COMMENT
    rig.scheduler.place(await admitted(rig))
    assert (await client.reader.read()).endswith(b"data: [DONE]\n\n")


async def test_the_openai_client_raises_the_error_of_the_event(rig: Rig) -> None:
    await rig.start(keep_alive_s=SHORT_S)
    rig.scheduler.holds = True
    assert rig.app is not None
    assert rig.app.address is not None
    url = f"http://127.0.0.1:{rig.app.address[1]}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        turn = await admitted(rig)
        rig.scheduler.refuse(turn, turn_pb2.REFUSAL_REASON_OVER_BUDGET, "it is spent")
        with pytest.raises(openai.APIError, match="it is spent"):
            async for _ in stream:
                pass


@pytest.mark.parametrize("takes", [True, False])
async def test_a_fallback_is_tried_behind_the_comments(rig: Rig, takes: bool) -> None:
    """The first replica's failure is an event only where no other one takes the turn."""

    async def fail_once(call: Call) -> None:
        if call.number > 1:
            await answer_ok(call)
        else:
            await call.send(whole(b'{"error": {"message": "overloaded"}}', "503 Service Unavailable"))

    rig.engine.script = fail_once
    rig.pool = Pool((Replica(name=ReplicaName("engine-0"), url=rig.scheduler.url, fallback=("engine-1",)),))
    await rig.start(keep_alive_s=SHORT_S)
    client, _ = await opened(rig)
    rig.scheduler.place(await admitted(rig))
    await wait_until(lambda: len(rig.scheduler.turns) == 2)
    if takes:
        rig.scheduler.replica = "engine-1"
        rig.scheduler.place(await admitted(rig))
        assert await rest(client) == REPLY
    else:
        rig.scheduler.refuse(await admitted(rig), turn_pb2.REFUSAL_REASON_NO_FALLBACK, "none has room")
        error = error_of(await rest(client))
        assert (error["message"], error["status"]) == ("overloaded", 503)
