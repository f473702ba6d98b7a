"""What the process of a tool server says on its standard error: passed on to ours, and the last line of it kept, which
tells best why a server ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

_TAIL_BYTES = 4096
_LINE_CHARACTERS_MAX = 300
_END_S = 0.2
"""How long the end of what it said is waited for: a child of its own may hold the pipe open for ever."""


class Stderr(asyncio.Protocol):
    """One process's standard error, `file`."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is the end of a pipe that the process writes to."""
        self.file = os.fdopen(descriptor, "w")
        self.ended = asyncio.Event()
        self._tail = b""

    @property
    def last_line(self) -> str:
        """The last line that is not blank; empty where there is none."""
        lines = [line.strip() for line in self._tail.decode("utf-8", "replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")[:_LINE_CHARACTERS_MAX]

    def data_received(self, data: bytes) -> None:
        """The process wrote."""
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(data.decode("utf-8", "replace"))
            sys.stderr.flush()

    def connection_lost(self, _error: Exception | None) -> None:
        """Nobody holds the pipe any more."""
        self.ended.set()


@contextlib.asynccontextmanager
async def reading_stderr() -> AsyncIterator[Stderr]:
    """A standard error to start a process with; read until the block is left, and then to its end."""
    reading, writing = os.pipe()
    told = Stderr(writing)
    transport = None
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: told, os.fdopen(reading, "rb"))
        yield told
    finally:
        told.file.close()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.ended.wait(), _END_S)
        finally:
            if transport is not None:
                transport.close()
