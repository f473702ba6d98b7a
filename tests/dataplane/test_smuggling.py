"""Requests and replies that two parsers could read differently, and headers that would become two."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.dataplane.scripted_engine import REPLY, STREAM, Call, chunk, whole

START = b"POST /v1/chat/completions HTTP/1.1\r\n"
HIDDEN = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = START + b"host: x\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.mark.parametrize(
    "head",
    [
        b"host: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"host: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        b"host: x\r\ncontent-length: 0\r\ncontent-length: 40\r\n\r\n",
        b"host: x\r\ncontent-length: 0, 40\r\n\r\n",
        b"host: x\r\ncontent-length: +0\r\n\r\n",
        b"host: x\r\ncontent-length: 0x0\r\n\r\n",
        b"host: x\r\ncontent-length : 0\r\n\r\n",
        b"host: x\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        b"host: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"host: x\r\ntransfer-encoding: identity\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"host: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
        b"host: x\r\ntransfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        b"host: x\r\nx: 1\r\n folded: 2\r\ncontent-length: 0\r\n\r\n",
        b"host: x\r\nx: 1\n content-length: 40\r\ncontent-length: 0\r\n\r\n",
        b"host: x\r\nx: a\rb\r\ncontent-length: 0\r\n\r\n",
        b"host: x\r\nx: a\x00b\r\ncontent-length: 0\r\n\r\n",
        b": empty\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_a_head_with_two_readings_is_refused_and_what_follows_is_not_answered(rig: Rig, head: bytes) -> None:
    await rig.start()
    client = await rig.client()
    response = await client.ask(START + head + HIDDEN)
    assert response.status == 400, response
    assert response.headers["connection"] == "close"
    async with asyncio.timeout(5):
        assert await client.reader.read() == b""
    assert rig.engine.calls == []


@pytest.mark.parametrize(
    "body",
    [
        b"fffffffffffffffff\r\n" + BODY,
        b"-1\r\n" + BODY,
        b"0x39\r\n" + BODY,
        b" 39\r\n" + BODY,
        b"39 \n" + BODY,
        b"39\r\n" + BODY + b"0\r\n\r\n",
        b"5\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"\r\n" + BODY,
    ],
)
async def test_chunks_that_do_not_fit_are_refused(rig: Rig, body: bytes) -> None:
    await rig.start()
    client = await rig.client()
    response = await client.ask(CHUNKED + body + HIDDEN)
    assert response.status == 400, response
    async with asyncio.timeout(5):
        assert await client.reader.read() == b""
    assert rig.engine.calls == []


async def test_chunk_extensions_and_trailers_reach_no_engine(rig: Rig) -> None:
    await rig.start()
    trailers = b"x-luftpause-caller: forged\r\nx-trailer: 1\r\ncontent-encoding: gzip\r\nx-trailer: 2\r\nx-last: 3\r\n"
    sent = b"%x;a=b\r\n%b\r\n0\r\n%b\r\n" % (len(BODY), BODY, trailers)
    client = await rig.client()
    response = await client.ask(CHUNKED + sent)
    assert response.status == 200
    (call,) = rig.engine.calls
    assert call.body == BODY
    assert not {"x-trailer", "x-last", "content-encoding"} & set(call.headers)
    assert [turn.caller for turn in rig.scheduler.turns] == [""]


@pytest.mark.parametrize("line", [b"x-a: b\r\n", b"x"], ids=["many", "one without an end"])
async def test_trailers_without_end_are_refused(rig: Rig, line: bytes) -> None:
    await rig.start()
    client = await rig.client()
    await client.send(CHUNKED + b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY))
    for _ in range(64):
        await client.send(line * (4096 // len(line)))
    response = await client.response()
    assert response.status == 431
    assert rig.engine.calls == []


async def test_a_header_named_by_either_of_two_connection_headers_ends_here(rig: Rig) -> None:
    await rig.start()
    lines = ("Connection: x-private", "Connection: keep-alive", "X-Private: 1")
    assert (await rig.ask(request(CHAT, *lines))).status == 200
    assert "x-private" not in rig.engine.calls[0].headers


async def test_two_authorizations_are_none(rig: Rig) -> None:
    await rig.start(token="secret")
    lines = ("Authorization: Bearer wrong", "Authorization: Bearer secret")
    assert (await rig.ask(request(CHAT, *lines))).status == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../v1/chat/completions",
        "/v1/%2e%2e/admin",
        "/v1/chat/completions/../../../etc/passwd",
        "/v1/chat%2fcompletions",
        "/v1//chat/completions",
        "/v1/runs/..",
        "/v1/runs/../../x",
        "/v1/runs/a%2fb",
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_no_path_leads_anywhere_else(rig: Rig, path: str, method: str) -> None:
    await rig.start()
    response = await rig.ask(request(CHAT, method=method, path=path))
    assert response.status in (400, 404, 405, 200)
    assert (response.status == 200) == (path == "/v1/runs/.." and method == "DELETE"), "two dots are a run's name"
    assert rig.engine.calls == []


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"x: a\rb\r\ncontent-length: 0\r\n\r\n",
        b"x: a\x00b\r\ncontent-length: 0\r\n\r\n",
        b"x y: 1\r\ncontent-length: 0\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    ],
)
async def test_a_reply_with_two_readings_does_not_get_through(rig: Rig, head: bytes) -> None:
    async def answer(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\n" + head)
        call.writer.close()

    rig.engine.script = answer
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert response.status == 502 or not response.whole
    await rig.reported("STARTED", "FAILED")


async def test_a_compressed_reply_is_passed_on_and_never_unpacked(rig: Rig) -> None:
    bomb = gzip.compress(b"\x00" * 50_000_000)

    async def answer(call: Call) -> None:
        assert "accept-encoding" not in call.headers
        await call.send(whole(bomb, "200 OK", "content-encoding: gzip"))

    rig.engine.script = answer
    await rig.start()
    response = await rig.ask(request(CHAT, "accept-encoding: gzip"))
    assert (response.status, response.body, response.headers["content-encoding"]) == (200, bomb, "gzip")
    await rig.reported("STARTED", "ENDED")


async def test_a_redirect_is_passed_on_and_never_followed(rig: Rig) -> None:
    async def answer(call: Call) -> None:
        await call.send(whole(b"", "307 Temporary Redirect", f"location: http://127.0.0.1:{rig.engine.port}/elsewhere"))

    rig.engine.script = answer
    await rig.start()
    assert (await rig.ask(request(CHAT))).status == 307
    assert len(rig.engine.calls) == 1
    await rig.reported("STARTED", "FAILED")


async def test_chunks_of_a_reply_with_extensions_and_trailers_arrive_plain(rig: Rig) -> None:
    event = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'

    async def answer(call: Call) -> None:
        await call.send(STREAM, b"%x;a=b\r\n%b\r\n" % (len(event), event), chunk(b"data: [DONE]\n\n"))
        await call.send(b"0\r\nset-cookie: forged\r\n\r\n")

    rig.engine.script = answer
    await rig.start()
    response = await rig.ask(request({**CHAT, "stream": True, "stream_options": {"include_usage": True}}))
    assert response.body == event + b"data: [DONE]\n\n"
    assert "set-cookie" not in response.headers
    assert REPLY not in response.body
