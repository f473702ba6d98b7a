"""Streams whose chunks are timed, some of which are never read: `bench streams`' part of `relay_client`.

The engine stamps each chunk with the time at which it sends it; here it is compared with the time at which it comes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from typing import Any, cast

import httptools

from loadgen import relay_wire

CONNECTING_AT_ONCE = 50
WARM_S = 2.0
"""After the first chunk of the last stream, before chunks are timed."""
STUCK_PAD_BYTES = 16 * 1024
"""What nobody reads must be more than the kernels keep on the way, else nobody notices."""
_CHUNKS = 1_000_000
"""More than any stream lasts."""
_HOST = "127.0.0.1"


class Delays:
    """Of the chunks that came while they are timed."""

    def __init__(self) -> None:
        self.is_timing = False
        self.seen_ms: list[float] = []

    def figures(self) -> dict[str, float]:
        """How many there were, and their delays in milliseconds."""
        if len(self.seen_ms) < 2:
            return {"chunks": len(self.seen_ms)}
        hundredths = statistics.quantiles(self.seen_ms, n=100)
        figures = {"p50_ms": hundredths[49], "p99_ms": hundredths[98], "max_ms": max(self.seen_ms)}
        return {"chunks": len(self.seen_ms), **{name: round(value, 3) for name, value in figures.items()}}


class _Stream(asyncio.Protocol):
    """What both kinds have in common."""

    transport: asyncio.Transport

    def __init__(self, request: bytes) -> None:
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self.transport = cast(asyncio.Transport, transport)

    def ask(self) -> None:
        """Sends the request."""
        self.transport.write(self._request)


class Stuck(_Stream):
    """A stream that is asked for and never read."""

    def __init__(self, number: int, pace_ms: int) -> None:
        super().__init__(relay_wire.request(number, _CHUNKS, pace_ms, STUCK_PAD_BYTES))

    def ask(self) -> None:
        """Sends the request, and reads nothing."""
        self.transport.pause_reading()
        super().ask()


class Watched(_Stream):
    """A stream that is read, chunk by chunk."""

    def __init__(self, number: int, pace_ms: int, delays: Delays) -> None:
        super().__init__(relay_wire.request(number, _CHUNKS, pace_ms, 0))
        self._parser = httptools.HttpResponseParser(self)
        self._delays = delays
        self._rest = b""
        self._position = 0
        self.problem = ""
        """What was wrong first."""
        self.begun = asyncio.Event()
        """Whether its first chunk is there, or never will be."""

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._wrong(f"no HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's."""
        self._wrong(f"the connection was lost: {exc}")

    def on_body(self, body: bytes) -> None:
        """The parser's."""
        *events, self._rest = (self._rest + body).split(b"\n\n")
        now_us = time.monotonic_ns() // 1000
        for event in events:
            found = relay_wire.stamp(event)
            if found is None or found[0] != self._position:
                self._wrong(f"status {self._parser.get_status_code()}, not chunk {self._position}: {event[:200]!r}")
                return
            self._position += 1
            if self._delays.is_timing:
                self._delays.seen_ms.append((now_us - found[1]) / 1000)
        self.begun.set()

    def _wrong(self, problem: str) -> None:
        self.problem = self.problem or problem
        self.begun.set()


class Watching:
    """The streams that are open."""

    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self._stuck: list[Stuck] = []

    async def watch(
        self,
        numbers: Iterator[int],
        *,
        port: int,
        streams: int,
        stuck: int,
        pace_ms: int,
        seconds: float,
        within_s: float,
    ) -> dict[str, Any]:
        """Opens `streams`, `stuck` of them never read, and times chunks of the others for `seconds`, once all have
        begun, which they must `within_s`. The figures of `Delays`, and what went wrong. The streams stay open."""
        loop = asyncio.get_running_loop()
        delays = Delays()
        self._stuck = [Stuck(next(numbers), pace_ms) for _ in range(stuck)]
        self._watched = [Watched(next(numbers), pace_ms, delays) for _ in range(streams - stuck)]
        everyone: list[Watched | Stuck] = [*self._watched, *self._stuck]
        places = asyncio.Semaphore(CONNECTING_AT_ONCE)

        async def connect(each: Watched | Stuck) -> None:
            async with places:
                await loop.create_connection(lambda: each, _HOST, port)

        try:
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(connect(each) for each in everyone))
                for place, each in enumerate(everyone):
                    # Chunks come evenly spread over their pace, as those of independent streams do.
                    loop.call_later(pace_ms / 1000 * place / streams, each.ask)
                for watched in self._watched:
                    await watched.begun.wait()
        except (OSError, TimeoutError) as error:
            return {"errors": 1, "first_error": f"the streams did not begin: {error!r}", **delays.figures()}
        await asyncio.sleep(WARM_S)
        delays.is_timing = True
        await asyncio.sleep(seconds)
        delays.is_timing = False
        return {**delays.figures(), **self._problems()}

    def leave(self) -> dict[str, Any]:
        """Leaves all streams at once; what had gone wrong with those that were read."""
        problems = self._problems()
        for each in (*self._watched, *self._stuck):
            each.transport.abort()
        self._watched, self._stuck = [], []
        return problems

    def _problems(self) -> dict[str, Any]:
        problems = [each.problem for each in self._watched if each.problem]
        return {"errors": len(problems), "first_error": problems[0] if problems else ""}
