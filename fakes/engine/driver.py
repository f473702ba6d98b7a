"""Lets an `Engine` live in real time: steps it, sleeps as long as the step takes, tells who got a token.

Must not know HTTP. The engine's time is kept apart from the clock's: sleeping late once does not slow the next steps.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from fakes.engine.batch import Engine, Request

_LATE_S_MAX = 0.5
"""Behind the clock by more than this, the engine gives up catching up: the machine is too slow for it."""


class Ticket:
    """A request in the engine, for who answers it; leaving its `with` block aborts what has not ended."""

    __slots__ = ("_driver", "_news", "_slow_factor", "request", "tokens")

    def __init__(self, driver: Driver, request: Request, slow_factor: float) -> None:
        self.request = request
        self.tokens = 0
        """Tokens of the reply that are out."""
        self._driver = driver
        self._news = asyncio.Event()
        self._slow_factor = slow_factor

    async def more(self) -> int:
        """Waits for a token: the tokens that are out by now. Not to be awaited after the last."""
        await self._news.wait()
        self._news.clear()
        return self.tokens

    def tell(self) -> None:
        """The step is over that produced a token."""
        self.tokens = self.request.generated
        self._news.set()

    @property
    def slow_factor(self) -> float:
        """How many times as long steps take while it runs."""
        return self._slow_factor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.leave(self)


class Driver:
    """The one task that steps one engine. `speed` 2 halves every time of the profile."""

    def __init__(self, engine: Engine, speed: float) -> None:
        self.engine = engine
        self._speed = speed
        self._tickets: dict[Request, Ticket] = {}
        self._work = asyncio.Event()

    def submit(self, request: Request, slow_factor: float = 1.0) -> Ticket:
        """Queues a request. Raises ValueError if it does not fit into the engine."""
        self.engine.submit(request, asyncio.get_running_loop().time())
        ticket = self._tickets[request] = Ticket(self, request, slow_factor)
        self._work.set()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Forgets a request; one that has not ended is aborted and its blocks are free at once."""
        del self._tickets[ticket.request]
        self.engine.abort(ticket.request)

    async def run(self) -> None:
        """Steps the engine until cancelled."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if not self.engine.busy:
                self._work.clear()
                await self._work.wait()
                due = clock()
            step_s, produced = self.engine.step(due)
            due += step_s * self._slow_factor() / self._speed
            await asyncio.sleep(max(0.0, due - clock()))
            due = max(due, clock() - _LATE_S_MAX)
            for request in produced:
                ticket = self._tickets.get(request)
                if ticket is not None:
                    ticket.tell()

    def _slow_factor(self) -> float:
        return max((ticket.slow_factor for ticket in self._tickets.values()), default=1.0)
