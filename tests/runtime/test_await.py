"""Waiting for runs: what it checks, when it ends, and that it misses no end."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from runtime.refusals import InvalidArgumentError
from runtime.sqlite_store import SqliteStore
from tests.runtime.rig import Hold, Rig


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"handles": []}, "handles: expected 1 to 1000"),
        ({"mode": "some"}, "mode: expected 'all' or 'any'"),
        ({"timeout_s": 601}, "timeout: expected 0 to 600 seconds"),
        ({"timeout_s": -1}, "timeout: expected 0 to 600 seconds"),
    ],
    ids=str,
)
async def test_a_bad_argument_of_await_is_refused(r: Rig, arguments: dict[str, Any], expected: str) -> None:
    handle = await r.spawn("t")
    with pytest.raises(InvalidArgumentError, match=expected):
        await r.runtime.await_(**{"handles": [handle], **arguments})


async def test_await_says_what_is_there_when_the_time_is_over(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["lookup"] = hold
    slow = await r.spawn("CALL lookup {}")
    quick = await r.spawn("t")
    both = await r.runtime.await_([slow, quick], mode="any")
    assert [journal.run.run_id for journal in both] == [slow, quick]
    assert [str(journal.run.state) for journal in both] == ["Running", "Completed"]
    began = time.monotonic()
    await r.runtime.await_([slow, quick], timeout_s=0.2)
    assert 0.15 < time.monotonic() - began < 2
    hold.go.set()
    assert [str(each.run.state) for each in await r.runtime.await_([slow, quick])] == ["Completed"] * 2
    assert not r.journal(slow)._watching


class HeldStore:
    """A store whose commits are done when `until` is."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.until: asyncio.Future[None] | None = None
        self.reached = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, *arguments: Any, **named: Any) -> None:
        await self._store.commit(*arguments, **named)
        if self.until is not None:
            self.reached.set()
            await self.until


async def test_an_end_that_is_there_as_await_begins_to_wait_is_not_missed(r: Rig) -> None:
    held: list[HeldStore] = []

    def wrap(store: Any) -> Any:
        held.append(HeldStore(store))
        return held[-1]

    r.wrap = wrap
    await r.restart()
    r.tools.behaves["lookup"] = Hold()
    handle = await r.spawn("CALL lookup {}")
    await r.until(handle, "Running")
    until = held[-1].until = asyncio.get_running_loop().create_future()
    ending = asyncio.create_task(r.runtime.cancel(handle))
    await held[-1].reached.wait()
    until.set_result(None)  # what waits for it is next in the event loop, before whatever is begun from here on
    async with asyncio.timeout(10.0):
        (told,) = await r.runtime.await_([handle])
    assert told.run.state == "Cancelled"
    await ending


async def test_await_returns_when_a_run_needs_a_person(r: Rig) -> None:
    handle = await r.spawn("CALL delete {}")
    (journal,) = await r.runtime.await_([handle], timeout_s=10)
    assert journal.run.state == "AwaitingApproval"


async def test_whoever_stops_awaiting_stops_nothing(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["lookup"] = hold
    handle = await r.spawn("CALL lookup {}")
    waiting = asyncio.create_task(r.runtime.await_([handle]))
    await hold.started.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    hold.go.set()
    assert (await r.settled(handle)).state == "Completed"
