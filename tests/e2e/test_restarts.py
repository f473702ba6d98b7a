"""A scheduler, or a dataplane, that is killed: what was known is known again, and no turn runs twice or is lost."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from loadgen.chaos_check import Seen, judge
from loadgen.chaos_link import HOST
from loadgen.chaos_load import Load
from loadgen.chaos_rig import Rig
from scheduler.state import ORPHAN_LIMIT_S
from tests.e2e.clients import (
    SLOW,
    Client,
    calling,
    chat,
    gauge,
    held,
    home_of,
    in_flight,
    is_once,
    is_quiet,
    named,
    phases,
    script,
    status,
    wait_healthy,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

ENGINES = ("engine-0", "engine-1")
STALL = {"fault": "stall", "seconds": 60, "match": SLOW, "after_tokens": 2}
KILLS = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """Two dataplanes; a replica takes three turns at a time."""
    folder: pathlib.Path = tmp_path_factory.mktemp("restarts")
    services = (*ENGINES, "scheduler", "dataplane-0", "dataplane-1")
    async with Rig(folder, services, max_in_flight=3) as running:
        await wait_healthy(running, *ENGINES)
        yield running
    assert running.bad_ends == []
    assert all("Traceback" not in process.text() for process in running.processes.values())


@pytest_asyncio.fixture(loop_scope="module")
async def clients(rig: Rig) -> AsyncIterator[tuple[Client, Client]]:
    """One at each dataplane; afterwards the engines have no faults, and all runs that a test named are forgotten."""
    async with Client(rig, 0) as first, Client(rig, 1) as second:
        yield first, second
        for engine in ENGINES:
            await script(rig, engine)


async def connected(rig: Rig) -> bool:
    return all([await gauge(rig, "schedulers_connected", number) for number in (0, 1)])


async def both_connected(rig: Rig) -> None:
    await wait_until(lambda: connected(rig), what="both dataplanes are connected")


async def picture(rig: Rig) -> dict[str, Any]:
    """What the scheduler counts."""
    replicas = (await status(rig))["replicas"]
    return {
        **{each["name"]: (each["in_flight"], each["capacity"], each["reserved"]) for each in replicas},
        "phases": await phases(rig),
        "held": await held(rig),
    }


async def end_runs(rig: Rig, client: Client, *runs: str) -> None:
    for run in runs:
        await client.end_run(run)
    await wait_until(lambda: nothing_known(rig))


async def nothing_known(rig: Rig) -> bool:
    return await is_quiet(rig) and not any((await phases(rig)).values())


async def test_affinity_places_and_counts_are_what_they_were(rig: Rig, clients: tuple[Client, Client]) -> None:
    for engine in ENGINES:
        await script(rig, engine, STALL)
    runs = [f"run-{number}" for number in range(4)]
    # Three are paused by their first turns: one that came back at once would teach that they are soon back, or never.
    bodies = [calling(), calling(), calling(), chat()]
    homes = {run: await home_of(rig, clients[n % 2], run, bodies[n]) for n, run in enumerate(runs)}
    # Batch turns: three fill the places that no paused run has, the others are held.
    slow = [
        asyncio.create_task(
            clients[number % 2].ask(chat(SLOW, stream=True), named(f"slow-{number}", run_class="batch"))
        )
        for number in range(6)
    ]
    await wait_until(lambda: three_held(rig))
    before = await picture(rig)
    assert before["phases"] == {"generating": 3, "paused": 3, "idle": 4}
    came = rig.links[">engine-0"].request_ids + rig.links[">engine-1"].request_ids
    rig.kill("scheduler")
    await rig.restart("scheduler")
    await both_connected(rig)
    await wait_healthy(rig, *ENGINES)
    await wait_until(lambda: is_picture(rig, before), what=f"{before}")
    assert came == rig.links[">engine-0"].request_ids + rig.links[">engine-1"].request_ids
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    await wait_until(lambda: is_quiet(rig))
    # A paused run goes on at its home, by whichever dataplane its next turn comes.
    for number, run in enumerate(runs[:3]):
        assert await home_of(rig, clients[1 - number % 2], run) == homes[run]
    assert is_once(rig)
    await end_runs(rig, clients[0], *runs, *(f"slow-{number}" for number in range(6)))


async def three_held(rig: Rig) -> bool:
    return await held(rig) == 3 and sum((await in_flight(rig)).values()) == 3


async def is_picture(rig: Rig, wanted: dict[str, Any]) -> bool:
    seen = await picture(rig)
    assert seen == wanted
    return True


async def test_turns_held_during_the_outage_are_answered_once(rig: Rig, clients: tuple[Client, Client]) -> None:
    rig.kill("scheduler")
    tasks = [asyncio.create_task(clients[number % 2].ask(chat(), named(f"waiting-{number}"))) for number in range(20)]
    await wait_until(lambda: twenty_wait(rig))
    await rig.restart("scheduler")
    answers = await asyncio.gather(*tasks)
    assert [answer.status for answer in answers] == [200] * 20
    assert is_once(rig)
    await end_runs(rig, clients[0], *(f"waiting-{number}" for number in range(20)))


async def twenty_wait(rig: Rig) -> bool:
    return await gauge(rig, "turns_held", 0) + await gauge(rig, "turns_held", 1) == 20


async def test_no_turn_is_lost_or_runs_twice_while_the_scheduler_is_killed_again_and_again(rig: Rig) -> None:
    chance = random.Random(11)
    seen = Seen()
    urls = tuple(f"http://{HOST}:{port}" for port in rig.ports.dataplanes)
    async with Load(urls, 11, seen) as load:
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.3, 1.5))  # the moment of the kill is what is tried here
            rig.kill("scheduler")
            await asyncio.sleep(chance.uniform(0.0, 0.7))
            await rig.restart("scheduler")
        await load.finish(60)
    await wait_until(lambda: is_quiet(rig))
    for engine in ENGINES:
        seen.request_ids.update(rig.links[f">{engine}"].request_ids)
        seen.marks.update(rig.links[f">{engine}"].marks)
    assert judge(seen).faults == {kind: [] for kind in ("lost", "doubled", "stuck", "leaked", "wrong")}
    assert set(seen.turns) == {"answered", "left"}, "a scheduler's end failed a turn"
    assert seen.turns["answered"] > 100
    await wait_until(lambda: nothing_generates(rig))


async def nothing_generates(rig: Rig) -> bool:
    return not (await phases(rig))["generating"]


async def test_turns_of_a_dataplane_that_is_killed_free_their_slots_in_time(
    rig: Rig, clients: tuple[Client, Client]
) -> None:
    for engine in ENGINES:
        await script(rig, engine, STALL)
    slow = [
        asyncio.create_task(clients[0].ask(chat(SLOW, stream=True), named(f"lost-{number}"))) for number in range(6)
    ]
    await wait_until(lambda: six_run(rig))
    waiting = asyncio.create_task(clients[1].ask(chat(), named("waiting")))
    await wait_until(lambda: held(rig))
    killed_at = time.monotonic()
    rig.kill("dataplane-0")
    for answer in await asyncio.gather(*slow, return_exceptions=True):
        assert isinstance(answer, aiohttp.ClientError) or (not isinstance(answer, BaseException) and not answer.whole)
    await rig.restart("dataplane-0")
    assert (await asyncio.wait_for(waiting, ORPHAN_LIMIT_S + 10)).status == 200
    assert ORPHAN_LIMIT_S - 1 < time.monotonic() - killed_at < ORPHAN_LIMIT_S + 5
    await wait_until(lambda: is_quiet(rig))
    assert is_once(rig)


async def six_run(rig: Rig) -> bool:
    return set((await in_flight(rig)).values()) == {3}


async def test_a_run_that_ended_while_a_dataplane_was_cut_off_does_not_come_back_with_it(
    rig: Rig, clients: tuple[Client, Client]
) -> None:
    paused = await paused_runs(rig)
    await clients[0].ask(calling(), named("ended"))
    await wait_until(lambda: are_paused(rig, paused + 1))
    link = rig.links["dataplane-0>scheduler"]
    link.refuse()
    link.reset()
    await wait_until(lambda: first_is_cut_off(rig))
    await clients[1].end_run("ended")
    await wait_until(lambda: are_paused(rig, paused))
    await link.start()
    await both_connected(rig)
    # The resync has been applied when a turn of this dataplane is answered.
    assert (await clients[0].ask(chat(), named("after"))).status == 200
    assert await paused_runs(rig) == paused
    with contextlib.suppress(AssertionError):
        await clients[0].end_run("after")


async def first_is_cut_off(rig: Rig) -> bool:
    return await gauge(rig, "schedulers_connected", 0) == 0


async def paused_runs(rig: Rig) -> int:
    return (await phases(rig)).get("paused", 0)


async def are_paused(rig: Rig, runs: int) -> bool:
    return await paused_runs(rig) == runs
