"""`./luftpause bench fidelity`: floods on real engines and the same in the simulator, side by side.

The simulator's constants are fitted to sweeps (`sweeps`, `fit`) on the same engines; the floods are not among what
they are fitted to.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from fakes.engine import profile_file
from fakes.engine.latency import Profile
from loadgen.compare import arms, figures, show, table
from loadgen.compare.contest import Entry, Rules, look
from loadgen.compare.engines import fresh
from loadgen.compare.figures import CLASSES, Bar
from loadgen.compare.flood import groups
from loadgen.compare.processes import ProcessError
from loadgen.driver import open_session
from loadgen.workload import Group, Workload
from simulator.arms import named
from simulator.fit import Batch, Fit, fit, typical, with_constants
from simulator.sweeps import Limits, Sweep, outline
from simulator.world import World, play

PLAYS = 5
"""Seeds that are simulated; their medians are compared, so that all the noise is the engines'."""
RATIO_OFF_MAX = 0.15
SHARE_OFF_MAX = 0.10
JUDGED = {"runs_per_min": RATIO_OFF_MAX, "run_s_p50": RATIO_OFF_MAX, "cached_share": SHARE_OFF_MAX}
"""Figures that are compared, and how far apart they may be: relative to the real one, the cached share in points."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """What is asked for."""

    engines: tuple[str, ...]
    """Their origins."""
    rules: Rules
    """Of the floods, on these engines."""
    loads: tuple[tuple[int, int], ...]
    """Interactive and batch agents of each flood."""
    workload: Workload
    limits: Limits
    profile: Profile | None
    """Used in place of a fitted one; None: fit one."""
    write: pathlib.Path | None
    """Where the profile is written; None: nowhere."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A profile, and what it was fitted to where it was."""

    profile: Profile
    fit: Fit | None = None
    batches: tuple[Batch, ...] = ()

    def residuals(self) -> list[dict[str, Any]]:
        """For each batch the seconds that a turn took, those by the fit, and how far that is off."""
        if self.fit is None:
            return []
        return [
            {
                "what": batch.label,
                "real_s": round(batch.seconds, 4),
                "fitted_s": round(predicted_s, 4),
                "off": round(predicted_s / batch.seconds - 1, 3),
            }
            for batch, predicted_s in zip(self.batches, self.fit.predicted_s, strict=True)
        ]


def main(asked: Fidelity, json_to: pathlib.Path | None) -> int:
    """Measures and prints: 0 if every figure is as near as it must be, else 1; 130 after Ctrl-C."""

    def work() -> int:
        fitted = Fitted(asked.profile) if asked.profile else show.run(_fit(asked))
        if asked.write is not None:
            profile_file.write(fitted.profile, asked.write)
        report: dict[str, Any] = {
            "profile": asdict(fitted.profile),
            "constants": fitted.fit.constants if fitted.fit else None,
            "residuals": fitted.residuals(),
            "settings": asked.rules.as_json(),
        }
        if json_to != pathlib.Path("-"):
            _print_fit(report)
        rows, bars, broken_off = _floods(asked, fitted.profile) if asked.loads else ([], [], None)
        passed = broken_off is None and all(bar.holds for bar in bars)
        report |= {"loads": rows, "bars": [bar.as_json() for bar in bars], "passed": passed}
        if json_to == pathlib.Path("-"):
            print(json.dumps(report))
        else:
            if json_to is not None:
                json_to.write_text(json.dumps(report, indent=1) + "\n")
            _print_floods(rows, bars)
        if broken_off is not None:
            print(f"luftpause: broken off: {broken_off}", file=sys.stderr)
        return 0 if passed else 1

    return show.guarded(work)


async def _fit(asked: Fidelity) -> Fitted:
    """A profile of the engines by sweeps on them. Raises ProcessError."""
    rules = asked.rules
    serves = await look(rules)
    async with open_session(None) as session, fresh(asked.engines, session, rules.environment, pathlib.Path()) as urls:
        told = await outline(session, urls[0], serves, asked.limits)
        sweep = Sweep(session, urls, rules.model or serves.model, told, rules.seed)
        swept = await sweep.run(asked.workload, lambda what: print(f"sweeps: {what}", file=sys.stderr, flush=True))
    try:
        batches = typical(swept.batches)
        found = fit(batches, told)
        texts = swept.texts(asked.workload.growth_chars)
    except ValueError as error:
        raise ProcessError(f"the sweeps cannot be fitted: {error}") from None
    profile = with_constants(replace(told, texts=texts), found.constants)
    return Fitted(profile, found, tuple(batches))


