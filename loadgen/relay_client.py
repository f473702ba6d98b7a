"""`python -m loadgen.relay_client`: the client of `bench relay`, as cheap as Python makes it. It compares every answer.

Its orders, each with `do`: `turns` (so many turns on so many connections), `open` (streams that stay open), `close`
(leaves them), `watch` and `leave` (see `relay_watch`). Must not measure the proxy: `relay_rig` does. Read next:
`relay_wire`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any, cast

import httptools
import uvloop

from loadgen import relay_wire
from loadgen.relay_orders import obey
from loadgen.relay_watch import Watching

_OPENING_AT_ONCE = 50
"""A thousand in one instant would measure the backlogs of listening sockets."""
_HELD_PACE_MS = 600_000
"""Longer than any stream is held open."""
_HOST = "127.0.0.1"


class Faults:
    """What went wrong: how often, and what it was the first time."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def add(self, what: str) -> None:
        """One more."""
        self.count += 1
        self.first = self.first or what

    def told(self) -> dict[str, Any]:
        """As a part of an answer."""
        return {"errors": self.count, "first_error": self.first}


class _Connection(asyncio.Protocol):
    """What both kinds of connection have in common."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """asyncio's."""
        if not self.lost.done():
            self.lost.set_result(None)

    def _problem(self, expected: bytes) -> str:
        """What is wrong with the answer; empty: nothing."""
        status = self._parser.get_status_code()
        if status == 200 and self._body == expected:
            return ""
        return f"status {status}, {len(self._body)} bytes instead of {len(expected)}: {self._body[:200]!r}"


class Asking(_Connection):
    """Asks one turn after another, until there is none left to ask."""

    def __init__(self, numbers: Callable[[], int | None], chunks: int, pace_ms: int, faults: Faults) -> None:
        """`numbers` gives the number of the next turn, None when all were asked."""
        super().__init__()
        self._numbers = numbers
        self._chunks = chunks
        self._pace_ms = pace_ms
        self._faults = faults
        self._number: int | None = None
        self.answers = 0

    def ask(self) -> None:
        """Sends the next turn."""
        self._number = self._numbers()
        self._body = b""
        if self._number is None or self.transport.is_closing():
            self.transport.close()
            return
        self.transport.write(relay_wire.request(self._number, self._chunks, self._pace_ms))

    def on_body(self, body: bytes) -> None:
        """The parser's."""
        self._body += body

    def on_message_complete(self) -> None:
        """The parser's: a whole answer is here."""
        number = self._number or 0
        problem = self._problem(relay_wire.stream(number, self._chunks) if self._chunks else relay_wire.whole(number))
        if problem:
            self._faults.add(problem)
        else:
            self.answers += 1
        self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's."""
        if self._number is not None:
            self._faults.add(f"connection lost in the middle of a turn: {exc}")
        super().connection_lost(exc)


class Held(_Connection):
    """One stream that stays open."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        super().connection_made(transport)
        self.transport.write(relay_wire.request(self._number, 2, _HELD_PACE_MS))

    def on_body(self, body: bytes) -> None:
        """The parser's."""
        self._body += body
        expected = relay_wire.event(self._number, 0)
        if len(self._body) >= len(expected) and not self.begun.done():
            problem = self._problem(expected)
            if problem:
                self.begun.set_exception(ValueError(problem))
            else:
                self.begun.set_result(None)


class Client:
    """Obeys the orders."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._held: list[Held] = []
        self._watching = Watching()

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """One order."""
        match order.pop("do"):
            case "turns":
                return await self._turns(**order)
            case "open":
                return await self._open(**order)
            case "close":
                return self._close()
            case "watch":
                return await self._watching.watch(self._numbers, **order)
            case "leave":
                return self._watching.leave()
            case other:
                raise ValueError(f"no order {other}")

    async def _turns(
        self, *, port: int, count: int, at_once: int, chunks: int, pace_ms: int, within_s: float
    ) -> dict[str, Any]:
        """`count` turns, `at_once` at a time; see `relay_wire.request`."""
        loop = asyncio.get_running_loop()
        numbers = itertools.islice(self._numbers, count)
        faults = Faults()

        def connection() -> Asking:
            return Asking(lambda: next(numbers, None), chunks, pace_ms, faults)

        try:
            made = await asyncio.gather(*(loop.create_connection(connection, _HOST, port) for _ in range(at_once)))
        except OSError as error:
            faults.add(str(error))
            return {"answers": 0, **faults.told()}
        asking = [each for _, each in made]
        for place, each in enumerate(asking):
            # Chunks come evenly spread over their pace, as those of independent streams do.
            loop.call_later(pace_ms / 1000 * place / at_once, each.ask)
        _, late = await asyncio.wait([each.lost for each in asking], timeout=within_s)
        for each in asking:
            each.transport.abort()
        await asyncio.wait([each.lost for each in asking])
        if late:
            faults.add(f"not done within {within_s:g} s")
        return {"answers": sum(each.answers for each in asking), **faults.told()}

    async def _open(self, port: int, streams: int, within_s: float) -> dict[str, Any]:
        """Opens `streams` streams and waits for the first chunk of each."""
        loop = asyncio.get_running_loop()
        places = asyncio.Semaphore(_OPENING_AT_ONCE)
        faults = Faults()

        async def open_one(number: int) -> None:
            async with places:
                try:
                    _, held = await loop.create_connection(lambda: Held(number), _HOST, port)
                    self._held.append(held)
                    await asyncio.wait([held.begun, held.lost], return_when=asyncio.FIRST_COMPLETED)
                    if held.lost.done():
                        raise ConnectionError("connection lost before the first chunk")
                    held.begun.result()
                except (OSError, ValueError) as error:
                    faults.add(str(error))

        try:
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(open_one(number) for number in itertools.islice(self._numbers, streams)))
        except TimeoutError:
            faults.add(f"{streams} streams were not open within {within_s:g} s")
        return {"opened": len(self._held), **faults.told()}

    def _close(self) -> dict[str, Any]:
        """Leaves all open streams at once; when it began to, on the clock that all processes share."""
        faults = Faults()
        for held in self._held:
            if held.lost.done():
                faults.add("a stream did not stay open")
        at = time.monotonic()
        for held in self._held:
            held.transport.close()
        self._held.clear()
        return {"at": at, **faults.told()}


if __name__ == "__main__":
    uvloop.run(obey(Client().obey))
