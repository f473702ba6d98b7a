"""Figures of a comparison: medians and spread over repeats, ratios to the plain router, bars. Pure.

The keys are documented at `report`. Read next: `table` and `picture`, which show a report.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.record import Tally, merged
from loadgen.workload import Group, RunClass

CLASSES: tuple[RunClass, ...] = ("interactive", "batch")
RUNS_FOR_P99 = 300
"""A 99th percentile of fewer values is hardly more than their largest."""
QUANTITIES = {
    "runs_per_min": "runs/min",
    "run_s_p50": "run p50",
    "run_s_p90": "run p90",
    "ttft_s_p50": "first token p50",
    "ttft_s_p90": "first token p90",
    "cached_share": "cached",
    "tokens_per_s": "tokens/s",
}
"""Figures of a class with a median and a spread, and their titles."""
LESS_IS_BETTER = ("run_s_p50", "run_s_p90", "ttft_s_p50", "ttft_s_p90")


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: what happened to each group within so many seconds."""

    seconds: float
    groups: tuple[tuple[Group, Tally], ...]

    def tally(self, run_class: str) -> Tally:
        """All of one class."""
        return merged(tally for group, tally in self.groups if group.run_class == run_class)


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that must hold; `seen` is None where it could not be measured, which misses it."""

    what: str
    bound: float
    seen: float | None
    is_most: bool = False
    """Whether `bound` is the most that may be seen; else it is the least."""

    @property
    def holds(self) -> bool:
        """Whether it does."""
        if self.seen is None:
            return False
        return self.seen <= self.bound if self.is_most else self.seen >= self.bound

    def as_json(self) -> dict[str, Any]:
        """For a report."""
        return {
            "what": self.what,
            "most" if self.is_most else "least": self.bound,
            "seen": self.seen,
            "holds": self.holds,
        }


def report(samples: Mapping[str, Sequence[Sample]], yardstick: str | None) -> dict[str, Any]:
    """The figures of each entry: `{"yardstick", "entries": {name: {class: figures}}}`. For each class that it has:

    - each of QUANTITIES: `{"median", "min", "max"}` over the repeats, null where nothing was measured. Runs count in
      the measurement that they end in; a run's latency includes its tools; seconds
    - `x_<quantity>`: the same of its ratio to the yardstick's figure in the same repeat; absent without a yardstick
    - `p99`: `{"runs", "run_s", "turns", "ttft_s"}` over all repeats together, with the number of values they come from
    - `agents`: their number; `runs`: how many ended, by repeat
    - `errors`, `retries`: counts by kind over all repeats; `runs_failed`
    - `callers`: number of callers; `fairness`: Jain's index over their tokens for each agent (1: all equal, 1/n: one
      gets all), a median and spread; null with fewer than two
    """
    entries: dict[str, Any] = {}
    base_samples = samples.get(yardstick or "", ())
    base = _by_class(base_samples) if base_samples else {}
    for name, of_entry in samples.items():
        entries[name] = {}
        for run_class, tallies in _by_class(of_entry).items():
            figures = _class_figures(of_entry, run_class, tallies)
            if run_class in base and name != yardstick:
                figures |= _ratios(of_entry, tallies, base_samples, base[run_class])
            entries[name][run_class] = figures
    return {"yardstick": yardstick if base else None, "entries": entries}


def _by_class(samples: Sequence[Sample]) -> dict[str, list[Tally]]:
    present = [each for each in CLASSES if any(group.run_class == each for group, _ in samples[0].groups)]
    return {each: [sample.tally(each) for sample in samples] for each in present}


def _class_figures(samples: Sequence[Sample], run_class: str, tallies: Sequence[Tally]) -> dict[str, Any]:
    repeats = [quantities(tally, sample.seconds) for sample, tally in zip(samples, tallies, strict=True)]
    figures: dict[str, Any] = {name: spread(repeat[name] for repeat in repeats) for name in QUANTITIES}
    whole = merged(tallies)
    figures["p99"] = {
        "runs": whole.run_s.count,
        "run_s": _rounded(whole.run_s.percentile(99)),
        "turns": whole.ttft_s.count,
        "ttft_s": _rounded(whole.ttft_s.percentile(99)),
    }
    figures["agents"] = sum(group.agents for group, _ in samples[0].groups if group.run_class == run_class)
    figures["runs"] = [tally.runs for tally in tallies]
    figures |= {"errors": dict(whole.errors), "retries": dict(whole.retries), "runs_failed": whole.runs_failed}
    figures["error_messages"] = whole.messages
    shares = [caller_shares(sample, run_class) for sample in samples]
    figures["callers"] = len(shares[0])
    figures["fairness"] = spread(jain(list(each.values())) for each in shares) if len(shares[0]) > 1 else None
    return figures


def quantities(tally: Tally, seconds: float) -> dict[str, float | None]:
    """QUANTITIES of one measurement."""
    return {
        "runs_per_min": 60 * tally.runs / seconds,
        "run_s_p50": tally.run_s.percentile(50),
        "run_s_p90": tally.run_s.percentile(90),
        "ttft_s_p50": tally.ttft_s.percentile(50),
        "ttft_s_p90": tally.ttft_s.percentile(90),
        "cached_share": tally.cached_tokens / tally.prompt_tokens if tally.prompt_tokens else None,
        "tokens_per_s": tally.completion_tokens / seconds,
    }


def _ratios(
    samples: Sequence[Sample], tallies: Sequence[Tally], base_samples: Sequence[Sample], base_tallies: Sequence[Tally]
) -> dict[str, Any]:
    ours = [quantities(tally, sample.seconds) for sample, tally in zip(samples, tallies, strict=True)]
    theirs = [quantities(tally, sample.seconds) for sample, tally in zip(base_samples, base_tallies, strict=True)]
    return {
        f"x_{name}": spread(ratio(a[name], b[name]) for a, b in zip(ours, theirs, strict=True)) for name in QUANTITIES
    }


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """`ours` ÷ `theirs`; None where one is missing or `theirs` is 0."""
    return ours / theirs if ours is not None and theirs else None


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Median, least and largest of those that are there; None if none is."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    values_by_name = {"median": statistics.median(found), "min": min(found), "max": max(found)}
    return {name: round(value, 4) for name, value in values_by_name.items()}


def median(samples: Sequence[Sample], run_class: str, quantity: str, caller: str | None = None) -> float | None:
    """The median over repeats of one quantity of a class; with `caller`, of that caller alone. None: never measured."""
    found = []
    for sample in samples:
        of = [t for g, t in sample.groups if g.run_class == run_class and caller in (None, g.caller)]
        found.append(quantities(merged(of), sample.seconds)[quantity])
    over = spread(found)
    return over["median"] if over else None


def caller_shares(sample: Sample, run_class: str) -> dict[str, float]:
    """Tokens that the callers of a class got, prompt and reply, for each of their agents."""
    tokens: dict[str, float] = {}
    agents: dict[str, int] = {}
    for group, tally in sample.groups:
        if group.run_class == run_class:
            got = tally.prompt_tokens + tally.completion_tokens
            tokens[group.caller] = tokens.get(group.caller, 0.0) + got
            agents[group.caller] = agents.get(group.caller, 0) + group.agents
    return {caller: tokens[caller] / agents[caller] for caller in tokens}


def jain(shares: Sequence[float]) -> float | None:
    """Jain's fairness index: 1 where all are equal, 1/n where one has everything; None where nobody has anything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else None