def _groups(load: tuple[int, int], workload: Workload) -> tuple[Group, ...]:
    return tuple(group for each, count in zip(CLASSES, load, strict=True) for group in groups(each, count, 1, workload))


def _floods(asked: Fidelity, profile: Profile) -> tuple[list[dict[str, Any]], list[Bar], str | None]:
    """Each figure of each load and class, real and simulated; the bars; why it was broken off."""
    rules, workload = asked.rules, asked.workload
    by_name = {f"{interactive}+{batch}": (interactive, batch) for interactive, batch in asked.loads}
    entries = [Entry(name, arms.ROUTER, _groups(load, workload)) for name, load in by_name.items()]
    measured = show.perform(rules, lambda _serves: entries)
    real = figures.report(measured.samples, None)["entries"]
    errors = table.faults({"entries": real})
    simulated = figures.report(
        {
            entry.name: [
                play(World(profile, len(asked.engines), entry.groups), named("router"), seed, rules.timing).sample
                for seed in range(rules.seed, rules.seed + PLAYS)
            ]
            for entry in entries
        },
        None,
    )["entries"]
    rows: list[dict[str, Any]] = []
    bars = []
    for name in by_name:
        for run_class, of in real[name].items():
            for quantity in JUDGED:
                row, bar = _compared(name, run_class, quantity, of, simulated[name][run_class])
                rows.append(row)
                bars.append(bar)
    return rows, bars, measured.broken_off or (errors[0] if errors else None)


def _compared(
    load: str, run_class: str, quantity: str, real: Mapping[str, Any], simulated: Mapping[str, Any]
) -> tuple[dict[str, Any], Bar]:
    ours, theirs = (of[quantity] and of[quantity]["median"] for of in (simulated, real))
    off = None
    if ours is not None and theirs is not None:
        off = ours - theirs if quantity == "cached_share" else figures.ratio(ours - theirs, theirs)
    title = figures.QUANTITIES[quantity]
    row = {"load": load, "class": run_class, "figure": title, "real": theirs, "simulated": ours, "off": off}
    seen = None if off is None else round(abs(off), 4)
    return row, Bar(f"{load}: {run_class} {title}, off by", JUDGED[quantity], seen, is_most=True)


def _print_fit(report: Mapping[str, Any]) -> None:
    console = Console(highlight=False)
    if report["constants"]:
        shown = Table(title="sweeps: seconds of a turn, measured (median) and by the fit", title_justify="left")
        for title in ("", "real s", "fitted s", "off"):
            shown.add_column(title, justify="right" if title else "left")
        for row in report["residuals"]:
            seconds = (f"{row['real_s']:.3f}", f"{row['fitted_s']:.3f}")
            shown.add_row(row["what"], *seconds, f"{row['off']:+.1%}")
        console.print(shown)
        for name, value in report["constants"].items():
            console.print(f"{name:>10} {value * 1e6:12.4f} µs", markup=False)
    texts = report["profile"]["texts"]
    told = ", ".join(f"{name} {value:.2f}" for name, value in texts.items())
    console.print(f"profile {report['profile']['name']}: {told}", markup=False)


def _print_floods(rows: Sequence[Mapping[str, Any]], bars: Sequence[Bar]) -> None:
    if not rows:
        return
    console = Console(highlight=False)
    shown = Table(title="floods through a plain router", title_justify="left")
    for title in ("load", "class", "figure", "real", "simulated", "off"):
        shown.add_column(title, justify="right" if title in ("real", "simulated", "off") else "left")
    for row in rows:
        values = ("–" if row[key] is None else f"{row[key]:.3g}" for key in ("real", "simulated"))
        shown.add_row(
            row["load"], row["class"], row["figure"], *values, "–" if row["off"] is None else f"{row['off']:+.1%}"
        )
    console.print(shown)
    for verdict in table.verdicts(bars):
        console.print(verdict, markup=False)
