"""Figures of a load, from its tallies: as a JSON object, and as tables. Pure. The keys are documented at `figures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from loadgen.record import Histogram, Tally
from loadgen.workload import Group

PERCENTS = (50, 90, 99)


def figures(group: Group, tally: Tally, seconds: float) -> dict[str, Any]:
    """One group's figures over the `seconds` that were measured.

    - `class`, `caller`, `agents`: the group; `seconds`: the time measured, warm-up not included
    - `runs`, `runs_failed`, `runs_per_min`: runs that ended within that time; `turns`: whole turns
    - `run_s`, `turn_s`, `ttft_s`, `itl_s`: `{"count", "mean", "p50", "p90", "p99"}` in seconds, null where nothing was
      measured. A run's latency includes its tools; a turn's and TTFT include holding and retries; ITL is the mean time
      between two tokens of a turn. Percentiles are right to 0.5 %.
    - `prompt_tokens`, `cached_tokens`, `completion_tokens`: sums; `tokens_per_s`: of completion tokens
    - `cached_share`: cached ÷ prompt tokens, 0 to 1; null where no engine told its usage
    - `errors`: failed turns by kind; `error_messages`: what the server said of the first one of a kind
    - `retries`: attempts answered with 429 or 503, by status
    """
    return {
        "class": group.run_class,
        "caller": group.caller,
        "agents": group.agents,
        "seconds": round(seconds, 3),
        "runs": tally.runs,
        "runs_failed": tally.runs_failed,
        "runs_per_min": round(60 * tally.runs / seconds, 3) if seconds > 0 else 0.0,
        "turns": tally.turns,
        "run_s": _spread(tally.run_s),
        "turn_s": _spread(tally.turn_s),
        "ttft_s": _spread(tally.ttft_s),
        "itl_s": _spread(tally.itl_s),
        "prompt_tokens": tally.prompt_tokens,
        "cached_tokens": tally.cached_tokens,
        "completion_tokens": tally.completion_tokens,
        "tokens_per_s": round(tally.completion_tokens / seconds, 3) if seconds > 0 else 0.0,
        "cached_share": round(tally.cached_tokens / tally.prompt_tokens, 4) if tally.prompt_tokens else None,
        "errors": dict(tally.errors),
        "error_messages": dict(tally.messages),
        "retries": dict(tally.retries),
    }


def _spread(histogram: Histogram) -> dict[str, float | int | None]:
    values: dict[str, float | int | None] = {"count": histogram.count, "mean": None}
    if histogram.count:
        values["mean"] = round(histogram.total / histogram.count, 6)
    for percent in PERCENTS:
        value = histogram.percentile(percent)
        values[f"p{percent}"] = None if value is None else round(value, 6)
    return values


def line(report: dict[str, Any]) -> str:
    """One group in one line, for logs."""
    return (
        f"{report['seconds']:.0f} s  {report['class']}: {report['runs']} runs ({report['runs_per_min']:.1f}/min), "
        f"{report['turns']} turns, run p50 {_seconds(report['run_s']['p50'])}, "
        f"first token p50 {_seconds(report['ttft_s']['p50'])}, cached {_share(report['cached_share'])}, "
        f"errors: {_errors(report)}"
    )


def table(reports: Sequence[dict[str, Any]], title: str) -> Table:
    """The groups side by side."""
    shown = Table(title=title, title_justify="left", show_header=True)
    shown.add_column("")
    for report in reports:
        shown.add_column(f"{report['agents']} {report['class']} agents", justify="right")

    def row(name: str, *cells: str) -> None:
        shown.add_row(name, *cells)

    row("seconds measured", *(f"{r['seconds']:.1f}" for r in reports))
    row("runs", *(f"{r['runs']} ({r['runs_per_min']:.1f} a minute)" for r in reports))
    row("turns", *(str(r["turns"]) for r in reports))
    names = {"run_s": "run", "turn_s": "turn", "ttft_s": "first token", "itl_s": "between tokens"}
    for key, name in names.items():
        row(f"{name} p50 / p90 / p99", *(" / ".join(_seconds(r[key][f"p{p}"]) for p in PERCENTS) for r in reports))
    row("completion tokens", *(f"{r['completion_tokens']} ({r['tokens_per_s']:.1f} a second)" for r in reports))
    row("prompt tokens", *(f"{r['prompt_tokens']} ({_share(r['cached_share'])} cached)" for r in reports))
    row("errors", *(_errors(r) for r in reports))
    row("retries", *(_counts(r["retries"]) for r in reports))
    return shown


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def faults(report: dict[str, Any]) -> str:
    """What went wrong, in one line; also why there was no good turn."""
    told = [f"errors: {_errors(report)}"] if report["errors"] else []
    told += [f"retried: {_counts(report['retries'])}"] if report["retries"] else []
    return "; ".join(told) or "no errors, none had ended"


def _errors(report: dict[str, Any]) -> str:
    said = report["error_messages"]
    return _counts({f"{kind}: {said[kind]}" if kind in said else kind: n for kind, n in report["errors"].items()})


def _counts(by_kind: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(by_kind.items())) or "none"
