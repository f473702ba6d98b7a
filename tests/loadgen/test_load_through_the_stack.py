"""A load through scheduler, dataplane and fake engines: nothing fails, prefixes are found again, runs are forgotten."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest

from loadgen.driver import Load, Target, first_model
from loadgen.workload import Group, ToolStyle, Workload
from tests.stack import Stack, running_stack
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack"), settings={"LUFTPAUSE_ENGINE_SPEED": "10"}) as running:
        yield running


def runs_known(status_url: str) -> int:
    with urllib.request.urlopen(f"{status_url}/status", timeout=2) as answer:  # noqa: S310 - our own URL
        return sum(entry["runs"] for entry in json.load(answer)["runs"])


@pytest.mark.parametrize("tools", ["text", "api"])
async def test_two_groups_share_the_pool_without_a_fault(stack: Stack, tools: ToolStyle) -> None:
    workload = Workload(turns=3, context_chars=2_000, max_tokens=24, tool_s_min=0.0, tool_s_max=0.1, tools=tools)
    target = Target(stack.base_url, await first_model(stack.base_url, None))
    groups = [Group(4, "batch", "a", workload), Group(2, "interactive", "b", workload)]
    async with Load(target, groups, seed=1) as load:
        await wait_until(lambda: all(tally.runs >= 4 for tally in load.tallies), 30)
        load.raise_if_broken()
    for tally in load.tallies:
        assert not tally.errors
        # Two of three turns of a run find the prefix of the one before them.
        assert tally.cached_tokens > 0.4 * tally.prompt_tokens
    await wait_until(lambda: runs_known(stack.status_url) == 0)
