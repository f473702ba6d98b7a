"""`./luftpause bench routing`: a pool with room for all, where finding the prefix again is all that a router can do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from loadgen.compare import arms, figures, show
from loadgen.compare.arms import ArmError
from loadgen.compare.contest import Entry, Rules
from loadgen.compare.figures import Bar
from loadgen.compare.flood import groups
from loadgen.workload import Workload

AGENTS = 8
CACHE_AWARE = "smg:cache_aware"
EQUAL = 0.97
"""Runs a minute of the same router differ by so much from one measurement to the next."""
EQUAL_SHARE = 0.02
"""Cached shares likewise."""


def main(rules: Rules, workload: Workload, find: Callable[[str], str | None], files: show.Files) -> int:
    """Measures and prints: 0 if affinity is not behind a cache-aware router (where one is installed) and ahead of
    engines in turn, else 1; 130 after an early Ctrl-C."""

    def work() -> int:
        compared = [arms.ROUND_ROBIN, arms.LUFTPAUSE]
        try:
            compared.insert(1, arms.named(CACHE_AWARE, find))
        except ArmError as error:
            print(f"luftpause: left out, and its bars with it: {error}", file=sys.stderr)
        agents = tuple(groups("interactive", AGENTS, 1, workload))
        entries = [Entry(arm.name, arm, agents) for arm in compared]
        measured = show.perform(rules, lambda _serves: entries)
        report = figures.report(measured.samples, arms.ROUND_ROBIN.name) | {"settings": rules.as_json()}
        return show.result(measured, report, bars(report["entries"]), files)

    return show.guarded(work)


def bars(entries: Mapping[str, Any]) -> list[Bar]:
    """Bars on luftpause against each of the others."""
    found = []
    for other, runs_least, share_least in ((CACHE_AWARE, EQUAL, -EQUAL_SHARE), (arms.ROUND_ROBIN.name, 1.0, 0.0)):
        if other not in entries:
            continue
        ours, theirs = entries[arms.LUFTPAUSE.name], entries[other]
        runs = figures.ratio(_median(ours, "runs_per_min"), _median(theirs, "runs_per_min"))
        found.append(Bar(f"luftpause: runs/min ÷ {other}'s", runs_least, runs))
        our_share, their_share = _median(ours, "cached_share"), _median(theirs, "cached_share")
        more = None if our_share is None or their_share is None else our_share - their_share
        found.append(Bar(f"luftpause: cached share − {other}'s", share_least, more))
    return found


def _median(of: Mapping[str, Any], quantity: str) -> float | None:
    over = of["interactive"][quantity]
    return float(over["median"]) if over else None