def judge(seen: Mapping[str, Any], entry: str, required: Mapping[str, float]) -> list[Bar]:
    """Bars of `required` on `entry` of a report; keys are those of `REQUIREMENTS`."""
    return [_bar(seen["entries"], seen["yardstick"], entry, key, value) for key, value in required.items()]


REQUIREMENTS = {
    "interactive": "interactive runs/min, at least so many times the router's",
    "batch": "batch runs/min, at least so many times the router's",
    "p90": "interactive run p90, at most so many times that of the entry `alone`",
    "peers": "interactive and batch runs/min, each at least so many times the best peer's",
}
"""Keys of --require."""


def _bar(entries: Mapping[str, Any], yardstick: str | None, entry: str, key: str, value: float) -> Bar:
    own = entries[entry]
    if key in CLASSES:
        over = own.get(key, {}).get("x_runs_per_min")
        return Bar(f"{entry}: {key} runs/min ÷ {yardstick}'s", value, over and over["median"])
    if key == "p90":
        alone = _median(entries.get("alone", {}), "interactive", "run_s_p90")
        seen = ratio(_median(own, "interactive", "run_s_p90"), alone)
        return Bar(f"{entry}: interactive run p90 ÷ alone", value, seen, is_most=True)
    assert key == "peers", key
    best: dict[str, float] = {}
    for name, figures in entries.items():
        if name not in (entry, yardstick, "alone"):
            for each in CLASSES:
                best[each] = max(best.get(each, 0.0), _median(figures, each, "runs_per_min") or 0.0)
    ratios = [ratio(_median(own, each, "runs_per_min"), best.get(each)) for each in CLASSES if each in own]
    known = [each for each in ratios if each is not None]
    seen = min(known) if known and len(known) == len(ratios) else None
    return Bar(f"{entry}: runs/min ÷ the best peer's, the worse class", value, seen)


def _median(figures: Mapping[str, Any], run_class: str, quantity: str) -> float | None:
    over = figures.get(run_class, {}).get(quantity)
    return float(over["median"]) if over else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
