"""One turn as it stands between its client and the scheduler. `scheduler_client` keeps tickets, `proxy` owns them."""

from __future__ import annotations

import time
from typing import Protocol

from protos import turn_pb2


class TicketOwner(Protocol):
    """Who asked for an admission."""

    def placed(self, placement: turn_pb2.Placement) -> None:
        """The turn goes to the named replica. Called once."""

    def refused(self, refusal: turn_pb2.Refusal) -> None:
        """The turn goes nowhere. Called once, instead of `placed`."""


class Ticket:
    """One turn, from its admission to its end."""

    __slots__ = (
        "arrived_at",
        "body_bytes",
        "first_token",
        "limit_headers",
        "message",
        "owner",
        "placed_at",
        "replica",
        "run_id",
        "sequence",
        "traceparent",
        "turn_id",
    )

    def __init__(self, message: turn_pb2.Turn, owner: TicketOwner, body_bytes: int) -> None:
        self.message = message
        self.turn_id = message.turn_id
        """As in the message, from which each reading makes a new string."""
        self.traceparent = message.traceparent
        self.owner: TicketOwner | None = owner
        """Until it is told, or wants to hear nothing: what it keeps, a body too, must not live as long as this."""
        self.body_bytes = body_bytes
        """Size of the request's body."""
        self.arrived_at = time.monotonic()
        self.placed_at = 0.0
        self.run_id = ""
        self.replica = ""
        self.sequence = 0
        self.first_token = False
        self.limit_headers: list[turn_pb2.LimitHeader] = []
        """What the head of the answer told of rate limits, until it is reported."""

    def take_owner(self) -> TicketOwner:
        """`owner`, who is then told, once."""
        owner, self.owner = self.owner, None
        assert owner is not None, "it is told once"
        return owner

    def take_limits(self) -> list[turn_pb2.LimitHeader]:
        """`limit_headers`, which are then reported."""
        taken, self.limit_headers = self.limit_headers, []
        return taken

    def known(self, now: float) -> turn_pb2.KnownTurn:
        """The turn in flight as the scheduler is told of it, at monotonic time `now`."""
        turn = turn_pb2.Turn()
        turn.CopyFrom(self.message)
        turn.run_id = self.run_id
        return turn_pb2.KnownTurn(
            turn=turn,
            replica=self.replica,
            sequence=self.sequence,
            age_ms=round((now - self.placed_at) * 1000),
            first_token=self.first_token,
        )
