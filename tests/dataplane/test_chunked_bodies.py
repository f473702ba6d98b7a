"""Bodies that come in chunks: tiny ones cost a hundred times as much as their bytes, and there is a limit to them."""

from __future__ import annotations

import json

import pytest

from dataplane.request import CHUNKS_MAX
from tests.dataplane.conftest import Rig, left_behind
from tests.dataplane.raw_client import CHAT
from tests.dataplane.scripted_engine import REPLY
from tests.waiting import wait_until

BODY = json.dumps(CHAT).encode()


def chunked(path: str = "/v1/chat/completions") -> bytes:
    """The head of a request whose body comes in chunks."""
    return b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % path.encode()


def chunk(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/decide"])
@pytest.mark.parametrize("size", [1, 16])
async def test_a_body_in_more_chunks_than_there_may_be_is_refused_while_it_comes(
    rig: Rig, path: str, size: int
) -> None:
    await rig.start()
    client = await rig.client()
    response = await client.ask(chunked(path) + chunk(b" " * size) * (2 * CHUNKS_MAX))
    assert (response.status, response.headers["connection"]) == (400, "close")
    assert response.error == "malformed HTTP request: the body comes in more than 65536 chunks; send larger ones"
    assert await client.reader.read() == b""


async def test_a_body_in_as_many_chunks_as_there_may_be_is_taken(rig: Rig) -> None:
    await rig.start()
    client = await rig.client()
    blank = chunk(b" ") * (CHUNKS_MAX - 2)
    assert (await client.ask(chunked() + blank + chunk(BODY) + chunk(b""))).body == REPLY
    assert rig.engine.calls[0].body == b" " * (CHUNKS_MAX - 2) + BODY
    assert (await client.ask(chunked() + blank + chunk(b" ") + chunk(BODY) + chunk(b""))).status == 400


async def test_chunks_of_a_body_that_nobody_reads_count_too(rig: Rig) -> None:
    await rig.start()
    response = await rig.ask(chunked("/v1/nothing") + chunk(b"x") * (2 * CHUNKS_MAX))
    assert (response.status, response.headers["connection"]) == (404, "close")


@pytest.mark.parametrize("sent", [b"", chunk(b"x"), chunk(b"") + chunked("/v1/decide")])
async def test_a_client_that_leaves_in_mid_body_leaves_no_request_behind(rig: Rig, sent: bytes) -> None:
    await rig.start()
    client = await rig.client()
    await client.send(chunked("/v1/decide") + sent)
    await wait_until(left_behind)
    client.close()
