"""The runtime's operations, as MCP and gRPC offer them: spawn, await, cancel, approve, and what runs there are.

Runs belong to no client: whoever leaves stops nothing, and any client that has a handle may use it. Every operation
checks its arguments and raises `refusals`; what it acknowledges is durable. Read next: `executor`, `recovery`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Self, TypeVar

from common.tracing import Tracer
from runtime import approvals, budgets, decisions, moves, orders, recovery
from runtime.decisions import Decision, Question
from runtime.executor import Executor
from runtime.journal import Fence, Journal
from runtime.llm import Model
from runtime.metrics import MeasuredStore
from runtime.observer import Observer
from runtime.orders import SpawnRequest
from runtime.records import Answered, AnyRecord, Ended, JournalError, Limits, Started, State, decode
from runtime.refusals import InvalidArgumentError, WrongStateError
from runtime.run import RunState
from runtime.store import Store
from runtime.toolbox import ServerStatus, Toolbox
from runtime.tree import Tree

AWAIT_S = 60.0
AWAIT_S_MAX = 600.0
HANDLES_MAX = 1000
CANCELLED = "cancelled"
KEEP_S = 30 * 86_400.0
FORGET_EVERY_S = 3600.0
"""How often trees are looked for that have been kept long enough."""

log = logging.getLogger("runtime")

T = TypeVar("T")


class Runtime:
    """All runs of one store. `start` it, ask it, `close` it."""

    def __init__(
        self,
        store: Store,
        fence: Fence,
        model: Model,
        toolbox: Toolbox,
        observer: Observer,
        *,
        default_model: str | None,
        keep_s: float,
    ) -> None:
        self._store = store
        self._fence = fence
        self._model = model
        self._toolbox = toolbox
        self._default_model = default_model
        self._keep_s = keep_s
        self._executor = Executor(model, toolbox, self._is_over_budget, self._on_end, observer)
        self._background: set[asyncio.Task[Any]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closing = asyncio.Event()
        self.tree = Tree(observer.observe)
        self.observer = observer

    @classmethod
    async def start(
        cls,
        store: Store,
        model: Model,
        toolbox: Toolbox,
        *,
        default_model: str | None = None,
        keep_s: float = KEEP_S,
        tracer: Tracer | None = None,
    ) -> Self:
        """Takes the store over and lets its unfinished runs go on. Raises StoreError or JournalError.

        Runs that name no model get `default_model`, or the first served. Trees are forgotten `keep_s` after their end.
        """
        observer = Observer(tracer)
        measured = MeasuredStore(store, observer.metrics)
        fence = await recovery.take_over(measured)
        runtime = cls(measured, fence, model, toolbox, observer, default_model=default_model, keep_s=keep_s)
        for journal in await recovery.recover(measured, fence, observer):
            runtime.tree.add(journal)
        for journal in runtime.tree:
            await runtime._go_on(journal)
        runtime._in_background(runtime._forget_old())
        return runtime

    def unready_reason(self) -> str | None:
        """Why nothing can be begun; None: it can."""
        return self._store.broken

    @property
    def is_closing(self) -> bool:
        """Whether `close` has been called."""
        return self._closing.is_set()

    async def close(self) -> None:
        """Stops everything within 5 s; unfinished runs go on after the next start."""
        self._closing.set()
        for timer in self._timers.values():
            timer.cancel()
        await self._executor.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def spawn(self, request: SpawnRequest, caller: str, traceparent: str | None = None) -> Journal:
        """Starts a run. `caller` is who asks; a child has its root's instead. Raises RefusedError or StoreError."""
        parent = None if request.parent is None else self.tree.get("parent", request.parent)
        if parent is not None:
            self._check_may_spawn(parent)
        model = request.model if request.model is not None else await self._model_for(parent)
        order = orders.check(request, model, parent.run if parent else None, self._missing_tool)
        now = time.time()
        run_id = moves.new_run_id(now)
        started = Started(
            at=now,
            run_id=run_id,
            parent=parent.run.run_id if parent else None,
            root=parent.run.root if parent else run_id,
            caller=parent.run.caller if parent else orders.clean_caller(caller),
            order=order,
            traceparent=self.observer.child_traceparent(parent.run, traceparent) if parent else traceparent,
        )
        return await self._to_the_end(self._begin(started, parent))

    async def await_(self, handles: Sequence[str], mode: str = "all", timeout_s: float = AWAIT_S) -> list[Journal]:
        """Waits until all of the runs (or any, by `mode`) have ended or need a person, or the time is over.

        Only observes; ends also when the runtime is closed. Returns the runs in the order of the handles. Raises
        RefusedError.
        """
        if not 1 <= len(handles) <= HANDLES_MAX:
            raise InvalidArgumentError("handles", f"expected 1 to {HANDLES_MAX} handles")
        if mode not in ("all", "any"):
            raise InvalidArgumentError("mode", "expected 'all' or 'any'")
        if not 0 <= timeout_s <= AWAIT_S_MAX:
            raise InvalidArgumentError("timeout", f"expected 0 to {AWAIT_S_MAX:g} seconds")
        journals = [self.tree.get("handles", handle) for handle in handles]
        enough = all if mode == "all" else any
        deadline = time.monotonic() + timeout_s
        while not enough(_is_settled(journal) for journal in journals):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._closing.is_set():
                break
            changes = [asyncio.ensure_future(each.changed()) for each in journals if not _is_settled(each)]
            changes.append(asyncio.ensure_future(self._closed()))
            try:
                await asyncio.wait(changes, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for change in changes:
                    change.cancel()
        return journals

    async def cancel(self, handle: str) -> list[Journal]:
        """Cancels the run and all below it that have not ended; returns those. Raises UnknownRunError or StoreError."""
        top = self.tree.get("handle", handle)
        return await self._to_the_end(self._end_subtree(top, State.CANCELLED, CANCELLED))

    async def approve(self, handle: str, allow: bool, about: approvals.Question | None = None) -> Journal:
        """Answers what the run asks; the answer is durable before anything follows from it.

        `about` is the question that the answer was given to; None: the first that is open. Others stay open. Raises
        WrongStateError where nothing (or something else) is asked, UnknownRunError or StoreError.
        """
        journal = self.tree.get("handle", handle)
        asked = () if journal.is_ending else approvals.questions(journal.run)
        if not asked:
            raise WrongStateError("handle", f"run {handle} waits for no approval; it is {journal.run.state}")
        if about is not None and about not in asked:
            raise WrongStateError("handle", f"run {handle} asks something else by now")
        return await self._to_the_end(self._answer(journal, approvals.answer(about or asked[0], allow, time.time())))

    async def export(self, handle: str, bytes_max: int) -> bytes:
        """Moves the run and all below it out of this store: a bundle. The same one, if they have been moved before.

        Raises WrongStateError (also where the bundle would be longer than `bytes_max`), UnknownRunError or StoreError.
        """
        return await self._to_the_end(self._export(moves.root(self.tree, handle), bytes_max))

    async def import_(self, bundle: bytes) -> list[Journal]:
        """Takes in the runs of a bundle, which go on. Raises InvalidArgumentError, WrongStateError or StoreError."""
        return await self._to_the_end(self._import(bundle))

    async def fork(self, handle: str, at: int) -> Journal:
        """Starts a run that has the steps before `at` of another one. Raises RefusedError or StoreError."""
        source = self.tree.get("handle", handle)
        return await self._to_the_end(self._fork(source, at))

    async def decide(self, question: Question, caller: str, run_class: str, traceparent: str | None = None) -> Decision:
        """The answer to one small question, which is no run. Raises InvalidArgumentError or NoAnswerError."""
        with self.observer.decision(run_class, traceparent) as told:
            return await decisions.decide(self._model, question, orders.clean_caller(caller), run_class, told)

    def tools(self) -> tuple[ServerStatus, ...]:
        """The tool servers and what they offer."""
        return self._toolbox.status()

    async def read(self, handle: str) -> RunState:
        """The whole run, with its conversation. Raises UnknownRunError or StoreError."""
        journal = self.tree.get("handle", handle)
        return journal.run if journal.run.end is None else await recovery.read_run(self._store, handle)

    async def watch(self, handle: str, *, until_now: bool = False) -> AsyncIterator[AnyRecord]:
        """The run's records from its start, as they come, until its end (or `until_now`: those there are).

        Raises UnknownRunError or StoreError.
        """
        journal = self.tree.get("handle", handle)
        seen = 0
        while True:
            changed = asyncio.ensure_future(journal.changed())
            try:
                await asyncio.sleep(0)  # it is waiting from here on: what comes later than the read is not missed
                for raw in await self._store.read(handle, seen):
                    record = decode(raw)
                    yield record
                    seen += 1
                    if isinstance(record, Ended):
                        return
                if until_now:
                    return
                await changed
            finally:
                changed.cancel()

    async def _closed(self) -> None:
        await self._closing.wait()

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns. A client that leaves meanwhile does not leave it half done."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return await asyncio.shield(task)

    async def _begin(self, started: Started, parent: Journal | None) -> Journal:
        journal = await Journal.begin(self._store, self._fence, started)
        self.tree.add(journal)
        self.observer.metrics.spawned += 1
        if parent is not None and (parent.is_ending or parent.run.state in _TAKES_CHILDREN_ALONG):
            # It was cancelled while the child's start was being written.
            await self._end_subtree(journal, State.CANCELLED, CANCELLED)
        await self._go_on(journal)
        return journal

    async def _export(self, top: Journal, bytes_max: int) -> bytes:
        if await moves.size(self._store, self.tree.down(top)) > bytes_max:
            raise WrongStateError("handle", f"its bundle has over {bytes_max} bytes; stop the runtime first")
        await self._end_subtree(top, State.MOVED, moves.MOVED)
        return await moves.pack(self._store, self._fence, self.tree.down(top))

    async def _import(self, bundle: bytes) -> list[Journal]:
        journals = await moves.unpack(self._store, self._fence, bundle)
        for journal in journals:
            self.tree.add(journal)
        for journal in journals:
            await self._go_on(journal)
        return journals

    async def _fork(self, source: Journal, at: int) -> Journal:
        journal = await moves.fork(self._store, self._fence, source, at)
        self.tree.add(journal)
        await self._go_on(journal)
        return journal

    async def _answer(self, journal: Journal, answered: Answered) -> Journal:
        try:
            await journal.append(answered)
        except JournalError:
            raise WrongStateError("handle", f"run {journal.run.run_id} was answered already") from None
        self._executor.wake(journal)
        return journal

    def _check_may_spawn(self, parent: Journal) -> None:
        if parent.is_ending or parent.run.end is not None:
            raise WrongStateError("parent", f"run {parent.run.run_id} has ended, and an ended run has no new children")
        for above in self.tree.up(parent):
            spent = self._spent(above)
            if spent is not None:
                raise WrongStateError("parent", f"{spent} of run {above.run.run_id}")

    async def _model_for(self, parent: Journal | None) -> str:
        """The model of a run that names none: its parent's, else the configured one, else the first that is served."""
        if parent is not None:
            return parent.run.order.model
        return self._default_model or await self._model.first_served()

    def _missing_tool(self, name: str) -> str | None:
        """What to answer to who names a tool that is not there; None: it is."""
        if self._toolbox.find(name) is not None:
            return None
        names = ", ".join(tool.name for tool in self._toolbox.tools()) or "none"
        down = ", ".join(server.name for server in self._toolbox.status() if not server.up)
        return f"there is no tool '{name[:128]}'; there are: {names}" + (
            f"; servers that are down: {down}" if down else ""
        )

    async def _go_on(self, journal: Journal) -> None:
        """Sets a run going that was started or found, and its timer."""
        limits = journal.run.order.limits
        if limits.seconds is not None and any(each.run.end is None for each in self.tree.down(journal)):
            self._watch_time(journal, limits.seconds)
        if journal.run.end is not None:
            return
        parent = self.tree.parent(journal)
        if parent is not None and parent.run.end is not None and parent.run.state in _TAKES_CHILDREN_ALONG:
            await self._end_subtree(journal, parent.run.state, parent.run.end.text)
            return
        self._executor.wake(journal)

    def _watch_time(self, journal: Journal, limit_s: float) -> None:
        """Sees to it that the subtree ends when the time is over that the run has for it. Holds no task meanwhile."""
        age_s = journal.age_s
        spent = budgets.exceeded(Limits(seconds=limit_s), journal.run.usage, age_s)
        if spent is not None:
            self._timers.pop(journal.run.run_id, None)
            self._in_background(self._end_over_budget(journal, str(spent)))
        else:
            # Loops wake a little early, so it is asked again then.
            later = asyncio.get_running_loop().call_later(limit_s - age_s, self._watch_time, journal, limit_s)
            self._timers[journal.run.run_id] = later

    async def _forget_old(self) -> None:
        while True:
            now = time.time()
            for root in self.tree.roots():
                ends = [each.run.end for each in self.tree.down(root)]
                if all(end is not None and end.at < now - self._keep_s for end in ends):
                    await self._store.forget(self.tree.forget(root))
            await asyncio.sleep(FORGET_EVERY_S)

    def _spent(self, journal: Journal) -> budgets.Exceeded | None:
        limits = journal.run.order.limits
        if limits == _NO_LIMITS:
            return None
        return budgets.exceeded(limits, self.tree.usage(journal), journal.age_s, self.tree.waiting_calls(journal))

    def _is_over_budget(self, journal: Journal) -> bool:
        for above in self.tree.up(journal):
            spent = self._spent(above)
            if spent is not None:
                self._in_background(self._end_over_budget(above, str(spent)))
                return True
        return False

    async def _end_over_budget(self, journal: Journal, text: str) -> None:
        await self._end_subtree(journal, State.BUDGET_EXCEEDED, text)

    async def _end_subtree(self, top: Journal, state: State, text: str) -> list[Journal]:
        """Ends the run and all below it that have not ended: nothing is begun for them from here on."""
        ending = [each for each in self.tree.down(top) if each.run.end is None and not each.is_ending]
        for journal in ending:
            journal.is_ending = True
        await asyncio.gather(*(self._executor.stop(journal) for journal in ending))
        ended = []
        for journal in ending:
            try:
                await journal.append(Ended(at=time.time(), state=state, text=text))
            except JournalError:
                continue  # it had ended by itself
            ended.append(journal)
            self._on_end(journal)
        return ended

    def _on_end(self, journal: Journal) -> None:
        run = journal.run
        assert run.end is not None
        log.debug("event=run_ended run=%s state=%s turns=%d", run.run_id, run.state, run.usage.turns)
        self._in_background(self._model.end_run(run))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("event=background_failed error=%s", error, exc_info=error)


_NO_LIMITS = Limits()
_TAKES_CHILDREN_ALONG = (State.CANCELLED, State.BUDGET_EXCEEDED)
"""Ends of a run with which everything below it ends too."""


def _is_settled(journal: Journal) -> bool:
    """Whether nothing more happens to the run without a person."""
    return journal.run.state.is_end or journal.run.state is State.AWAITING_APPROVAL
