"""The agents beside `bench decide`, in a process of their own: `python -m loadgen.decide_agents`.

Orders are `{"do": "start", "base_url", "model", "agents"}` and `{"do": "look"}`; both are answered with the
turns so far and those that failed. The end of the input ends them.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import uvloop

from loadgen.driver import Load, Target
from loadgen.relay_orders import obey
from loadgen.workload import Group, Workload


async def main() -> None:
    """Obeys until the input ends."""
    async with contextlib.AsyncExitStack() as opened:
        loads: list[Load] = []

        async def answer(order: dict[str, Any]) -> dict[str, Any]:
            if order["do"] == "start":
                group = Group(order["agents"], "interactive", "agents", Workload())
                load = Load(Target(order["base_url"], order["model"]), [group], seed=1)
                loads.append(await opened.enter_async_context(load))
            tallies = [tally for load in loads for tally in load.tallies]
            return {
                "turns": sum(tally.turns for tally in tallies),
                "errors": sum(tally.errors.total() for tally in tallies),
            }

        await obey(answer)


if __name__ == "__main__":
    sys.exit(uvloop.run(main()))
