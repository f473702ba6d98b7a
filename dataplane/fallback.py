"""A turn that goes to another replica when one fails it before the first byte, where the pool file says so.

What counts is an answer 429 or 5xx, or no connection; a 4xx is the client's own, and after the first byte nothing is
sent again. The failed turn is reported, and one of a new id is admitted for the replicas that are left, in the pool
file's order. Where none takes it at once, or too many turns are retried already, the client gets the first failure as
it was.
"""

from __future__ import annotations

import asyncio
import random

from dataplane import errors
from dataplane.exchange import Reply
from dataplane.identity import Identity
from dataplane.kept_alive import KeptAliveTurn
from dataplane.limits import TOO_MANY_REQUESTS, reported_status
from dataplane.meter import TOO_LARGE
from dataplane.proxy import Proxy, Turn
from dataplane.pump import Lane
from dataplane.request import Request
from dataplane.tickets import Ticket
from dataplane.work import TurnClient
from protos import turn_pb2

SERVER_ERROR = 500
SPARE_BYTES_MAX = 64 * 1024
"""A longer answer of a failure is cut off; they are a few hundred bytes."""
JITTER_S = 0.1
"""Turns that failed together are not all sent again together."""
RETRIES_AHEAD = 20.0
"""So many retries may come before turns have earned them."""
RETRIES_A_TURN = 0.2
"""What a turn earns: no more than a fifth of the turns is retried, so that retries do not make an outage worse."""


class RetryBudget:
    """How many retries are left, for all turns of a process."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = RETRIES_AHEAD

    def earn(self) -> None:
        """A turn began."""
        self._left = min(RETRIES_AHEAD, self._left + RETRIES_A_TURN)

    def take(self) -> bool:
        """Whether one more retry is allowed, which is then taken."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


def new_turn(proxy: Proxy, client: TurnClient, retries: RetryBudget, keep_alive_s: float) -> Turn:
    """A turn, with fallback where any replica has one; see `KeptAliveTurn` for `keep_alive_s`."""
    if proxy.pool.has_fallbacks:
        return FallbackTurn(proxy, client, retries, keep_alive_s)
    return KeptAliveTurn(proxy, client, keep_alive_s) if keep_alive_s else Turn(proxy, client)


class FallbackTurn(KeptAliveTurn):
    """See the module."""

    __slots__ = ("_error", "_later", "_left", "_original", "_retries", "_spare", "_spare_body")

    def __init__(self, proxy: Proxy, client: TurnClient, retries: RetryBudget, keep_alive_s: float) -> None:
        super().__init__(proxy, client, keep_alive_s)
        self._retries = retries
        self._spare: Reply | None = None
        """The answer of the replica that failed, while another one is tried."""
        self._spare_body = b""
        self._error: errors.ApiError | None = None
        """In its place: why there was none."""
        self._left: tuple[str, ...] | None = None
        """Replicas that may still be tried; None: none has failed yet."""
        self._later: asyncio.TimerHandle | None = None
        retries.earn()

    def begin(self, request: Request, identity: Identity) -> errors.ApiError | None:
        """As `Turn.begin`; the body is kept until an answer is relayed."""
        error = super().begin(request, identity)
        self._original = b"" if error is not None else self._body
        return error

    def client_left(self) -> None:
        """As `Turn.client_left`."""
        if self._later is not None:
            self._later.cancel()
        super().client_left()

    def placed(self, placement: turn_pb2.Placement) -> None:
        """Sends the request as it came, with what this replica needs."""
        self._body = self._original
        if self._left is not None:
            asked = tuple(self._ticket.message.fallbacks)
            self._left = asked[asked.index(placement.replica) + 1 :] if placement.replica in asked else ()
        super().placed(placement)

    def refused(self, refusal: turn_pb2.Refusal) -> None:
        """Tells the client; where no other replica takes the turn, that is what the first one said."""
        if self._left is None or refusal.reason != turn_pb2.REFUSAL_REASON_NO_FALLBACK:
            super().refused(refusal)
        elif self._spare is not None:
            self._over("failed")
            self._ticket.run_id = self._ticket.message.run_id
            self._spare.length = b"%d" % len(self._spare_body)
            super().answered(self._spare)
            self._ended = True
            self.received(self._spare_body, True)
        else:
            assert self._error is not None
            self._over("failed")
            self._answer_error(self._error, self._ticket.message.run_id)

    def answered(self, reply: Reply) -> None:
        """Keeps the answer of a failure back until it is clear whether another replica takes the turn."""
        failed = reply.status == TOO_MANY_REQUESTS or reply.status >= SERVER_ERROR
        if failed and self._next_ones() and self._retries.take():
            self._proxy.read_limits(self._ticket, reply)
            self._spare, self._spare_body = reply, b""
        else:
            self._original = b""
            self._spare = None
            super().answered(reply)

    def received(self, data: bytes, complete: bool) -> None:
        """Relays, or collects an answer that is kept back."""
        if self._reply is not None:
            super().received(data, complete)
            return
        assert self._spare is not None
        self._spare_body = (self._spare_body + data)[:SPARE_BYTES_MAX]
        if complete:
            self._engine = None
            self._fall_back_from(self._spare.status)

    def lane(self) -> Lane | None:
        """As `Turn.lane`; an answer that is kept back has none."""
        return super().lane() if self._reply is not None else None

    def lost(self, problem: str, untouched: bool) -> None:
        """As `Turn.lost`; an answer that was kept back is over with it."""
        if self._spare is not None and self._reply is None:
            self._engine = None
            self._fall_back_from(self._spare.status)
        else:
            super().lost(problem, untouched)

    def _unreachable(self, error: errors.ApiError) -> None:
        if self._next_ones() and self._retries.take():
            self._spare, self._error = None, error
            self._fall_back(error.message, 0)
        else:
            super()._unreachable(error)

    def _next_ones(self) -> tuple[str, ...]:
        """The replicas that may be tried after this one."""
        if self._left is None:
            return self._proxy.pool.fallbacks(self._ticket.replica)
        return self._left

    def _fall_back_from(self, status: int) -> None:
        too_large = self._spare_body.find(TOO_LARGE) >= 0
        self._fall_back(f"engine answered {status}", reported_status(status, too_large))

    def _fall_back(self, problem: str, status: int) -> None:
        """Reports the failure, and asks for a place among the replicas that are left."""
        failed, left = self._ticket, self._next_ones()
        self._proxy.scheduler.failed(failed, problem, status)
        self._proxy.metrics.fallbacks += 1
        message = turn_pb2.Turn()
        message.CopyFrom(failed.message)
        message.turn_id = self._proxy.new_turn_id()
        message.run_id = failed.run_id
        del message.fallbacks[:]
        message.fallbacks.extend(left)
        self._left = left
        self._ticket = Ticket(message, self, len(self._original))
        self._ticket.arrived_at = failed.arrived_at
        self._later = asyncio.get_running_loop().call_later(JITTER_S * random.random(), self._admit_again)

    def _admit_again(self) -> None:
        self._later = None
        self._proxy.scheduler.admit(self._ticket)
