"""The host: holds the one state, decides event after event, and performs the effects.

Theory of operation. Everything happens on the event loop's one thread. Who learns something calls `tell` with a batch
of events; they are decided there and then, in order, without an await, so nobody can come between two of them. It is a
queue with one consumer that is always empty: no wake-up a batch, and a reader that floods is slowed down by its own
deciding. Effects are handed to the outlet of the dataplane they are for, which only buffers; it sends after the batch.

It must not do I/O, and outlets must not call `tell` from within their methods.

A fault in `decide` leaves a state that nobody should trust. The state is soft: so the host refuses to go on, the
process ends with an error, and its successor is resynced by the dataplanes within seconds.
Read next: `core` for what is decided, `streams` and `unary` for the outlets, `__main__` for what runs beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Protocol, assert_never

from common.ids import DataplaneId, ReplicaName, TurnId
from common.pool import Replica
from common.tracing import Tracer
from scheduler.beginning import initial
from scheduler.budgets.spend import NOTHING_SPENT, Spends
from scheduler.core import decide
from scheduler.effects import Effect, LogExpiry, PlaceTurn, RecordSpend, RefuseTurn, TellRunEnded
from scheduler.events import Event, ReplicaProbed, RunEnded, Ticked, TurnArrived
from scheduler.state import State
from scheduler.summary import Summary, summarize
from scheduler.tally import Tally
from scheduler.timers import patience_ends_at

TICK_S = 1.0
WAKE_S_MIN = 0.005
"""Two looks at rate limits are at least so far apart."""

log = logging.getLogger("scheduler.host")


class Outlet(Protocol):
    """Where the answers to one dataplane go. All methods only buffer."""

    def place(self, effect: PlaceTurn, url: str) -> None:
        """A turn was placed on the replica at `url`."""

    def refuse(self, effect: RefuseTurn) -> None:
        """A turn was refused."""

    def end_run(self, event: RunEnded | TellRunEnded) -> None:
        """A run was ended, perhaps by another dataplane than those that remember it."""


class SpendStore(Protocol):
    """What keeps the spend of runs; see `spend_ledger`."""

    def load(self) -> Spends:
        """What a scheduler before this one had."""

    def write(self, records: Iterable[RecordSpend]) -> None:
        """Makes `records` durable."""


class Host:
    """See the module. `failed` is set once, when the process has to end."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        first_sequence: int,
        *,
        tracer: Tracer | None = None,
        spends: SpendStore | None = None,
    ) -> None:
        """Needs a running event loop, whose clock is the events' clock. `spends` keeps what runs have spent."""
        self._spends = spends
        self._records: list[RecordSpend] = []
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._wake: asyncio.TimerHandle | None = None
        self._urls = {replica.name: replica.url for replica in replicas}
        self._unprobed: set[ReplicaName] = set(self._urls)
        self._outlets: dict[DataplaneId, Outlet] = {}
        self.state: State = initial(
            tuple(replicas), self._clock(), first_sequence, spends.load() if spends is not None else NOTHING_SPENT
        )
        self.tally = Tally()
        self.failed = asyncio.Event()
        self.tracer = tracer
        """What the outlets make the spans of admissions with; None: nothing is traced."""

    def now(self) -> float:
        """The time that an event told now carries."""
        return self._clock()

    def attach(self, dataplane: DataplaneId, outlet: Outlet) -> None:
        """From now on `outlet` gets the answers to `dataplane`."""
        self._outlets[dataplane] = outlet

    def detach(self, dataplane: DataplaneId) -> None:
        """Nobody gets the answers to `dataplane` any longer; the caller tells the core why."""
        del self._outlets[dataplane]

    def is_attached(self, dataplane: DataplaneId) -> bool:
        """Whether `dataplane` has an outlet, that is, an open stream."""
        return dataplane in self._outlets

    def tell(self, events: Iterable[Event]) -> None:
        """Decides `events` in order and performs what follows. After a failure it does nothing."""
        if self.failed.is_set():
            return
        started = perf_counter()
        counts = self.tally.events
        for event in events:
            counts[type(event).__name__] += 1
            try:
                self.state, effects = decide(self.state, event)
                for effect in effects:
                    self._perform(effect)
            except Exception:
                log.exception("event=decide_failed kind=%s", type(event).__name__)
                self.failed.set()
                return
            if isinstance(event, RunEnded):
                for outlet in self._outlets.values():
                    outlet.end_run(event)
            if isinstance(event, TurnArrived):
                self._wake_for(event.request.turn_id)
        if self._records:
            self._write_spends()
        if self.state.dry:
            self._wake_in_time()
        self.tally.batches.add(perf_counter() - started)

    def tell_probe(self, probe: ReplicaProbed) -> None:
        """Tells what a probe told."""
        self._unprobed.discard(probe.replica)
        self.tell((probe,))

    def summary(self) -> Summary:
        """The status now."""
        return summarize(self.state, self._clock())

    def unready_reason(self) -> str | None:
        """Why nothing can be placed yet, or None."""
        if self._unprobed:
            return f"waiting for the first probe of {len(self._unprobed)} of {len(self._urls)} replicas"
        return None if self.state.is_open else "waiting for dataplanes to resync"

    async def keep_time(self) -> None:
        """Tells the time each second, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tell((Ticked(self._clock()),))

    def _write_spends(self) -> None:
        """Makes what was spent durable before it is acknowledged. What cannot be written makes the process end: its
        successor is told again. Limits alone are not worth that: they hold until the process ends."""
        records, self._records = self._records, []
        if self._spends is None:
            return
        try:
            self._spends.write(records)
        except Exception:
            log.exception("event=spend_not_written runs=%d", len(records))
            if any(record.turn_id is not None for record in records):
                self.failed.set()

    def _wake_in_time(self) -> None:
        """Tells the time when a replica's rate limits fit a held turn: a tick would come up to a second later."""
        due = max(min(self.state.dry.values()), self._clock() + WAKE_S_MIN)
        if self._wake is not None:
            if self._wake.when() <= due:
                return
            self._wake.cancel()
        self._wake = self._loop.call_at(due, self._woken)

    def _wake_for(self, turn_id: TurnId) -> None:
        """Tells the time when a turn, if it is still held then, gives up: as for rate limits."""
        turn = self.state.turns.get(turn_id)
        if turn is None or turn.replica is not None or turn.gives_up_at is None:
            return
        due = patience_ends_at(turn.gives_up_at)
        if due > self._clock():
            self._loop.call_at(due + WAKE_S_MIN, self._wake_for, turn_id)
        else:
            self.tell((Ticked(self._clock()),))

    def _woken(self) -> None:
        self._wake = None
        self.tell((Ticked(self._clock()),))

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, PlaceTurn):
            self.tally.placements[effect.replica] += 1
            turn = self.state.turns.get(effect.turn_id)
            if turn is not None:
                self.tally.held[turn.request.run_class].add(effect.held_s)
            outlet = self._outlets.get(effect.dataplane)
            if outlet is None:
                log.warning("event=placed_for_nobody turn=%s dataplane=%s", effect.turn_id, effect.dataplane)
            else:
                outlet.place(effect, self._urls[effect.replica])
        elif isinstance(effect, RefuseTurn):
            self.tally.refusals[effect.reason] += 1
            outlet = self._outlets.get(effect.dataplane)
            if outlet is not None:
                outlet.refuse(effect)
        elif isinstance(effect, RecordSpend):
            self._records.append(effect)
        elif isinstance(effect, LogExpiry):
            self.tally.expiries += 1
            log.warning("event=turn_expired turn=%s replica=%s", effect.turn_id, effect.replica)
        elif isinstance(effect, TellRunEnded):
            outlet = self._outlets.get(effect.dataplane)
            if outlet is not None:
                outlet.end_run(effect)
        else:
            assert_never(effect)
