"""Engines that answer what no engine should: the client gets a whole answer or an error, and the slot is freed."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.dataplane.scripted_engine import (
    DONE,
    LAST_CHUNK,
    OK,
    REPLY,
    STREAM,
    USAGE,
    USAGE_CHUNK,
    Call,
    chunk,
    delta,
    event,
)
from tests.dataplane.scripted_engine import whole as whole_reply
from tests.servers import raw_server
from tests.waiting import wait_until

STREAMED = {**CHAT, "stream": True}


def answers(rig: Rig, *parts: bytes) -> None:
    """Lets the engine answer every request with these bytes."""

    async def answer(call: Call) -> None:
        await call.send(*parts)

    rig.engine.script = answer


@pytest.mark.parametrize("junk", [b"junk", b"\r\n\r\n\x00", b"HTTP/1.1 999 \x00\r\n"])
async def test_what_follows_a_whole_reply_does_not_spoil_it(rig: Rig, junk: bytes) -> None:
    answers(rig, whole_reply(REPLY) + junk)
    await rig.start()
    client = await rig.client()
    for _ in range(2):
        assert (await client.ask(request(CHAT))).body == REPLY
        await rig.reported("STARTED", "ENDED")
    assert [call.connection for call in rig.engine.calls] == [1, 2], "the connection is not used again"


@pytest.mark.parametrize(
    "lines", [b"", b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n"], ids=["bare", "length", "chunked"]
)
@pytest.mark.parametrize("behind", [b"", b"0\r\n\r\n"])
async def test_an_answer_without_content_has_none(rig: Rig, lines: bytes, behind: bytes) -> None:
    answers(rig, b"HTTP/1.1 204 No Content\r\n" + lines + b"\r\n" + behind)
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT))
    status, headers = await client.head()
    assert status == 204
    assert not {"content-length", "transfer-encoding"} & set(headers)
    assert (await client.ask(request(b"", method="GET", path="/health"))).status == 200, "nothing follows the head"
    await rig.reported("STARTED", "ENDED")


async def test_a_head_without_an_end_is_a_502(rig: Rig) -> None:
    sent = 0

    async def answer(call: Call) -> None:
        nonlocal sent
        await call.send(OK)
        while True:
            await call.send(b"x-more: %b\r\n" % (b"m" * 8000))
            sent += 8000

    rig.engine.script = answer
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.status, response.error) == (502, "engine engine-0: more than 262144 bytes of head or trailers")
    await rig.reported("STARTED", "FAILED")
    await wait_until(lambda: rig.engine.open == 0)


async def test_one_header_without_an_end_is_a_502(rig: Rig) -> None:
    answers(rig, OK + b"x: ", *[b"y" * 2**16] * 12)
    await rig.start()
    assert (await rig.ask(request(CHAT))).status == 502


async def test_trailers_without_an_end_break_the_answer_off(rig: Rig) -> None:
    answers(rig, STREAM, chunk(event(delta(content="a"))), b"0\r\n", *[b"x-more: %b\r\n" % (b"m" * 2**16)] * 12)
    await rig.start()
    assert not (await rig.ask(request(STREAMED))).whole
    await rig.reported("STARTED", "FIRST_TOKEN", "FAILED")


async def test_trailers_are_not_passed_on_nor_taken_for_headers(rig: Rig) -> None:
    trailers = b"x-trailer: 1\r\nconnection: x-kept\r\n\r\n"
    chunked = OK + b"x-kept: 1\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(REPLY) + b"0\r\n" + trailers
    answers(rig, chunked)
    await rig.start()
    client = await rig.client()
    for _ in range(2):
        response = await client.ask(request(CHAT))
        assert (response.body, response.whole) == (REPLY, True)
        assert (response.headers["x-kept"], "x-trailer" in response.headers) == ("1", False)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (b"HTTP/1.1 000 Nothing\r\ncontent-length: 2\r\n\r\n{}", "answered what is not HTTP: status 0"),
        (b"HTTP/1.1 101 Other\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "changed the protocol"),
    ],
)
async def test_an_impossible_status_is_a_502(rig: Rig, reply: bytes, problem: str) -> None:
    answers(rig, reply)
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert response.status == 502
    assert response.error.startswith(f"engine engine-0: {problem}")
    await rig.reported("STARTED", "FAILED")


async def test_a_connection_with_an_unread_request_is_not_used_again(rig: Rig) -> None:
    """An engine may refuse a large body by its head, and keep the connection, and never read the rest."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\n{}")
        await asyncio.Event().wait()

    async with raw_server(refuse, limit=2**12) as port:
        rig.scheduler.url = f"http://127.0.0.1:{port}"
        await rig.start()
        client = await rig.client()
        body = {**CHAT, "user": "u" * 2**23}
        for _ in range(2):
            assert (await client.ask(request(body))).status == 413


async def test_an_event_too_large_to_read_hides_nothing_of_what_follows(rig: Rig) -> None:
    large = event(delta(content="x" * 5_000_000))
    calls = event(delta(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": "{}"}}]))
    end = event(delta(finish_reason="tool_calls"))
    answers(rig, STREAM, *map(chunk, (large, calls, end, event(USAGE_CHUNK), DONE)), LAST_CHUNK)
    await rig.start()
    response = await rig.ask(request(STREAMED))
    assert response.body == large + calls + end + DONE
    await rig.reported("STARTED", "FIRST_TOKEN", "ENDED")
    ended = rig.scheduler.reports[-1]
    assert (list(ended.tool_call_ids), ended.prompt_tokens) == (["call_1"], USAGE["prompt_tokens"])


async def test_a_compressed_reply_that_ends_with_the_connection_is_whole(rig: Rig) -> None:
    packed = gzip.compress(REPLY)

    async def answer(call: Call) -> None:
        await call.send(OK + b"content-type: application/json\r\ncontent-encoding: gzip\r\n\r\n" + packed)
        call.writer.close()

    rig.engine.script = answer
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.whole, response.body) == (True, packed)
    await rig.reported("STARTED", "ENDED")
