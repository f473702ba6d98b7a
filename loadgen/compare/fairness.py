"""`./luftpause bench fairness`: what a caller gets beside others that want more, and batch beside people who wait.

Sub-agents carry the caller of the run that spawned them, so twenty children are twenty runs of one caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadgen.compare import arms, figures, show
from loadgen.compare.contest import Entry, Rules
from loadgen.compare.figures import Bar, Sample, median, ratio
from loadgen.workload import Group, RunClass, Workload

MANY, FEW = "many", "few"
"""Callers."""
SHARE_MIN = 0.8
"""Of what a caller with little to do would get from a fair pool."""
SHARE_MAX = 1.25
"""Of a caller with many runs, against one with fewer runs that could use more as well."""
TRICKLE_MIN = 0.05

FLOOD, QUIET, BOTH = "many alone", "few alone", "many and few"
CHILDREN = "20 children and 10 runs"
BATCH, BESIDE = "batch alone", "batch beside 40 interactive"


def entries(workload: Workload) -> list[Entry]:
    """All that is measured, through luftpause."""

    def of(agents: int, run_class: RunClass, caller: str) -> Group:
        return Group(agents, run_class, caller, workload)

    scenes: dict[str, Sequence[Group]] = {
        FLOOD: [of(40, "batch", MANY)],
        QUIET: [of(2, "batch", FEW)],
        BOTH: [of(40, "batch", MANY), of(2, "batch", FEW)],
        CHILDREN: [of(20, "batch", MANY), of(10, "batch", FEW)],
        BATCH: [of(8, "batch", FEW)],
        BESIDE: [of(40, "interactive", MANY), of(8, "batch", FEW)],
    }
    return [Entry(name, arms.LUFTPAUSE, tuple(groups)) for name, groups in scenes.items()]


def bars(samples: Mapping[str, Sequence[Sample]]) -> list[Bar]:
    """The bars, by medians over repeats."""

    def runs(entry: str, run_class: str, caller: str) -> float | None:
        return median(samples[entry], run_class, "runs_per_min", caller)

    alone, saturated = runs(QUIET, "batch", FEW), runs(FLOOD, "batch", MANY)
    fair = None if alone is None or saturated is None else min(alone, saturated / 2)
    return [
        Bar(
            "2 runs beside 40 of another caller: runs/min ÷ the smaller of those alone and half the pool's",
            SHARE_MIN,
            ratio(runs(BOTH, "batch", FEW), fair),
        ),
        Bar(
            "20 children of one parent: tokens/s ÷ those of another caller's 10 runs",
            SHARE_MAX,
            ratio(
                median(samples[CHILDREN], "batch", "tokens_per_s", MANY),
                median(samples[CHILDREN], "batch", "tokens_per_s", FEW),
            ),
            is_most=True,
        ),
        Bar(
            "batch beside 40 interactive runs: tokens/s ÷ those alone",
            TRICKLE_MIN,
            ratio(
                median(samples[BESIDE], "batch", "tokens_per_s"),
                median(samples[BATCH], "batch", "tokens_per_s"),
            ),
        ),
    ]


def main(rules: Rules, workload: Workload, files: show.Files) -> int:
    """Measures and prints: 0 if all bars hold, else 1; 130 after an early Ctrl-C."""

    def work() -> int:
        measured = show.perform(rules, lambda _serves: entries(workload))
        report = figures.report(measured.samples, None) | {"settings": rules.as_json()}
        return show.result(measured, report, bars(measured.samples), files)

    return show.guarded(work)
