"""The interface of what keeps the journals, small enough that another store can take its place. No I/O here.

A store holds the records of each run in order, and a few named values, such as which runtime owns it. Everything that
one `commit` names becomes durable together or not at all; when it returns, it is durable. Read next: `sqlite_store`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """The store cannot do what it was asked for; the text is for people."""


class ConflictError(StoreError):
    """Nothing was committed: a run is longer or shorter than expected, or a value is another."""


class ReadOnlyError(StoreError):
    """Nothing was committed, since a write failed, and nothing will be until the store is revived or opened anew."""


@dataclass(frozen=True, slots=True)
class Append:
    """Records to add to a run."""

    run_id: str
    length: int
    """How many records the run must have now."""
    records: tuple[bytes, ...]


class Store(Protocol):
    """Keeps journals. Its methods may be called from many tasks of one event loop."""

    @property
    def broken(self) -> str | None:
        """Why nothing is committed any longer; None: it is."""

    @property
    def wants_room(self) -> bool:
        """Whether that is only for want of room: then `revive` helps when there is some again."""

    async def revive(self, puts: Mapping[str, bytes], expects: Mapping[str, bytes | None]) -> None:
        """As `commit`, also where it `wants_room`; if there is some, it takes writes again."""

    async def commit(
        self,
        appends: Sequence[Append] = (),
        puts: Mapping[str, bytes] | None = None,
        expects: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """Appends records and sets values in one transaction, if every value of `expects` is as it says (None: absent).

        Commits that were asked for first are committed first. Whoever stops waiting for it does not undo it.
        Raises ConflictError or ReadOnlyError.
        """

    async def read(self, run_id: str, start: int = 0) -> list[bytes]:
        """The records of a run from number `start`; none if there is no such run."""

    async def runs(self) -> dict[str, int]:
        """Every run and how many records it has, sorted by id."""

    async def get(self, key: str) -> bytes | None:
        """A value, or None."""

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Deletes runs with all their records. Raises ReadOnlyError."""

    async def close(self) -> None:
        """Commits what was asked for and closes."""
