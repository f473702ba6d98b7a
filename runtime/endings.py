"""Ends that somebody else than the run itself decides, of a run and all below it: cancelled, over budget, moved.

Must not start anything, nor know who asked. Read next: `budgets`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from runtime import budgets
from runtime.journal import Journal
from runtime.llm import Model
from runtime.records import Ended, JournalError, Limits, State
from runtime.recovery import lost_calls
from runtime.store import ReadOnlyError, Store, StoreError
from runtime.tree import Tree

CANCELLED = "cancelled"
TAKES_CHILDREN_ALONG = (State.CANCELLED, State.BUDGET_EXCEEDED)
"""Ends of a run with which everything below it ends too."""
_NO_LIMITS = Limits()

log = logging.getLogger("runtime")


class Endings:
    """Of one runtime. `in_background` starts work that nobody waits for."""

    def __init__(
        self, store: Store, tree: Tree, model: Model, in_background: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._store = store
        self._tree = tree
        self._model = model
        self._in_background = in_background
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unwritten: list[Journal] = []
        """Runs that were stopped to be ended, whose end the store did not take."""

    def close(self) -> None:
        """Ends nothing more by itself."""
        for timer in self._timers.values():
            timer.cancel()

    async def end_subtree(self, top: Journal, state: State, text: str) -> list[Journal]:
        """Ends the run and all below it that have not ended: nothing is begun for them from here on.

        Raises StoreError. A store that is known not to take the ends stops nothing; where it is found out only now, the
        runs rest until it has room or the next start.
        """
        if self._store.broken is not None:
            raise ReadOnlyError(self._store.broken)
        ending = [each for each in self._tree.down(top) if each.run.end is None and not each.is_ending]
        for journal in ending:
            journal.is_ending = True
        await asyncio.gather(*(journal.stop() for journal in ending))
        ended = []
        for journal in ending:
            try:
                await journal.append(Ended(at=time.time(), state=state, text=text))
            except JournalError:
                continue  # it had ended by itself
            except StoreError:
                self._unwritten += (each for each in ending if each.run.end is None)
                raise
            ended.append(journal)
            self.on_end(journal)
        return ended

    async def take_back(self) -> None:
        """Lets runs live on whose end found no room, once there is some: as after a restart, what was stopped in its
        midst is not begun again unasked. Raises StoreError."""
        while self._unwritten:
            journal = self._unwritten[-1]
            lost = tuple(lost_calls(journal.run, time.time()))
            try:
                if lost:
                    await journal.append(*lost)
            except JournalError:
                continue  # an outcome was being written: look again
            journal.is_ending = False
            self._unwritten.pop()

    def on_end(self, journal: Journal) -> None:
        """The run has ended, by itself or not."""
        run = journal.run
        assert run.end is not None
        log.debug("event=run_ended run=%s state=%s turns=%d", run.run_id, run.state, run.usage.turns)
        self._in_background(self._model.end_run(run))

    def watch_time(self, journal: Journal) -> None:
        """Sees to it that the subtree ends when the time is over that the run has for it. Holds no task meanwhile."""
        limit_s = journal.run.order.limits.seconds
        if limit_s is None or all(each.run.end is not None for each in self._tree.down(journal)):
            return
        age_s = journal.age_s
        timer = self._timers.pop(journal.run.run_id, None)
        if timer is not None:
            timer.cancel()
        spent = budgets.exceeded(Limits(seconds=limit_s), journal.run.usage, age_s)
        if spent is not None:
            self._in_background(self._end_over_budget(journal, str(spent)))
        else:
            # Loops wake a little early, so it is asked again then.
            later = asyncio.get_running_loop().call_later(limit_s - age_s, self.watch_time, journal)
            self._timers[journal.run.run_id] = later

    def spent(self, journal: Journal) -> budgets.Exceeded | None:
        """What of the run's own budget is spent."""
        limits = journal.run.order.limits
        if limits == _NO_LIMITS:
            return None
        return budgets.exceeded(limits, self._tree.usage(journal), journal.age_s, self._tree.waiting_calls(journal))

    def is_over_budget(self, journal: Journal) -> bool:
        """Whether a budget, of the run or of one above, forbids it another round; then its end is being seen to."""
        for above in self._tree.up(journal):
            spent = self.spent(above)
            if spent is not None:
                self._in_background(self._end_over_budget(above, str(spent)))
                return True
        return False

    async def _end_over_budget(self, journal: Journal, text: str) -> None:
        # Where the store has no room, it is found out anew when it has.
        with contextlib.suppress(ReadOnlyError):
            await self.end_subtree(journal, State.BUDGET_EXCEEDED, text)
