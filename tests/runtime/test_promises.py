"""What the runtime promises about runs that it is interrupted in, each promise by its number."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from runtime.journal import Journal
from runtime.records import AnyRecord
from runtime.recovery import INTERRUPTED, take_over
from runtime.run import DECLINED, LEFT_IN_PROGRESS, NOT_REPEATED, RunState, conversation
from runtime.store import Append, ConflictError, StoreError
from runtime.tool_specs import Done, NotStarted, Outcome, Unknown
from tests.runtime.rig import Hold, Rig, results, rig
from tests.waiting import wait_until

BOTH = 'CALL save {"query": "a"}\nCALL send {"query": "b"}\nthen answer'


class CrashError(StoreError):
    """The store of a runtime that is to die."""


class DyingStore:
    """Lets `commits` commits pass; the next one dies before or after it is written, and so does every later one."""

    def __init__(self, store: Any, commits: int, *, after: bool) -> None:
        self._store = store
        self._left = commits
        self._after = after
        self.died = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(
        self,
        appends: Sequence[Append] = (),
        puts: Mapping[str, bytes] | None = None,
        expects: Mapping[str, bytes | None] | None = None,
    ) -> None:
        if self.died.is_set():
            raise CrashError("dead")
        self._left -= 1
        if self._left < 0:
            self.died.set()
            if self._after:
                await self._store.commit(appends, puts, expects)
            raise CrashError("dead")
        await self._store.commit(appends, puts, expects)


async def live_through(folder: pathlib.Path, commits: int, *, after: bool, parallel: bool) -> int:
    """One run that dies at a journal boundary and is recovered; returns how many commits there were before it died."""
    async with rig(folder) as r:
        await r.crash()
        dying = DyingStore(None, commits, after=after)

        def wrap(store: Any) -> Any:
            dying._store = store
            return dying

        r.wrap = wrap
        try:
            await r.start()
            handle = await r.spawn(BOTH, parallel_tool_calls=parallel)
        except StoreError:
            handle = ""
        ends: list[asyncio.Task[Any]] = [asyncio.create_task(dying.died.wait())]
        if handle:
            ends.append(asyncio.create_task(r.runtime.await_([handle], timeout_s=10)))
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        died = dying.died.is_set()
        acknowledged = conversation(await r.runtime.read(handle)) if handle else []
        await r.crash()
        r.wrap = lambda store: store
        await r.start()
        runs = await r.store.runs()
        assert not handle or handle in runs, "an acknowledged run is lost"
        for run_id in runs:
            run = await r.settled(run_id)
            asked_for = "send" if run.end is None else ""
            if run.end is None:
                assert run.state == "AwaitingApproval"
                assert [each.unknown for each in run.steps[-1].calls if each.unknown] == [INTERRUPTED]
                await r.runtime.approve(run_id, allow=False)
                run = await r.settled(run_id)
            assert run.state == "Completed"
            messages = conversation(run)
            assert messages[: len(acknowledged)] == acknowledged
            sent = [key for name, _, key in r.tools.calls if name == "send"]
            assert len(sent) <= 1, "an at-most-once tool was called twice"
            assert len(sent) == 1 or asked_for == "send"
            assert len({key for name, _, key in r.tools.calls if name == "save"}) == 1, "a retry has another key"
            assert results(run)[0] == "save did a"
            assert results(run)[1] in ("send did b", NOT_REPEATED)
        return 0 if not died else 1


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("after", [False, True])
async def test_promise_01_no_acknowledged_round_is_lost_whatever_record_it_dies_at(
    tmp_path: pathlib.Path, after: bool, parallel: bool
) -> None:
    # The first commit takes the store over; then start, reply, intents and outcomes, reply, end.
    for commits in range(20):
        folder = tmp_path / str(commits)
        folder.mkdir()
        if not await live_through(folder, commits, after=after, parallel=parallel):
            assert commits >= 7
            return
    pytest.fail("the run never came through")


async def test_promise_02_what_is_done_of_a_half_finished_batch_is_not_done_again(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["save"] = hold
    handle = await r.spawn('CALL send {"query": "a"}\nCALL save {}\nCALL send {"query": "b"}', parallel_tool_calls=True)
    await hold.started.wait()
    while r.journal(handle).run.steps[0].open_calls != (1,):
        await r.journal(handle).changed()
    del r.tools.behaves["save"]
    await r.restart()
    run = await r.settled(handle)
    assert results(run) == ["send did a", "save did something", "send did b"]
    assert r.times("send") == 2
    assert r.times("save") == 2


async def test_promise_03_a_repeatable_call_is_made_again_under_the_same_key(r: Rig) -> None:
    answers: list[Outcome] = [Unknown("no answer came."), Done("saved", False)]

    async def save(_arguments: dict[str, Any], _key: str) -> Outcome:
        return answers.pop(0)

    r.tools.behaves["save"] = save
    run = await r.settled(await r.spawn("CALL save {}"))
    assert results(run) == ["saved"]
    assert list(r.tools.effects.values()) == [2]


@pytest.mark.parametrize(("allow", "times"), [(True, 2), (False, 1)])
async def test_promise_03_a_call_of_unknown_outcome_asks_a_person(r: Rig, allow: bool, times: int) -> None:
    async def send(_arguments: dict[str, Any], _key: str) -> Outcome:
        if r.times("send") == 1:
            return Unknown("The connection was lost.")
        return Done("sent", False)

    r.tools.behaves["send"] = send
    handle = await r.spawn("CALL send {}")
    run = await r.settled(handle)
    assert run.state == "AwaitingApproval"
    await r.restart()
    assert r.state(handle) == "AwaitingApproval"
    assert r.times("send") == 1
    await r.runtime.approve(handle, allow)
    run = await r.settled(handle)
    assert results(run) == ["sent" if allow else NOT_REPEATED]
    assert list(r.tools.effects.values()) == [times]


async def test_promise_04_keys_differ_by_call_and_survive_a_restart(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["lookup"] = hold
    handle = await r.spawn("CALL save {}\nCALL save {}\nCALL lookup {}")
    await hold.started.wait()
    del r.tools.behaves["lookup"]
    await r.restart()
    await r.settled(handle)
    assert sorted(r.tools.effects.values()) == [1, 1, 2]


async def test_promise_05_many_wakes_are_one_resume(r: Rig) -> None:
    handle = await r.spawn("CALL delete {}")
    await r.rests(handle, "AwaitingApproval")
    answers = await asyncio.gather(*(r.runtime.approve(handle, True) for _ in range(10)), return_exceptions=True)
    assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
    for _ in range(10):
        r.runtime._executor.wake(r.journal(handle))
    await r.settled(handle)
    assert r.times("delete") == 1


async def test_promise_05_wakes_that_come_before_each_wait_lose_nothing(r: Rig) -> None:
    seen = r.runtime.tree._observe
    assert seen is not None

    def wake_too(run: RunState, record: AnyRecord) -> None:
        seen(run, record)
        r.runtime._executor.wake(r.journal(run.run_id))

    r.runtime.tree._observe = wake_too
    handle = await r.spawn("CALL delete {}")
    await r.until(handle, "AwaitingApproval")
    await r.runtime.approve(handle, True)
    assert results(await r.settled(handle)) == ["delete did something"]
    assert r.times("delete") == 1


async def test_promise_05_a_tool_server_that_comes_before_a_run_waits_for_it_is_not_missed(
    r: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = r.tools.specs
    r.tools.goes_away(is_known=False)
    wake = r.runtime._executor.wake

    def comes_first(journal: Journal) -> None:
        wake(journal)
        r.tools.comes_back(there)  # the run's task has not begun

    monkeypatch.setattr(r.runtime._executor, "wake", comes_first)
    assert results(await r.settled(await r.spawn("CALL lookup {}"))) == ["lookup did something"]


async def test_promise_06_an_approval_is_durable_before_the_tool_starts(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["delete"] = hold
    handle = await r.spawn("CALL delete {}")
    await r.until(handle, "AwaitingApproval")
    await r.restart()
    assert r.state(handle) == "AwaitingApproval"
    await r.runtime.approve(handle, True)
    await hold.started.wait()
    assert (await r.store.read(handle))[-2].count(b'"answered"') == 1
    hold.go.set()
    run = await r.settled(handle)
    assert results(run) == ["held"]


async def test_promise_06_what_fails_after_an_approved_call_neither_asks_nor_calls_again(
    tmp_path: pathlib.Path,
) -> None:
    async with rig(tmp_path, faults=({"fault": "status", "code": 500, "match": "delete did", "count": 2},)) as r:
        handle = await r.spawn("CALL delete {}")
        await r.until(handle, "AwaitingApproval")
        await r.runtime.approve(handle, True)
        run = await r.settled(handle)
        assert run.state == "Completed"
        assert r.times("delete") == 1


@pytest.mark.parametrize("asks", ["cancel", "approve"])
async def test_promise_08_an_owner_that_lost_its_store_ends_and_approves_nothing_that_the_next_one_has_not_touched(
    r: Rig, asks: str
) -> None:
    handle = await r.spawn("CALL delete {}")
    await r.until(handle, "AwaitingApproval")
    before = await r.store.read(handle)
    await take_over(r.store)
    with pytest.raises(ConflictError):
        await (r.runtime.cancel(handle) if asks == "cancel" else r.runtime.approve(handle, allow=True))
    assert await r.store.read(handle) == before
    assert r.times("delete") == 0


async def test_promise_09_cancel_reaches_every_descendant_and_no_turn_follows(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["lookup"] = hold
    root = await r.spawn("CALL lookup {}")
    resting = await r.spawn("CALL delete {}", parent=root)
    below = await r.spawn("CALL lookup {}", parent=resting)
    await r.until(resting, "AwaitingApproval")
    await hold.started.wait()
    cancelled = await r.runtime.cancel(root)
    assert {journal.run.run_id for journal in cancelled} == {root, resting, below}
    turns = [r.journal(handle).run.usage.turns for handle in (root, resting, below)]
    hold.go.set()
    await r.restart()
    assert [r.state(handle) for handle in (root, resting, below)] == ["Cancelled"] * 3
    assert [r.journal(handle).run.usage.turns for handle in (root, resting, below)] == turns
    run = await r.settled(root)
    assert results(run) == [LEFT_IN_PROGRESS]


async def test_promise_12_a_run_that_waits_for_a_person_holds_no_task(r: Rig) -> None:
    handles = [await r.spawn("CALL delete {}", budget_seconds=60) for _ in range(5)]
    for handle in handles:
        await r.rests(handle, "AwaitingApproval")
    await wait_until(lambda: not r.runtime._executor._tasks)


async def test_a_call_that_surely_did_not_start_is_tried_again(r: Rig) -> None:
    answers: list[Outcome] = [NotStarted("the server is down"), Done("sent", False)]

    async def send(_arguments: dict[str, Any], _key: str) -> Outcome:
        return answers.pop(0)

    r.tools.behaves["send"] = send
    assert results(await r.settled(await r.spawn("CALL send {}"))) == ["sent"]


async def test_three_approvals_answered_in_reverse_reach_their_own_calls(r: Rig) -> None:
    handles = [await r.spawn(f'CALL delete {{"query": "{name}"}}') for name in "abc"]
    for handle in handles:
        await r.until(handle, "AwaitingApproval")
    for handle, allow in zip(reversed(handles), (True, False, True), strict=True):
        await r.runtime.approve(handle, allow)
    read = [results(await r.settled(handle)) for handle in handles]
    assert read == [["delete did a"], [DECLINED], ["delete did c"]]


async def test_cancel_during_an_approval_closes_it(r: Rig) -> None:
    handle = await r.spawn("CALL delete {}")
    await r.until(handle, "AwaitingApproval")
    await r.runtime.cancel(handle)
    with pytest.raises(Exception, match="waits for no approval; it is Cancelled"):
        await r.runtime.approve(handle, True)
    assert r.times("delete") == 0
