"""The runtime's operations, as MCP and gRPC offer them: spawn, await, cancel, approve, and what runs there are.

Runs belong to no client: whoever leaves stops nothing, and any client that has a handle may use it. Every operation
checks its arguments and raises `refusals`; what it acknowledges is durable. Read next: `executor`, `recovery`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, Self, TypeVar

from common.tracing import Tracer
from runtime import approvals, decisions, moves, orders, recovery
from runtime.decisions import Decision, Question
from runtime.endings import CANCELLED, TAKES_CHILDREN_ALONG, Endings
from runtime.executor import Executor
from runtime.journal import Fence, Journal
from runtime.llm import Model
from runtime.metrics import MeasuredStore
from runtime.observer import Observer
from runtime.orders import COUNT_MAX, DEPTH_MAX, SpawnRequest
from runtime.records import Answered, AnyRecord, Ended, JournalError, Started, State, decode
from runtime.refusals import InvalidArgumentError, WrongStateError
from runtime.run import RunState
from runtime.store import ReadOnlyError, Store, StoreError
from runtime.toolbox import ServerStatus, Toolbox
from runtime.tree import Tree

AWAIT_S = 60.0
AWAIT_S_MAX = 600.0
KEEP_S = 30 * 86_400.0
TOOLS_WAIT_S = 60.0
FORGET_EVERY_S = 3600.0
"""How often trees are looked for that have been kept long enough."""
ROOM_EVERY_S = 1.0
"""How often a store that had no room for a write is tried again."""
ROOM_BYTES = 65_536
ROOM = "room"
"""Key of the store's value by which that is tried."""

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
        tools_wait_s: float,
    ) -> None:
        self._store = store
        self._fence = fence
        self._model = model
        self._toolbox = toolbox
        self._default_model = default_model
        self._keep_s = keep_s
        self._background: set[asyncio.Task[Any]] = set()
        self._closing = asyncio.Event()
        self._over_when_closed: set[asyncio.Timeout] = set()
        self.tree = Tree(observer.observe)
        self.observer = observer
        self._endings = Endings(store, self.tree, model, self._in_background)
        self._executor = Executor(model, toolbox, self._endings, observer, tools_wait_s)

    @classmethod
    async def start(
        cls,
        store: Store,
        model: Model,
        toolbox: Toolbox,
        *,
        default_model: str | None = None,
        keep_s: float = KEEP_S,
        tools_wait_s: float = TOOLS_WAIT_S,
        tracer: Tracer | None = None,
    ) -> Self:
        """Takes the store over and lets its unfinished runs go on. Raises StoreError or JournalError.

        Runs that name no model get `default_model`, or the first served. Trees are forgotten `keep_s` after their end.
        `tools_wait_s` is how long runs wait for tool servers that are not connected.
        """
        observer = Observer(tracer)
        measured = MeasuredStore(store, observer.metrics)
        fence = await recovery.take_over(measured)
        runtime = cls(
            measured,
            fence,
            model,
            toolbox,
            observer,
            default_model=default_model,
            keep_s=keep_s,
            tools_wait_s=tools_wait_s,
        )
        for journal in await recovery.recover(measured, fence, observer):
            runtime.tree.add(journal)
        for journal in runtime.tree:
            await runtime._go_on(journal)
        runtime._in_background(runtime._forget_old())
        runtime._in_background(runtime._go_on_with_room())
        return runtime

    def unready_reason(self) -> str | None:
        """Why nothing can be begun; None: it can."""
        return self._store.broken

    @property
    def is_closing(self) -> bool:
        """Whether `close` has been called."""
        return self._closing.is_set()

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        """As `asyncio.timeout`, but over too as soon as the runtime is closed: while clients are still spoken to."""
        async with asyncio.timeout(0.0 if self.is_closing else seconds) as limit:
            self._over_when_closed.add(limit)
            try:
                yield
            finally:
                self._over_when_closed.discard(limit)

    async def close(self) -> None:
        """Stops everything within 5 s; unfinished runs go on after the next start."""
        self._closing.set()
        for limit in self._over_when_closed:
            if not limit.expired():
                limit.reschedule(0.0)
        self._endings.close()
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
        order = orders.check(request, model, parent.run if parent else None, self._toolbox.missing)
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

        Only observes; ends also when the runtime is closed. Returns the runs in the order of the handles, each
        once. Raises RefusedError.
        """
        if not 1 <= len(handles) <= COUNT_MAX:
            raise InvalidArgumentError("handles", f"expected 1 to {COUNT_MAX} handles")
        if mode not in ("all", "any"):
            raise InvalidArgumentError("mode", "expected 'all' or 'any'")
        if not 0 <= timeout_s <= AWAIT_S_MAX:
            raise InvalidArgumentError("timeout", f"expected 0 to {AWAIT_S_MAX:g} seconds")
        journals = [self.tree.get("handles", handle) for handle in dict.fromkeys(handles)]
        enough = all if mode == "all" else any
        deadline = time.monotonic() + timeout_s
        while not enough(_is_settled(journal) for journal in journals):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._closing.is_set():
                break
            changes = [each.changed() for each in journals if not _is_settled(each)]
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
        return await self._to_the_end(self._endings.end_subtree(top, State.CANCELLED, CANCELLED))

    async def approve(self, handle: str, allow: bool, question: str | None = None) -> tuple[Journal, bool]:
        """Answers what the run asks; the answer is durable before anything follows from it.

        `question` is the name of the one that is answered; None: the first that is open. Others stay open. Gives the
        answer that the question has, which is an earlier one if it was answered before. Raises WrongStateError where it
        neither is nor was asked, or nothing is; UnknownRunError or StoreError.
        """
        journal = self.tree.get("handle", handle)
        asked = () if journal.is_ending else approvals.questions(journal.run)
        about = next((each for each in asked if question in (None, each.name)), None)
        if about is not None:
            with contextlib.suppress(JournalError):  # somebody else was faster
                await self._to_the_end(self._answer(journal, approvals.answer(about, allow, time.time())))
                return journal, allow
        if question is None:
            raise WrongStateError("handle", f"run {handle} waits for no approval; it is {journal.run.state}")
        given = approvals.given((decode(raw) for raw in await self._store.read(handle)), question)
        if given is None:
            raise WrongStateError("question", f"run {handle} has asked no '{question[:64]}' that is open or answered")
        return journal, given

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
            changed = journal.changed()  # from before the read, so that nothing between is missed
            try:
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
        if parent is not None and (parent.is_ending or parent.run.state in TAKES_CHILDREN_ALONG):
            # It was cancelled while the child's start was being written.
            await self._endings.end_subtree(journal, State.CANCELLED, CANCELLED)
        await self._go_on(journal)
        return journal

    async def _export(self, top: Journal, bytes_max: int) -> bytes:
        if await moves.size(self._store, self.tree.down(top)) > bytes_max:
            raise WrongStateError("handle", f"its bundle has over {bytes_max} bytes; stop the runtime first")
        await self._endings.end_subtree(top, State.MOVED, moves.MOVED)
        return await moves.pack(self._store, self._fence, self.tree.down(top))

    async def _import(self, bundle: bytes) -> list[Journal]:
        journals = await moves.unpack(self._store, self._fence, bundle, self._toolbox.find)
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

    async def _answer(self, journal: Journal, answered: Answered) -> None:
        await journal.append(answered)
        self._executor.wake(journal)

    def _check_may_spawn(self, parent: Journal) -> None:
        if parent.is_ending or parent.run.end is not None:
            raise WrongStateError("parent", f"run {parent.run.run_id} has ended, and an ended run has no new children")
        if sum(1 for _ in self.tree.up(parent)) >= DEPTH_MAX:
            raise WrongStateError("parent", f"run {parent.run.run_id} is {DEPTH_MAX} runs deep, and none is deeper")
        for above in self.tree.up(parent):
            spent = self._endings.spent(above)
            if spent is not None:
                raise WrongStateError("parent", f"{spent} of run {above.run.run_id}")

    async def _model_for(self, parent: Journal | None) -> str:
        """The model of a run that names none: its parent's, else the configured one, else the first that is served."""
        if parent is not None:
            return parent.run.order.model
        return self._default_model or await self._model.first_served()

    async def _go_on(self, journal: Journal) -> None:
        """Sets a run going that was started or found, and its timer."""
        self._endings.watch_time(journal)
        if journal.run.end is not None:
            return
        parent = self.tree.parent(journal)
        if parent is not None and parent.run.end is not None and parent.run.state in TAKES_CHILDREN_ALONG:
            await self._endings.end_subtree(journal, parent.run.state, parent.run.end.text)
            return
        self._executor.wake(journal)

    async def _forget_old(self) -> None:
        while True:
            now = time.time()
            for root in self.tree.roots():
                ends = [each.run.end for each in self.tree.down(root)]
                if all(end is not None and end.at < now - self._keep_s for end in ends):
                    with contextlib.suppress(ReadOnlyError):  # then they are forgotten after the next start
                        await self._store.forget(self.tree.forget(root))
            await asyncio.sleep(FORGET_EVERY_S)

    async def _go_on_with_room(self) -> None:
        """Sets everything going again when a store that had no room has some: enough for what a run writes at once."""
        while True:
            await asyncio.sleep(ROOM_EVERY_S)
            if not self._store.wants_room:
                continue
            with contextlib.suppress(StoreError):
                await self._store.revive({ROOM: bytes(ROOM_BYTES)}, self._fence)
                await self._store.commit(puts={ROOM: b""}, expects=self._fence)
                log.warning("event=store_writable")
                await self._endings.take_back()
                for journal in self.tree:
                    await self._go_on(journal)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("event=background_failed error=%s", error, exc_info=error)


def _is_settled(journal: Journal) -> bool:
    """Whether nothing more happens to the run without a person."""
    return journal.run.state.is_end or journal.run.state is State.AWAITING_APPROVAL
