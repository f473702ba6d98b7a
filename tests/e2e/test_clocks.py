"""A clock on the wall that jumps moves nothing: scheduler and dataplane measure time by the monotonic clock."""

from __future__ import annotations

import ast
import asyncio
import time

import pytest

from scheduler import host
from tests.house.sources import modules
from tests.scheduler.running_host import running_host, turn
from tests.waiting import wait_until

WALL_CLOCK = {"scheduler/__main__.py", "scheduler/spend_ledger.py", "dataplane/pool_view.py"}
"""Modules of the two services that look at it: to number placements above those of schedulers before; to keep spend for
some days; and to read a deadline that a client gives as a date."""


def test_only_what_outlives_a_process_or_comes_as_a_date_is_told_by_the_clock_on_the_wall() -> None:
    reads = {
        module.path
        for module in modules("scheduler", "dataplane")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node)
        in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.datetime.now")
    }
    assert reads == WALL_CLOCK


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
async def test_no_turn_expires_when_the_clock_on_the_wall_jumps(monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    monkeypatch.setattr(host, "TICK_S", 0.01)
    right = time.time
    async with running_host() as running:
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1"), turn("t2")])
        await client.placement("t1")
        monkeypatch.setattr(time, "time", lambda: right() + jump_s)
        events = running.host.tally.events
        ticks = events["Ticked"]
        keeping = asyncio.create_task(running.host.keep_time())
        await wait_until(lambda: events["Ticked"] > ticks + 3)
        keeping.cancel()
        assert set(running.host.state.turns) == {"t1", "t2"}
        assert running.host.tally.expiries == 0
