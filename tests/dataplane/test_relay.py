"""Bytes, headers and framing on their way through a dataplane."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Callable

import pytest

from common.ids import ReplicaName
from common.pool import Pool, Replica
from protos import turn_pb2
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.dataplane.scripted_engine import (
    DONE,
    LAST_CHUNK,
    OK,
    REPLY,
    STREAM,
    USAGE_CHUNK,
    Call,
    chunk,
    delta,
    event,
    whole,
)
from tests.waiting import wait_until

STREAMED = {**CHAT, "stream": True}
ASKING = {**STREAMED, "stream_options": {"include_usage": True}}
EVENTS = b"".join(event(delta(content=text)) for text in ("a", "b", "c")) + event(delta(finish_reason="stop"))


async def test_a_whole_reply_is_relayed_unchanged_and_reported(rig: Rig) -> None:
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.status, response.body, response.headers["content-length"]) == (200, REPLY, str(len(REPLY)))
    await rig.reported("STARTED", "ENDED")
    report = rig.scheduler.last(turn_pb2.REPORT_KIND_ENDED)
    assert report is not None
    assert (report.prompt_tokens, report.completion_tokens, report.cached_tokens) == (12, 3, 8)
    assert (report.finish_reason, report.has_tool_calls) == ("stop", False)
    assert response.headers["x-luftpause-run-id"] == rig.scheduler.turns[0].new_run_id


async def test_usage_that_the_client_asked_for_is_passed_on(rig: Rig) -> None:
    await rig.start()
    response = await rig.ask(request(ASKING))
    assert response.body == EVENTS + event(USAGE_CHUNK) + DONE
    assert json.loads(rig.engine.calls[0].body) == ASKING


@pytest.mark.parametrize("options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False}}])
async def test_usage_that_the_client_did_not_ask_for_is_read_and_hidden(rig: Rig, options: dict[str, object]) -> None:
    await rig.start()
    response = await rig.ask(request({**STREAMED, **options}))
    assert response.body == EVENTS + DONE
    assert json.loads(rig.engine.calls[0].body)["stream_options"] == {"include_usage": True}
    await rig.reported("STARTED", "FIRST_TOKEN", "ENDED")
    report = rig.scheduler.last(turn_pb2.REPORT_KIND_ENDED)
    assert report is not None
    assert report.prompt_tokens == 12


async def test_a_replica_may_be_spared_the_question_for_usage(rig: Rig) -> None:
    rig.pool = Pool((Replica(ReplicaName("engine-0"), rig.scheduler.url, usage_in_stream=False),))
    await rig.start()
    body = json.dumps(STREAMED).encode() + b"  "
    assert (await rig.ask(request(body))).body == EVENTS + DONE
    assert rig.engine.calls[0].body == body


async def test_the_body_of_a_request_goes_on_unchanged(rig: Rig) -> None:
    await rig.start()
    body = b' {"model":"m", "seed": 1.0e0,\n "messages":[{"role":"user","content":"\\u00fc"}], "seed": 2}\r\n'
    await rig.ask(request(body))
    assert rig.engine.calls[0].body == body


async def test_the_engine_sees_its_own_host_and_key_and_no_credentials_of_the_client(
    rig: Rig, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "key").write_text("engine-key\n")
    rig.pool = Pool((Replica(ReplicaName("engine-0"), rig.scheduler.url, key_file=str(tmp_path / "key")),))
    await rig.start()
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    response = await rig.ask(
        request(
            CHAT,
            "Authorization: Bearer client-secret",
            "Cookie: secret",
            "X-Api-Key: secret",
            "Accept-Encoding: gzip",
            "Connection: keep-alive, X-Private",
            "X-Private: secret",
            "X-Request-Id: client",
            "X-Luftpause-Caller: me",
            "OpenAI-Beta: yes",
            f"traceparent: {traceparent}",
        )
    )
    assert response.status == 200
    turn, call = rig.scheduler.turns[0], rig.engine.calls[0]
    assert call.line == "POST /v1/chat/completions HTTP/1.1"
    assert call.headers == {
        "host": f"127.0.0.1:{rig.engine.port}",
        "authorization": "Bearer engine-key",
        "openai-beta": "yes",
        "traceparent": traceparent,
        "x-request-id": turn.turn_id,
        "content-length": str(len(call.body)),
    }
    assert (turn.caller, turn.traceparent) == ("me", traceparent)


async def test_the_engines_headers_are_passed_on_but_hop_by_hop_ones(rig: Rig) -> None:
    async def answer(call: Call) -> None:
        lines = (
            "Connection: X-Hop",
            "X-Hop: 1",
            "Keep-Alive: timeout=5",
            "X-LuftPause-Run-Id: forged",
            "Set-Cookie: a",
            "Set-Cookie: b",
        )
        await call.send(whole(b"{}", "200 Fine", *lines))

    rig.engine.script = answer
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT, "x-luftpause-run-id: r"))
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head == (
        b"HTTP/1.1 200 Fine\r\ncontent-type: application/json\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
        b"x-luftpause-run-id: r\r\ncontent-length: 2\r\n\r\n"
    )


async def test_tool_call_ids_identify_the_run_where_none_is_named(rig: Rig) -> None:
    await rig.start()
    messages = [*CHAT["messages"], {"role": "tool", "tool_call_id": "call_1", "content": "x"}]
    await rig.ask(request({**CHAT, "messages": messages}))
    await rig.ask(request({**CHAT, "messages": messages}, "x-luftpause-run-id: r", "x-luftpause-class: batch"))
    first, second = rig.scheduler.turns
    assert (first.run_id, list(first.tool_call_ids), first.run_class) == (
        "",
        ["call_1"],
        turn_pb2.RUN_CLASS_INTERACTIVE,
    )
    assert (second.run_id, list(second.tool_call_ids), second.run_class) == ("r", [], turn_pb2.RUN_CLASS_BATCH)
    assert first.new_run_id != second.new_run_id


async def test_tool_calls_of_a_reply_are_reported(rig: Rig) -> None:
    async def call_tools(call: Call) -> None:
        calls = [{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}]
        parts = (event(delta(tool_calls=calls)), event(delta(finish_reason="stop")), DONE)
        await call.send(STREAM, *(chunk(part) for part in parts), LAST_CHUNK)

    rig.engine.script = call_tools
    await rig.start()
    await rig.ask(request(ASKING))
    await rig.reported("STARTED", "FIRST_TOKEN", "ENDED")
    report = rig.scheduler.last(turn_pb2.REPORT_KIND_ENDED)
    assert report is not None
    assert (report.has_tool_calls, list(report.tool_call_ids), report.finish_reason) == (True, ["call_1"], "stop")


async def test_the_end_is_reported_before_the_client_can_know_of_it(rig: Rig) -> None:
    """The engine keeps its stream open behind [DONE]; a client that goes on at once must not overtake the report."""
    released = asyncio.Event()

    async def linger(call: Call) -> None:
        await call.send(STREAM, chunk(event(delta(content="a"))), chunk(DONE))
        await released.wait()
        await call.send(LAST_CHUNK)

    rig.engine.script = linger
    await rig.start()
    client = await rig.client()
    await client.send(request(STREAMED))
    await client.head()
    body = b""
    while not body.endswith(DONE):
        body += await client.chunk()
    await rig.reported("STARTED", "FIRST_TOKEN", "ENDED")
    client.close()
    await wait_until(rig.engine.calls[0].reader.at_eof)
    released.set()
    await rig.ask(request(b"", method="DELETE", path="/v1/runs/r"))
    await wait_until(lambda: rig.scheduler.last(turn_pb2.REPORT_KIND_RUN_ENDED))
    assert rig.scheduler.last(turn_pb2.REPORT_KIND_FAILED) is None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
async def test_a_stream_in_pieces_of_any_size_is_relayed_whole(rig: Rig, size: int) -> None:
    data = (
        STREAM
        + b"".join(chunk(event(delta(content=text))) for text in ("ä", "世", "🙂" * 9))
        + chunk(DONE)
        + LAST_CHUNK
    )

    async def drip(call: Call) -> None:
        for start in range(0, len(data), size):
            await call.send(data[start : start + size])
            await asyncio.sleep(0)

    rig.engine.script = drip
    await rig.start()
    response = await rig.ask(request(STREAMED))
    assert response.whole
    assert response.body == b"".join(event(delta(content=text)) for text in ("ä", "世", "🙂" * 9)) + DONE


async def test_chunks_that_come_one_by_one_are_relayed_in_order(rig: Rig) -> None:
    def ordinary(text: str) -> bytes:
        return b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text.encode()

    texts = [f"text {'x' * (n % 40)}" for n in range(200)]

    async def stream(call: Call) -> None:
        await call.send(STREAM)
        for text in texts:
            await call.send(chunk(ordinary(text)))
        await call.send(chunk(DONE) + LAST_CHUNK)

    rig.engine.script = stream
    await rig.start()
    response = await rig.ask(request(ASKING))
    assert response.whole
    assert response.body == b"".join(map(ordinary, texts)) + DONE


async def test_a_body_that_only_the_connections_end_ends_is_whole(rig: Rig) -> None:
    async def answer(call: Call) -> None:
        await call.send(OK + b"content-type: application/json\r\n\r\n" + REPLY)
        call.writer.close()

    rig.engine.script = answer
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.body, response.whole) == (REPLY, True)
    await rig.reported("STARTED", "ENDED")


async def test_interim_answers_are_not_passed_on(rig: Rig) -> None:
    async def answer(call: Call) -> None:
        await call.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", whole(REPLY))

    rig.engine.script = answer
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.status, response.body, "link" in response.headers) == (200, REPLY, False)


async def test_a_second_reply_to_one_request_is_nobodys(rig: Rig) -> None:
    async def answer(call: Call) -> None:
        await call.send(whole(REPLY) + whole(b'{"forged": 1}'))

    rig.engine.script = answer
    await rig.start()
    client = await rig.client()
    assert (await client.ask(request(CHAT))).body == REPLY
    assert (await client.ask(request(CHAT))).body == REPLY
    assert [call.connection for call in rig.engine.calls] == [1, 2]


async def test_an_http_1_0_client_gets_no_chunks(rig: Rig) -> None:
    await rig.start()
    response = await rig.ask(request(STREAMED).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert "transfer-encoding" not in response.headers
    assert response.headers["connection"] == "close"
    assert response.body == EVENTS + DONE


async def test_pipelined_requests_are_answered_one_by_one_in_order(rig: Rig) -> None:
    at_once = 0

    async def answer(call: Call) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        await asyncio.sleep(0.01)
        at_once -= 1
        await call.send(whole(call.body))

    rig.engine.script = answer
    await rig.start()
    client = await rig.client()
    bodies = [{**CHAT, "seed": n} for n in range(20)]
    await client.send(b"".join(request(body) for body in bodies))
    assert [(await client.response()).json for _ in bodies] == bodies
    client.close()


async def wait_until_still(count: Callable[[], int]) -> None:
    """Waits until `count` is not 0 and has been the same for a while."""
    seen: list[int] = []

    def is_still() -> bool:
        seen.append(count())
        return seen[-1] > 0 and len(set(seen[-15:])) == 1 and len(seen) >= 15

    await wait_until(is_still, timeout_s=10)


async def test_a_client_that_does_not_read_stops_the_engine(rig: Rig) -> None:
    sent = 0
    text = event(delta(content="x" * 60_000))

    async def flood(call: Call) -> None:
        nonlocal sent
        await call.send(STREAM)
        for _ in range(600):
            await call.send(chunk(text))
            sent += 1
        await call.send(chunk(DONE), LAST_CHUNK)

    rig.engine.script = flood
    await rig.start()
    client = await rig.client()
    await client.send(request(ASKING))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]

    await wait_until_still(lambda: sent)
    assert sent < 500, "what is not read is not taken from the engine"
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    response = await client.response(timeout_s=30)
    assert response.whole
    assert len(response.body) == 600 * len(text) + len(DONE)


async def test_a_large_request_arrives_whole(rig: Rig) -> None:
    async def count(call: Call) -> None:
        await call.send(whole(b"%d" % len(call.body)))

    rig.engine.script = count
    await rig.start()
    body = json.dumps({**CHAT, "pad": "x" * 8_000_000}).encode()
    assert (await rig.ask(request(body))).json == len(body)


async def test_a_chunked_request_arrives_whole(rig: Rig) -> None:
    await rig.start()
    body = json.dumps(CHAT).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    client = await rig.client()
    for part in (head, chunk(body[:10])[:7], chunk(body[:10])[7:], chunk(body[10:]), LAST_CHUNK):
        await client.send(part)
    assert (await client.response()).status == 200
    assert rig.engine.calls[0].body == body


async def test_a_client_that_expects_to_be_asked_is_asked(rig: Rig) -> None:
    await rig.start()
    head, _, body = request(CHAT, "Expect: 100-continue").partition(b"\r\n\r\n")
    client = await rig.client()
    await client.send(head + b"\r\n\r\n")
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await client.ask(body)).status == 200
    assert "expect" not in rig.engine.calls[0].headers
