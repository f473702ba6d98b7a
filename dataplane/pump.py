"""Reads the connections of all engines, many in one turn of the event loop, and relays ordinary chunks.

A stream's ordinary chunk costs a read, a look and a write. Where each costs a turn of the event loop besides, that turn
is the larger part. So the sockets are in an epoll of their own, one pass reads all that are ready, and what is to be
relayed is written behind the last read. Above `GATHER_ABOVE` reads a second it lets `GATHER_S` pass between passes.
Must not know HTTP or JSON: whatever is not an ordinary chunk goes to the connection's protocol, as if its transport had
read it. Read next: `upstream`; docs/decisions tells why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

GATHER_S = 0.002
"""How long chunks gather under load: most that one waits."""
GATHER_ABOVE = 2_000
"""Reads a second from which on chunks gather. Below half of it they no longer do."""
_WINDOW_S = 0.05
"""Over which reads are counted."""
_READ_BYTES = 16 * 1024
_READ_MORE_BYTES = 256 * 1024
"""Read in one go where more is there than `_READ_BYTES`: an engine that waits for its window sends the rest only when
much of it is free."""
_SHORT_BYTES = 4096
_QUOTE = ord(b'"')


def _chunk_head(size: int) -> bytes:
    """How a read of `size` bytes begins if it is one chunk: with the length of what is left."""
    for digits in (1, 2, 3):
        payload = size - digits - 4
        if payload > 0 and len(b"%x" % payload) == digits:
            return b"%x\r\n" % payload
    return b"no chunk has this size"


_CHUNK_HEADS = tuple(map(_chunk_head, range(_SHORT_BYTES)))


class Lane:
    """The short way of one stream: what its ordinary chunk looks like around its content, and where it goes."""

    __slots__ = ("_after", "_before", "_framed_bytes", "relayed_bytes", "write")

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._before = self._after = b""
        self._framed_bytes = 0
        self.write = write
        self.relayed_bytes = 0
        """Of the reply so far, also by others than the lane."""

    def learn(self, before: bytes, after: bytes) -> None:
        """The event around its content, without the chunk's framing."""
        self._before = before
        self._after = after + b"\r\n"
        self._framed_bytes = len(before) + len(after) + 2

    def takes(self, data: bytes) -> bool:
        """Whether `data` is one whole ordinary chunk in its framing, which is then counted. It is one where nothing
        is left of it but a string's inside when both its ends are removed: the cheapest way to look, measured."""
        size = len(data)
        if size >= _SHORT_BYTES:
            return False
        head = _CHUNK_HEADS[size]
        content = data.removeprefix(head).removeprefix(self._before).removesuffix(self._after)
        if len(content) != size - len(head) - self._framed_bytes or _QUOTE in content:
            return False
        self.relayed_bytes += size
        return True


class Reader(Protocol):
    """A connection, as the pump sees it."""

    lane: Lane | None

    def data_received(self, data: bytes) -> None:
        """Something that is not an ordinary chunk."""

    def reading_ended(self, error: Exception | None) -> None:
        """There will be no more: the end, or an error. Called after the connection was removed."""


class Pump:
    """See the module. It holds no connection open and closes none."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers: dict[int, Reader] = {}
        self._reads = 0
        self._window_ends_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """While chunks gather; else the event loop waits for the epoll."""

    def add(self, fd: int, reader: Reader) -> None:
        """Reads `fd`, a socket that does not block, for `reader`, until it is removed. Nobody else may read it."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._epoll.fileno(), self._wake)
        self._readers[fd] = reader
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Reads `fd` no more. To be called before it is closed; nothing if it is not read."""
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Reads nothing more."""
        if self._loop is not None:
            if self._timer is not None:
                self._timer.cancel()
            else:
                self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _wake(self) -> None:
        """Something is ready."""
        loop = self._loop
        assert loop is not None
        self._read_all()
        if loop.time() >= self._window_ends_at and self._end_window(loop) > GATHER_ABOVE:
            loop.remove_reader(self._epoll.fileno())
            self._timer = loop.call_later(GATHER_S, self._tick)

    def _tick(self) -> None:
        """Chunks have gathered."""
        loop = self._loop
        assert loop is not None
        self._read_all()
        if loop.time() >= self._window_ends_at and self._end_window(loop) < GATHER_ABOVE / 2:
            self._timer = None
            loop.add_reader(self._epoll.fileno(), self._wake)
        else:
            self._timer = loop.call_later(GATHER_S, self._tick)

    def _end_window(self, loop: asyncio.AbstractEventLoop) -> float:
        """Reads a second in the window that ends; begins another."""
        now = loop.time()
        rate = self._reads / (now - self._window_ends_at + _WINDOW_S)
        self._reads = 0
        self._window_ends_at = now + _WINDOW_S
        return rate

    def _read_all(self) -> None:
        """One pass: reads once what is ready, then writes what may be relayed as it is."""
        readers, read = self._readers, os.read
        ready = self._epoll.poll(0)
        self._reads += len(ready)
        relayed: list[tuple[Callable[[bytes], None], bytes]] = []
        for fd, _ in ready:
            reader = readers.get(fd)
            if reader is None:
                continue  # removed for what another connection brought
            try:
                data = read(fd, _READ_BYTES)
                lane = reader.lane
                if lane is not None and lane.takes(data):
                    relayed.append((lane.write, data))
                elif data:
                    reader.data_received(data if len(data) < _READ_BYTES else data + _read_more(fd))
                else:
                    self.remove(fd)
                    reader.reading_ended(None)
            except BlockingIOError:
                continue
            except Exception as error:
                if not isinstance(error, OSError):
                    log.exception("reading failed")
                self.remove(fd)
                reader.reading_ended(error)
        for write, data in relayed:
            write(data)


def _read_more(fd: int) -> bytes:
    """What is there besides. An error, which is told once, the next pass sees as the end."""
    with contextlib.suppress(OSError):
        return os.read(fd, _READ_MORE_BYTES)
    return b""


def make_pump() -> Pump | None:
    """A pump, where the system has epoll."""
    return Pump() if hasattr(select, "epoll") else None
