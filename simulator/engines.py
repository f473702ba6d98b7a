"""Engines in virtual time: the batching of `fakes.engine.batch`, one step after another while there is work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fakes.engine.batch import Engine, Request
from fakes.engine.latency import Profile
from simulator.clock import Clock


@dataclass(slots=True)
class Waiter:
    """Who is told about a request."""

    first_token: Callable[[], None]
    ended: Callable[[Request], None]


class SimulatedEngine:
    """One engine. Requests get their tokens at the end of the step that computes them."""

    def __init__(self, clock: Clock, profile: Profile) -> None:
        self.engine = Engine(profile)
        self._clock = clock
        self._waiters: dict[int, Waiter] = {}
        self._stepping = False
        self._coming = 0
        """Requests that are being read."""

    @property
    def load(self) -> int:
        """Requests it has, queued ones too."""
        return self._coming + len(self.engine.running) + self.engine.waiting

    def submit(self, request: Request, waiter: Waiter) -> None:
        """Queues a request, once the profile's overhead of a turn is over."""
        turn_s = self.engine.profile.turn_s
        if not turn_s:
            self._queue(request, waiter)
            return
        self._coming += 1

        def read() -> None:
            self._coming -= 1
            self._queue(request, waiter)

        self._clock.after(turn_s, read)

    def _queue(self, request: Request, waiter: Waiter) -> None:
        self.engine.submit(request, self._clock.now)
        self._waiters[id(request)] = waiter
        if not self._stepping:
            self._stepping = True
            # At this moment's end, so that what else arrives now is in the same step.
            self._clock.after(0.0, self._step)

    def _step(self) -> None:
        if not self.engine.busy:
            self._stepping = False
            return
        step_s, produced = self.engine.step(self._clock.now)
        self._clock.after(step_s, lambda: self._stepped(produced))

    def _stepped(self, produced: list[Request]) -> None:
        # The next step is planned before anybody is told, as the engine does not wait for its clients.
        waiters = self._waiters
        for request in produced:
            if request.generated == 1:
                waiters[id(request)].first_token()
            if request.finished:
                waiters.pop(id(request)).ended(request)
        self._step()
