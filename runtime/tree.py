"""Which runs there are, and which was spawned by which. No I/O; the runs themselves change in their journals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from runtime.journal import Journal, Observe
from runtime.refusals import UnknownRunError
from runtime.run import Usage


class Tree:
    """All runs by their handles, in the order of their starts."""

    def __init__(self, observe: Observe | None = None) -> None:
        """`observe` is told what becomes durable of the runs."""
        self._observe = observe
        self._runs: dict[str, Journal] = {}
        self._children: dict[str, list[str]] = {}

    def __iter__(self) -> Iterator[Journal]:
        return iter(tuple(self._runs.values()))

    def add(self, journal: Journal) -> None:
        """Takes in a run; its parent has been taken in before."""
        run = journal.run
        if self._observe is not None:
            journal.observe = self._observe
        self._runs[run.run_id] = journal
        if run.parent is not None:
            self._children.setdefault(run.parent, []).append(run.run_id)

    def roots(self) -> list[Journal]:
        """The runs at the top of their trees."""
        return [journal for journal in self if self.parent(journal) is None]

    def forget(self, root: Journal) -> list[str]:
        """Takes a whole tree out; the handles of its runs."""
        handles = [journal.run.run_id for journal in self.down(root)]
        for handle in handles:
            self._runs.pop(handle)
            self._children.pop(handle, None)
        return handles

    def get(self, argument: str, handle: str) -> Journal:
        """The run with this handle, which came in `argument`. Raises UnknownRunError."""
        found = self._runs.get(handle)
        if found is None:
            raise UnknownRunError(argument, handle)
        return found

    def after(self, handle: str) -> Iterator[Journal]:
        """The runs that were started after this one; all if it is empty."""
        runs = iter(self)
        if handle:
            runs = itertools.islice(itertools.dropwhile(lambda each: each.run.run_id != handle, runs), 1, None)
        return runs

    def parent(self, journal: Journal) -> Journal | None:
        """The run that spawned it, if it is known."""
        return self._runs.get(journal.run.parent) if journal.run.parent is not None else None

    def children(self, journal: Journal) -> list[Journal]:
        """The runs that it spawned."""
        return [self._runs[child] for child in self._children.get(journal.run.run_id, ())]

    def up(self, journal: Journal) -> Iterator[Journal]:
        """The run and all above it."""
        above: Journal | None = journal
        while above is not None:
            yield above
            above = self.parent(above)

    def down(self, journal: Journal) -> Iterator[Journal]:
        """The run and all below it, parents before their children."""
        left = [journal]
        while left:
            each = left.pop()
            yield each
            left.extend(self.children(each))

    def usage(self, journal: Journal) -> Usage:
        """What the run and all below it have used."""
        return sum((each.run.usage for each in self.down(journal)), Usage())

    def waiting_calls(self, journal: Journal) -> int:
        """Tool calls that the run and all below it have asked for and not begun."""
        return sum(each.run.waiting_calls for each in self.down(journal))
