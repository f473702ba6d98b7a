"""The turns that wait for admission, and how many of them, with how much to send, are whose."""

from __future__ import annotations

from collections.abc import ValuesView
from typing import NamedTuple

from dataplane.tickets import Ticket


class HeldMax(NamedTuple):
    """How much of one caller may wait."""

    turns: int
    bytes: int
    """Of their bodies, those included that are still being sent: where it is reached, no other one may be kept."""


class HeldTurns:
    """Tickets by turn id, oldest first."""

    __slots__ = ("_by_caller", "_bytes_by_caller", "_tickets")

    def __init__(self) -> None:
        self._tickets: dict[str, Ticket] = {}
        self._by_caller: dict[str, int] = {}
        self._bytes_by_caller: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def of(self, caller: str) -> int:
        """How many are this caller's."""
        return self._by_caller.get(caller, 0)

    def bytes_of(self, caller: str) -> int:
        """How large the bodies of this caller's are."""
        return self._bytes_by_caller.get(caller, 0)

    def tickets(self) -> ValuesView[Ticket]:
        """All of them."""
        return self._tickets.values()

    def add(self, ticket: Ticket) -> None:
        """One more waits."""
        caller = ticket.message.caller
        self._tickets[ticket.turn_id] = ticket
        self._by_caller[caller] = self.of(caller) + 1
        self._bytes_by_caller[caller] = self.bytes_of(caller) + ticket.body_bytes

    def pop(self, turn_id: str) -> Ticket | None:
        """It waits no longer; None where it did not wait."""
        ticket = self._tickets.pop(turn_id, None)
        if ticket is not None:
            caller = ticket.message.caller
            left = self._by_caller[caller] - 1
            if left:
                self._by_caller[caller] = left
                self._bytes_by_caller[caller] -= ticket.body_bytes
            else:
                del self._by_caller[caller], self._bytes_by_caller[caller]
        return ticket
