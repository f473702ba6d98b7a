"""Faults that others had in public, one test each: those of which the dataplane alone is to blame."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator

import pytest

from protos import turn_pb2
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, RawClient, request
from tests.dataplane.scripted_engine import DONE, LAST_CHUNK, STREAM, USAGE, Call, chunk, delta, event, whole
from tests.servers import raw_server
from tests.waiting import wait_until

STREAMED = {**CHAT, "stream": True}


def has_more_calls(rig: Rig, than: int) -> bool:
    return len(rig.engine.calls) > than


async def test_generation_does_not_go_on_after_a_disconnect_during_a_long_prefill(rig: Rig) -> None:
    """smg 2136 noticed only at the first token that nobody was there."""

    async def prefill(call: Call) -> None:
        await call.left()
        call.writer.close()

    rig.engine.script = prefill
    await rig.start()
    for body in (CHAT, STREAMED):
        client = await rig.client()
        asked = len(rig.engine.calls)
        await client.send(request(body))
        await wait_until(functools.partial(has_more_calls, rig, asked))
        client.close()
        await wait_until(lambda: rig.engine.open == 0, 2.0)
        await rig.reported("STARTED", "FAILED")


async def test_a_usage_chunk_with_choices_is_read_and_passed_on(rig: Rig) -> None:
    """Some engines send usage with the last words. Who takes every chunk with usage for theirs alone hides those."""
    last = {**delta(content="end", finish_reason="stop"), "usage": USAGE}

    async def answer(call: Call) -> None:
        await call.send(STREAM, chunk(event(delta(content="a"))), chunk(event(last)), chunk(DONE), LAST_CHUNK)

    rig.engine.script = answer
    await rig.start()
    response = await rig.ask(request(STREAMED))
    assert response.body == event(delta(content="a")) + event(last) + DONE
    await rig.reported("STARTED", "FIRST_TOKEN", "ENDED")
    ended = rig.scheduler.last(turn_pb2.REPORT_KIND_ENDED)
    assert ended is not None
    assert (ended.prompt_tokens, ended.completion_tokens) == (USAGE["prompt_tokens"], USAGE["completion_tokens"])


@pytest.mark.parametrize("name", ["Retry-After", "retry-after-ms", "X-Retry-After"])
async def test_retry_after_is_not_renamed(rig: Rig, name: str) -> None:
    body = b'{"error": {"message": "slow down"}}'
    rig.engine.script = lambda call: call.send(whole(body, "429 Too Many Requests", f"{name}: 7"))
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT))
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ")
    assert f"\r\n{name}: 7\r\n".encode() in head
    assert head.lower().count(b"retry-after") == 1


IDLE_S = 0.6
"""A load balancer cuts a connection on which nothing moved for so long; theirs is 60 s."""


@pytest.mark.parametrize("keep_alive_s", [0.0, IDLE_S / 4])
async def test_a_held_request_outlives_a_load_balancer_if_comments_keep_it_alive(rig: Rig, keep_alive_s: float) -> None:
    await rig.start(keep_alive_s=keep_alive_s)
    rig.scheduler.holds = True
    assert rig.app is not None
    assert rig.app.address is not None
    async with balancer(rig.app.address[1]) as port:
        client = await RawClient.connect(port)
        await client.send(request(STREAMED))
        if not keep_alive_s:
            assert await client.reader.read() == b""
            client.close()
            await wait_until(lambda: rig.app is not None and not rig.app.snapshot()["gauges"]["held"])
            return
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        assert (await client.head())[0] == 200
        while loop.time() - began_at < 3 * IDLE_S:
            assert await client.chunk() == b": held\n\n"
        rig.scheduler.place(rig.scheduler.turns[-1])
        body = b""
        while part := await client.chunk():
            body += part
        assert body.endswith(DONE)
        client.close()


@contextlib.asynccontextmanager
async def balancer(port: int) -> AsyncIterator[int]:
    """The port of one in front of `port`."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit_s: float | None) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError):
            while data := await asyncio.wait_for(reader.read(65536), limit_s):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
        asking = asyncio.create_task(pass_on(reader, behind_writer, None))
        try:
            await pass_on(behind_reader, writer, IDLE_S)
        finally:
            behind_writer.close()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async with raw_server(serve) as in_front:
        yield in_front
