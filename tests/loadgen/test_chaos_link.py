"""The proxy between two services of a chaos: what it hands on, and how it misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from loadgen.chaos_link import DELAY_S, HOST, Link
from loadgen.ports import free_ports
from tests.servers import raw_server
from tests.waiting import wait_until


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with what it reads, until either side ends."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    """A link to a server that echoes."""
    async with raw_server(echo) as port:
        made = Link("test", port)
        await made.start()
        yield made
        made.refuse()
        made.reset()


async def connect(link: Link) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(HOST, link.port)


async def test_it_hands_on_all_bytes_in_both_directions(link: Link) -> None:
    reader, writer = await connect(link)
    sent = bytes(range(256)) * 20_000
    writer.write(sent)
    assert await reader.readexactly(len(sent)) == sent
    writer.close()
    await wait_until(lambda: link.connections == 0)


async def test_a_delay_keeps_the_order_also_when_it_ends(link: Link) -> None:
    reader, writer = await connect(link)
    began = asyncio.get_running_loop().time()
    link.delays = True
    writer.write(b"first")
    await wait_until(lambda: any(side._late for side in link._sides))
    link.delays = False
    writer.write(b"second")
    assert await reader.readexactly(11) == b"firstsecond"
    assert asyncio.get_running_loop().time() - began >= DELAY_S
    writer.close()


async def test_what_is_sent_while_it_drops_goes_nowhere(link: Link) -> None:
    reader, writer = await connect(link)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    link.drops = True
    writer.write(b"b")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.1)
    link.reset()
    with pytest.raises(ConnectionError):
        await reader.read(1)


async def test_a_link_that_refuses_does_so_until_it_is_started_again(link: Link) -> None:
    link.refuse()
    with pytest.raises(ConnectionError):
        await connect(link)
    await link.start()
    reader, writer = await connect(link)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    writer.close()


async def test_a_connection_to_nobody_is_reset() -> None:
    link = Link("test", free_ports(1)[0])
    await link.start()
    reader, _ = await connect(link)
    with pytest.raises(ConnectionError):
        await reader.read(1)
    link.refuse()


async def test_it_counts_request_ids_and_marks_however_they_are_cut(link: Link) -> None:
    reader, writer = await connect(link)
    request = b'POST / HTTP/1.1\r\nhost: x\r\nX-Request-ID: turn-1\r\n\r\n{"try":"chaos-try-7"}'
    for cut in (10, 30, len(request) - 3):
        writer.write(request[:cut])
        assert await reader.readexactly(cut) == request[:cut]
        writer.write(request[cut:])
        assert await reader.readexactly(len(request) - cut) == request[cut:]
    assert link.request_ids == {"turn-1": 3}
    assert link.marks == {"chaos-try-7": 3}
    writer.close()
