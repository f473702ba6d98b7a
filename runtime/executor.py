"""Performs what `agent.next_step` says, one task a run that has something to do, and journals it in its order.

The model's reply is durable before the first intent of its calls, an intent before its call, an outcome before what
follows from it. A run that waits for a person has no task; `wake` gives it one when there is something to do again.

Must not decide what comes next (`agent`), nor which runs end together (`service`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time

from runtime import calls
from runtime.agent import AskApproval, CallModel, CallTools, Finish, Rest, next_step
from runtime.chat import RawCall, Reply
from runtime.endings import Endings
from runtime.journal import Journal
from runtime.llm import Model, TimedReply, TurnFailedError
from runtime.observer import Observer
from runtime.records import Call, Ended, Intended, JournalError, LostTrack, Replied, Returned, State, effect_key
from runtime.run import RunState
from runtime.store import StoreError
from runtime.text_calls import recover
from runtime.tool_specs import EffectKind, NotStarted, Outcome, ToolSpec, Unknown
from runtime.tool_waits import ToolWaits
from runtime.toolbox import Toolbox
from runtime.tries import Tries

TOOL_PAUSE_S = 0.5
"""Pause before a call is made for the second time; it is three times as long before each further one."""
STOP_GRACE_S = 1.2
"""How long calls in progress have to end when the runtime stops, so that fewer outcomes are unknown."""

log = logging.getLogger("runtime.executor")


class Executor:
    """Drives runs."""

    def __init__(
        self, model: Model, toolbox: Toolbox, endings: Endings, observer: Observer, tools_wait_s: float
    ) -> None:
        self._model = model
        self._toolbox = toolbox
        self._endings = endings
        self._observer = observer
        self._waits = ToolWaits(toolbox, tools_wait_s, self.wake)
        self._tasks: set[asyncio.Task[None]] = set()
        self._calling: set[asyncio.Task[None]] = set()
        self._closing = False

    def wake(self, journal: Journal) -> None:
        """Lets the run do what is next, unless that is being done already: waking twice does nothing more."""
        rests = journal.task is None or journal.task.done()
        if rests and not journal.is_ending and not self._closing:
            journal.task = asyncio.create_task(self._drive(journal))
            self._tasks.add(journal.task)
            journal.task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stops everything: model turns at once, tool calls after a grace. The runs go on after the next start."""
        self._closing = True
        self._waits.close()
        for task in self._tasks - self._calling:
            task.cancel()
        if self._calling:
            await asyncio.wait(set(self._calling), timeout=STOP_GRACE_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _drive(self, journal: Journal) -> None:
        try:
            while not self._closing and await self._step(journal):
                pass
        except StoreError as error:
            # What is not durable did not happen: the run stays as it is until the store is revived or opened anew.
            log.error("event=run_stopped run=%s error=%s", journal.run.run_id, error)
        except Exception:
            log.exception("event=run_broken run=%s", journal.run.run_id)
            with contextlib.suppress(StoreError, JournalError):
                await self._end(journal, State.FAILED, "an internal error of the runtime; its log tells more")
        finally:
            journal.task = None

    async def _step(self, journal: Journal) -> bool:
        """Performs the next step; whether there may be another at once."""
        match next_step(journal.run):
            case CallModel(step, may_call):
                if self._endings.is_over_budget(journal) or self._waits.must_sleep(
                    journal, journal.run.order.tools_needed
                ):
                    return False
                return await self._call_model(journal, step, may_call)
            case CallTools(step, positions):
                names = {journal.run.steps[step].calls[position].call.name for position in positions}
                if self._endings.is_over_budget(journal) or self._waits.must_sleep(journal, names):
                    return False
                await self._call_tools(journal, step, positions)
                return True
            case Finish(answer):
                await self._end(journal, State.COMPLETED, answer)
                return False
            case AskApproval() | Rest():
                return False

    async def _end(self, journal: Journal, state: State, text: str) -> None:
        await journal.append(Ended(at=time.time(), state=state, text=text))
        self._endings.on_end(journal)

    async def _call_model(self, journal: Journal, step: int, may_call: bool) -> bool:
        run = journal.run
        chosen = run.order.tools_needed
        absent = self._toolbox.absent(chosen)
        offered = {tool.name: tool for tool in self._toolbox.tools() if chosen is None or tool.name in chosen}
        missing = [] if step else [said for name in chosen or () if (said := self._toolbox.missing(name))]
        if missing:
            # It was spawned while the server was away, and this is what `spawn` would have said.
            await self._end(journal, State.FAILED, missing[0])
            return False
        began = time.monotonic()
        try:
            timed = await self._turn(run, step, offered, may_call)
        except TurnFailedError as error:
            self._observer.turn_failed(run, time.monotonic() - began, str(error))
            await self._end(journal, State.FAILED, str(error))
            return False
        reply, replied_at = timed.reply, time.time()
        content, asked = _asked(reply, offered) if may_call else (reply.content, [])
        left = run.order.tool_calls_max - run.usage.tool_calls
        prepared = {
            position: await self._toolbox.prepare(offered[raw.name], raw.arguments)
            for position, raw in enumerate(asked[:left])
            if raw.name in offered
        }
        await journal.append(
            Replied(
                at=replied_at,
                step=step,
                content=content,
                calls=calls.decide(asked, offered, prepared, order=run.order, left=left, step=step),
                finish_reason=reply.finish_reason,
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=reply.completion_tokens,
                cached_tokens=reply.cached_tokens,
                duration_s=timed.duration_s,
                missing_servers=tuple(server.name for server in absent if not server.tools),
            )
        )
        return True

    async def _turn(self, run: RunState, step: int, offered: dict[str, ToolSpec], may_call: bool) -> TimedReply:
        """The model's reply, whose calls count only where it may call. Raises TurnFailedError."""
        traceparent = self._observer.turn_traceparent(run, step)
        timed = await self._model.turn(run, tuple(offered.values()), traceparent, may_call=may_call)
        if may_call or not _asked(timed.reply, offered)[1]:
            return timed
        # It called all the same. Without tools it can call none: that costs the cached prefix, but gets an answer.
        again = await self._model.turn(run, (), traceparent)
        return again.after(timed)

    async def _call_tools(self, journal: Journal, step: int, positions: tuple[int, ...]) -> None:
        """Makes calls of the last reply. Those whose servers are waited for are left open."""
        task = journal.task
        assert task is not None, "a run's calls are made by its task"
        run = journal.run
        new = []
        for position in positions:
            each, key = run.steps[step].calls[position], effect_key(run.run_id, step, position)
            journal.tries.setdefault(key, Tries(each.call.effect, in_doubt=each.in_doubt))
            if not each.intended:
                new.append(Intended(at=time.time(), step=step, call=position, key=key))
        if new:
            await journal.append(*new)
        self._calling.add(task)
        try:
            if len(positions) == 1:
                await self._call_tool(journal, step, positions[0])
                return
            # One that cannot be journaled must not cancel the others, which may have had their effect.
            ends = await asyncio.gather(
                *(self._call_tool(journal, step, position) for position in positions), return_exceptions=True
            )
            for end in ends:
                if isinstance(end, BaseException):
                    raise end
        finally:
            self._calling.discard(task)

    async def _call_tool(self, journal: Journal, step: int, position: int) -> None:
        run = journal.run
        call = run.steps[step].calls[position].call
        key = effect_key(run.run_id, step, position)
        began = time.monotonic()
        traceparent = self._observer.call_traceparent(run, step, position)
        while True:
            outcome = await self._try(call, key, traceparent)
            tries = journal.tries[key] = journal.tries[key].after(outcome)
            if not tries.may_follow(outcome):
                break
            await asyncio.sleep(TOOL_PAUSE_S * 3 ** (tries.number - 1) * random.uniform(1, 2))
            if self._closing or self._waits.awaited(journal, (call.name,)):
                return
        del journal.tries[key]
        if isinstance(outcome, Unknown) and call.effect is EffectKind.AT_MOST_ONCE:
            await journal.keep(LostTrack(at=time.time(), step=step, call=position, known=outcome.reason))
            return
        text, failed = tries.told(outcome)
        duration_s = time.monotonic() - began
        await journal.keep(
            Returned(at=time.time(), step=step, call=position, text=text, failed=failed, duration_s=duration_s)
        )

    async def _try(self, call: Call, key: str, traceparent: str | None) -> Outcome:
        tool = self._toolbox.find(call.name)
        if tool is None:
            away = ", ".join(server.name for server in self._toolbox.absent((call.name,)))
            why = f": tool servers that are down: {away}" if away else ""
            return NotStarted(f"the tool '{call.name}' is no longer there{why}")
        return await self._toolbox.call(
            tool, json.loads(call.arguments), key=key, traceparent=traceparent, timeout_s=None
        )


def _asked(reply: Reply, offered: dict[str, ToolSpec]) -> tuple[str, list[RawCall]]:
    """The reply's text and the calls it asks for, those that it wrote as text too; none where no tool was offered."""
    if not offered:
        return reply.content, []
    if reply.calls:
        return reply.content, list(reply.calls)
    content, found = recover(reply.content, offered)
    return content, [RawCall("", call.name, call.arguments) for call in found]
