"""A replica without limits that answers 429 is left alone meanwhile, and asked again afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from loadgen.chaos_rig import Rig
from tests.e2e.clients import Client, chat, named, script, wait_healthy
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

REFUSES_S = 8.0
"""A minute, in small. Without a word the replica is asked after 1, 2 and 4 s."""
AT_ONCE = 4
PAUSE_S = 0.05


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    services = ("engine-0", "engine-1", "scheduler", "dataplane-0")
    async with Rig(tmp_path_factory.mktemp("refusing"), services) as running:
        await wait_healthy(running, "engine-0", "engine-1")
        yield running
    assert running.bad_ends == []


@pytest.mark.parametrize(("retry_after", "asked_max"), [(10, 1), (None, 4)], ids=["told", "not told"])
async def test_turns_go_elsewhere_for_as_long_as_it_refuses(rig: Rig, retry_after: int | None, asked_max: int) -> None:
    refusing = rig.links[">engine-0"]
    fault = {"fault": "status", "code": 429} | ({"retry_after": retry_after} if retry_after else {})
    await script(rig, "engine-0", fault)
    asked_before = refusing.request_ids.total()
    statuses: list[int] = []
    until = time.monotonic() + REFUSES_S

    async def agent(number: int, client: Client) -> None:
        turn = 0
        while time.monotonic() < until:
            turn += 1
            answer = await client.ask(chat(), named(f"{retry_after}-{number}-{turn // 3}", f"caller-{number}"))
            statuses.append(answer.status)
            await asyncio.sleep(PAUSE_S)  # the agent's own time

    try:
        async with Client(rig) as client:
            await asyncio.gather(*(agent(number, client) for number in range(AT_ONCE)))
    finally:
        await script(rig, "engine-0")
    asked = refusing.request_ids.total() - asked_before
    assert statuses.count(429) == asked
    assert set(statuses) == {200, 429}
    # Those that were under way together are refused together.
    assert 1 <= asked <= asked_max + AT_ONCE - 1
    assert statuses.count(200) > asked
    await wait_until(lambda: _goes_there(rig), what="it is asked again")


async def _goes_there(rig: Rig) -> bool:
    """Whether a turn of a new run is answered by the replica, which was left alone until then at most."""
    link = rig.links[">engine-0"]
    before = link.request_ids.total()
    async with Client(rig) as client:
        answer = await client.ask(chat(), {})
        await client.end_run(answer.headers["x-luftpause-run-id"], "")
    return answer.status == 200 and link.request_ids.total() > before
