"""What every store must do: a suite that the tests of each store inherit.

A subclass has a fixture `store`, a new store, and a fixture `reopen`, which closes a store and opens what it kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from runtime.store import Append, ConflictError, Store

Reopen = Callable[[Store], Awaitable[Store]]


class StoreContract:
    """The suite."""

    async def test_records_are_read_in_the_order_of_their_commits(self, store: Store) -> None:
        await store.commit([Append("a", 0, (b"0", b"1"))])
        await store.commit([Append("a", 2, (b"2",))])
        assert await store.read("a") == [b"0", b"1", b"2"]
        assert await store.read("a", 2) == [b"2"]
        assert await store.read("b") == []

    async def test_every_run_is_listed_with_its_length(self, store: Store) -> None:
        await store.commit([Append("b", 0, (b"0",)), Append("a", 0, (b"0", b"1"))])
        assert list((await store.runs()).items()) == [("a", 2), ("b", 1)]

    @pytest.mark.parametrize("length", [0, 2])
    async def test_an_append_to_a_run_of_another_length_is_refused(self, store: Store, length: int) -> None:
        await store.commit([Append("a", 0, (b"0",))])
        with pytest.raises(ConflictError, match="run a has 1 records"):
            await store.commit([Append("a", length, (b"x",))])
        assert await store.read("a") == [b"0"]

    async def test_a_commit_is_whole_or_nothing(self, store: Store) -> None:
        with pytest.raises(ConflictError):
            await store.commit([Append("a", 0, (b"0",)), Append("b", 7, (b"7",))], puts={"k": b"v"})
        assert await store.runs() == {}
        assert await store.get("k") is None

    async def test_a_commit_of_two_appends_to_one_run_counts_both(self, store: Store) -> None:
        await store.commit([Append("a", 0, (b"0",)), Append("a", 1, (b"1",))])
        assert await store.read("a") == [b"0", b"1"]

    async def test_of_many_appends_to_the_same_place_one_succeeds(self, store: Store) -> None:
        tries = [store.commit([Append("a", 0, (b"%d" % n,))]) for n in range(50)]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 1
        assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 49
        assert await store.read("a") == [b"0"]

    async def test_promise_08_an_owner_that_lost_its_epoch_writes_nothing(self, store: Store) -> None:
        await store.commit(puts={"owner": b"1"}, expects={"owner": None})
        await store.commit(puts={"owner": b"2"}, expects={"owner": b"1"})
        with pytest.raises(ConflictError, match="'owner'"):
            await store.commit([Append("a", 0, (b"0",))], expects={"owner": b"1"})
        await store.commit([Append("a", 0, (b"0",))], expects={"owner": b"2"})
        assert await store.get("owner") == b"2"

    async def test_a_commit_goes_on_when_nobody_waits_for_it(self, store: Store) -> None:
        waiting = asyncio.create_task(store.commit([Append("a", 0, (b"0",))]))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await store.read("a") == [b"0"]

    async def test_forgotten_runs_are_gone_and_others_stay(self, store: Store) -> None:
        await store.commit([Append("a", 0, (b"0",)), Append("b", 0, (b"0",))])
        await store.forget(["a", "never-there"])
        assert await store.runs() == {"b": 1}
        assert await store.read("a") == []

    async def test_what_was_committed_is_there_when_it_is_opened_again(self, store: Store, reopen: Reopen) -> None:
        await store.commit([Append("a", 0, (b"\x00\xff", b""))], puts={"owner": b"1"})
        again = await reopen(store)
        assert await again.read("a") == [b"\x00\xff", b""]
        assert await again.get("owner") == b"1"
