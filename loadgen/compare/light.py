"""`./luftpause bench light`: under a light load, where nothing can be won, nothing may be lost to a plain router.

The two arms take turns in pairs. A bar holds only where the whole 95 % interval over pairs does: where a figure is too
noisy to tell, more pairs or longer measurements are the answer.
"""

from __future__ import annotations

from loadgen.compare import arms, figures, show
from loadgen.compare.contest import Entry, Rules
from loadgen.compare.figures import CLASSES, QUANTITIES, Bar
from loadgen.compare.flood import groups
from loadgen.compare.pairs import worse
from loadgen.workload import Workload

AGENTS = 4
"""Of each class."""
WORSE_MAX = 1.03


def main(rules: Rules, workload: Workload, files: show.Files) -> int:
    """Measures and prints: 0 if no figure is worse by more than 3 %, else 1; 130 after an early Ctrl-C."""
    both = tuple(group for each in CLASSES for group in groups(each, AGENTS, 1, workload))
    entries = [Entry(arm.name, arm, both) for arm in (arms.ROUTER, arms.LUFTPAUSE)]

    def work() -> int:
        measured = show.perform(rules, lambda _serves: entries)
        ours, theirs = measured.samples[arms.LUFTPAUSE.name], measured.samples[arms.ROUTER.name]
        bars = []
        for run_class in CLASSES:
            for name, found in worse(ours, theirs, run_class).items():
                told = f" (mean {found.mean:.3g}, 95 % {found.low:.3g} to {found.high:.3g})" if found else ""
                what = f"{run_class} {QUANTITIES[name]}, so many times worse than the router's{told}"
                bars.append(Bar(what, WORSE_MAX, found.high if found else None, is_most=True))
        report = figures.report(measured.samples, arms.ROUTER.name) | {"settings": rules.as_json()}
        return show.result(measured, report, bars, files)

    return show.guarded(work)
