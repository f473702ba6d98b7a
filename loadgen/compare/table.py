"""A comparison as tables: one a class, an entry a row. Pure. docs/benchmarks.md tells how to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from loadgen.compare.figures import CLASSES, RUNS_FOR_P99, Bar

_NONE = "–"


def tables(report: Mapping[str, Any]) -> list[Table]:
    """A table for each class that the report has."""
    entries = report["entries"]
    return [_table(report, run_class) for run_class in CLASSES if any(run_class in each for each in entries.values())]


def _table(report: Mapping[str, Any], run_class: str) -> Table:
    yardstick = report["yardstick"]
    table = Table(title=f"{run_class} runs", title_justify="left")
    table.add_column("")
    times = [f"× {yardstick}"] if yardstick else []
    titles = [
        "runs/min",
        *times,
        "run p50 s",
        "run p90 s",
        "run p99 s",
        "first token\np50 / p90 s",
        "cached",
        "tokens/s",
    ]
    shares = any(of[run_class]["fairness"] for of in report["entries"].values() if run_class in of)
    for title in [*titles, *(["fairness"] if shares else []), "errors"]:
        table.add_column(title, justify="right")
    for name, figures in report["entries"].items():
        if run_class not in figures:
            continue
        of = figures[run_class]
        ratio = [_spread(of.get("x_runs_per_min"), 2)] if yardstick else []
        first = " / ".join(_spread(of[f"ttft_s_p{p}"], 2, with_range=False) for p in (50, 90))
        table.add_row(
            Text(name),
            _spread(of["runs_per_min"], 1),
            *ratio,
            _spread(of["run_s_p50"], 1),
            _spread(of["run_s_p90"], 1),
            _p99(of["p99"]),
            first,
            _share(of["cached_share"]),
            _spread(of["tokens_per_s"], 0, with_range=False),
            *([_spread(of["fairness"], 2, with_range=False)] if shares else []),
            str(sum(of["errors"].values())),
        )
    return table


def _spread(over: Mapping[str, float] | None, digits: int, *, with_range: bool = True) -> str:
    if over is None:
        return _NONE
    median = f"{over['median']:.{digits}f}"
    if not with_range or over["min"] == over["max"]:
        return median
    return f"{median} ({over['min']:.{digits}f}–{over['max']:.{digits}f})"


def _share(over: Mapping[str, float] | None) -> str:
    return _NONE if over is None else f"{over['median']:.0%}"


def _p99(p99: Mapping[str, Any]) -> str:
    """With the number of runs it is of, always; without a value where they are too few."""
    value = _NONE if p99["run_s"] is None or p99["runs"] < RUNS_FOR_P99 else f"{p99['run_s']:.1f}"
    return f"{value} of {p99['runs']}"


def faults(report: Mapping[str, Any]) -> list[str]:
    """A line for each kind of error of each entry."""
    return [
        f"{name}, {run_class}: {count} × {kind}" + (f" ({said})" if (said := of["error_messages"].get(kind)) else "")
        for name, figures in report["entries"].items()
        for run_class, of in figures.items()
        for kind, count in sorted(of["errors"].items())
    ]


def doubts(report: Mapping[str, Any]) -> list[str]:
    """A line for each rate that says little, since the measurement was short beside a run."""
    return [
        f"{name}, {run_class}: {min(of['runs'])} runs of {of['agents']} agents ended in a measurement; measure longer"
        for name, figures in report["entries"].items()
        for run_class, of in figures.items()
        if min(of["runs"]) < of["agents"]
    ]


def verdicts(bars: Sequence[Bar]) -> list[str]:
    """A line for each bar."""
    lines = []
    for bar in bars:
        seen = "not measured" if bar.seen is None else f"{bar.seen:.3g}"
        asked = f"{'at most' if bar.is_most else 'at least'} {bar.bound:g}"
        lines.append(f"{'holds ' if bar.holds else 'MISSED'}  {bar.what}: {seen} ({asked})")
    return lines
