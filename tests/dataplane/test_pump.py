"""The pump alone: who hears what, when reads gather, and which chunks are ordinary."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator

import pytest

from dataplane.pump import Lane, Pump
from tests.dataplane.scripted_engine import chunk
from tests.waiting import wait_until

needs_epoll = pytest.mark.skipif(not hasattr(select, "epoll"), reason="no epoll here")


@pytest.fixture
async def pair() -> AsyncIterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


class Notes:
    """A reader that notes what it is told."""

    lane: Lane | None = None

    def __init__(self) -> None:
        self.heard: list[bytes | Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)
        if data == b"fault":
            raise ValueError("a fault of the reader's own")

    def reading_ended(self, error: Exception | None) -> None:
        self.heard.append(error)


@needs_epoll
async def test_a_reader_hears_of_its_own_fault_alone(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    notes, reading = Notes(), Pump()
    reading.add(ours.fileno(), notes)
    theirs.send(b"a")
    await wait_until(lambda: notes.heard == [b"a"])
    theirs.send(b"fault")
    await wait_until(lambda: len(notes.heard) == 3)
    assert isinstance(notes.heard[2], ValueError)
    theirs.send(b"more")
    reading.add(ours.fileno(), notes)
    await wait_until(lambda: notes.heard[3:] == [b"more"])
    theirs.close()
    await wait_until(lambda: notes.heard[4:] == [None])
    reading.close()


@needs_epoll
async def test_reads_gather_under_load_and_no_longer_without(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    notes, reading = Notes(), Pump()
    reading.add(ours.fileno(), notes)
    sent = 0

    def longest(since: int) -> int:
        return max((len(data) for data in notes.heard[since:] if isinstance(data, bytes)), default=0)

    while longest(0) < 10:  # one a turn of the loop: thousands a second
        sent += theirs.send(b"x")
        await asyncio.sleep(0)
    await wait_until(lambda: sum(len(data) for data in notes.heard if isinstance(data, bytes)) == sent)

    async def is_alone() -> bool:
        """Whether of two bytes sent in two turns of the loop each is read by itself."""
        before = len(notes.heard)
        for _ in range(2):
            theirs.send(b"y")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await wait_until(lambda: len(notes.heard) > before)
        return notes.heard[before] == b"y"

    await wait_until(is_alone)
    reading.close()


def test_a_lane_takes_whole_ordinary_chunks_and_nothing_else() -> None:
    written: list[bytes] = []
    lane = Lane(written.append)
    lane.learn(b'data: {"content": "', b'"}\n\n')

    def framed(content: str) -> bytes:
        return chunk(b'data: {"content": "%b"}\n\n' % content.encode())

    for content in ("", "a", "long text " * 300, "ö", r"a\n"):
        assert lane.takes(framed(content)), content
    ordinary = framed("abc")
    for data in (
        framed('a "quoted'),
        framed(r"an \"escaped one"),
        framed("long text " * 600),
        ordinary + ordinary,
        ordinary[:-1],
        ordinary[1:],
        ordinary[:-2] + b"\n\r",
        b"0" + ordinary,
        ordinary.replace(b"1a", b"19"),
        ordinary.replace(b"content", b"context"),
        b"",
    ):
        assert not lane.takes(data), data
