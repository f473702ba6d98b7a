"""Which runs there are, and which was spawned by which. No I/O; the runs themselves change in their journals."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from runtime.journal import Journal, Observe
from runtime.records import AnyRecord
from runtime.refusals import UnknownRunError
from runtime.run import RunState, Usage


class Tree:
    """All runs by their handles, in the order of their starts."""

    def __init__(self, observe: Observe | None = None) -> None:
        """`observe` is told what becomes durable of the runs."""
        self._observe = observe
        self._runs: dict[str, Journal] = {}
        self._children: dict[str, list[str]] = {}
        self._own: dict[str, tuple[Usage, int]] = {}
        """What each run has used and its waiting calls, as they were counted last."""
        self._below: dict[str, tuple[Usage, int]] = {}
        """The same of a run and all below it. Kept as it changes: budgets ask at each step, of all runs above."""

    def __iter__(self) -> Iterator[Journal]:
        return iter(tuple(self._runs.values()))

    def add(self, journal: Journal) -> None:
        """Takes in a run; its parent has been taken in before."""
        run = journal.run
        journal.observe = functools.partial(self._changed, journal)
        self._runs[run.run_id] = journal
        self._own[run.run_id] = self._below[run.run_id] = (Usage(), 0)
        self._count(journal)
        if run.parent is not None:
            self._children.setdefault(run.parent, []).append(run.run_id)

    def roots(self) -> list[Journal]:
        """The runs at the top of their trees."""
        return [journal for journal in self if self.parent(journal) is None]

    def forget(self, root: Journal) -> list[str]:
        """Takes a whole tree out; the handles of its runs."""
        handles = [journal.run.run_id for journal in self.down(root)]
        for handle in handles:
            for known in (self._runs, self._children, self._own, self._below):
                known.pop(handle, None)
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
        return self._below[journal.run.run_id][0]

    def waiting_calls(self, journal: Journal) -> int:
        """Tool calls that the run and all below it have asked for and not begun."""
        return self._below[journal.run.run_id][1]

    def _changed(self, journal: Journal, before: RunState, record: AnyRecord) -> None:
        if journal.run.run_id in self._own:
            self._count(journal)
        if self._observe is not None:
            self._observe(before, record)

    def _count(self, journal: Journal) -> None:
        run = journal.run
        usage, waiting = self._own[run.run_id]
        more, more_waiting = run.usage - usage, run.waiting_calls - waiting
        self._own[run.run_id] = run.usage, run.waiting_calls
        for above in self.up(journal):
            usage, waiting = self._below[above.run.run_id]
            self._below[above.run.run_id] = usage + more, waiting + more_waiting
