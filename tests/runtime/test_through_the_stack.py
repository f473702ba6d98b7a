"""A runtime whose turns go through the real dataplane and scheduler."""

from __future__ import annotations

import asyncio
import pathlib

import aiohttp
import pytest

from runtime.llm import Model
from runtime.orders import SpawnRequest
from runtime.service import Runtime
from runtime.sqlite_store import SqliteStore
from tests.runtime.rig import ScriptedToolbox
from tests.stack import Stack, running_stack
from tests.waiting import wait_until


@pytest.mark.e2e
def test_turns_of_a_run_keep_their_replica_and_the_scheduler_forgets_the_run_at_its_end(tmp_path: pathlib.Path) -> None:
    settings = {"LUFTPAUSE_ENGINE_SPEED": "20", "LUFTPAUSE_TOKEN": "secret"}
    with running_stack(tmp_path, replicas=2, settings=settings) as stack:
        asyncio.run(one_run(tmp_path, stack))


async def one_run(folder: pathlib.Path, stack: Stack) -> None:
    """Spawns one run of three turns, and looks at what engines and scheduler know afterwards."""
    store = await SqliteStore.open(folder / "runs.db")
    async with (
        Model(stack.base_url.removesuffix("/v1"), "secret") as model,
        aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as http,
    ):
        toolbox = ScriptedToolbox()
        runtime = await Runtime.start(store, model, toolbox)
        task = "CALL lookup {}\nCALL save {}\n" + "x" * 4000
        handle = (await runtime.spawn(SpawnRequest(task), "me")).run.run_id
        await runtime.await_([handle])
        run = await runtime.read(handle)
        assert run.state == "Completed", run.end
        assert run.order.model == "fake-1b"
        assert run.usage.turns == 3
        assert run.usage.cached_tokens > 0

        async def forgotten() -> bool:
            async with http.get(stack.status_url + "/status") as answer:
                runs: list[int] = [count["runs"] for count in (await answer.json())["runs"]]
                return sum(runs) == 0

        await wait_until(forgotten, 10, "the scheduler forgets the run")
        await runtime.close()
        await toolbox.close()
    await store.close()
