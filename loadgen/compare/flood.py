"""`./luftpause bench flood`: interactive runs beside a flood of batch runs, through each arm in turn.

Says which entries there are and which bars are asked for; `contest` measures them.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import uvloop

from loadgen.compare import arms, figures, show
from loadgen.compare.arms import Arm, ArmError
from loadgen.compare.contest import Contest, Entry, Rules, Timing, look
from loadgen.compare.engines import Fakes, Served
from loadgen.traces import sessions
from loadgen.workload import Group, RunClass, Workload

ALONE = "alone"
"""The interactive agents without the flood, through the plain router."""
ARMS = (ALONE, arms.ROUTER.name, "smg", "vllm-router", arms.LUFTPAUSE.name)
PEERS = ("smg", "vllm-router")
"""Left out, with a line, where they are not installed and were not asked for by name."""
TRACE_WINDOW_SHARE = 0.6
"""Of the longest prompt, taken by recorded sessions: other tokenisers need more tokens for the same text."""


@dataclass(frozen=True, slots=True)
class Flood:
    """What is asked for."""

    workload: Workload
    timing: Timing
    where: tuple[str, ...] | Fakes
    """Origins of the engines, or the fake ones to start."""
    seed: int
    batch: int = 48
    interactive: int = 4
    callers: int = 1
    """Callers that the agents of a class are divided among."""
    names: tuple[str, ...] | None = None
    """Arms; None: ARMS, as far as they are installed."""
    extra: tuple[Arm, ...] = ()
    """Arms of the user's own."""
    model: str = ""
    """Empty: the first that the first engine serves."""
    end_runs: bool = True
    send_run_id: bool = True
    traces: pathlib.Path | None = None
    """Recorded sessions to replay in place of the workload's sizes and times."""
    scale: float = 50.0
    """What their sizes and times are divided by."""
    required: Mapping[str, float] | None = None
    """Bars on luftpause, by the keys of `figures.REQUIREMENTS`."""


def groups(run_class: RunClass, agents: int, callers: int, workload: Workload) -> list[Group]:
    """`agents` of a class, divided among `callers` as evenly as they go."""
    shares = [agents // callers + (number < agents % callers) for number in range(callers)]
    return [Group(share, run_class, f"{run_class}-{n}", workload) for n, share in enumerate(shares, 1) if share]


def chosen(flood: Flood, find: Callable[[str], str | None]) -> list[Arm | str]:
    """The arms by their order, `ALONE` as itself. Raises ArmError."""
    found: list[Arm | str] = []
    for name in ARMS if flood.names is None else flood.names:
        if name == ALONE:
            found.append(name)
            continue
        own = [arm for arm in flood.extra if arm.name == name]
        try:
            found.append(own[0] if own else arms.named(name, find))
        except ArmError as error:
            if flood.names is not None or name not in PEERS:
                raise
            print(f"luftpause: left out: {error}", file=sys.stderr)
    return found + [arm for arm in flood.extra if arm not in found]


def entries(flood: Flood, of: Sequence[Arm | str], workload: Workload) -> list[Entry]:
    """An entry an arm. Raises ArmError where bars ask for arms that are missing."""
    interactive = groups("interactive", flood.interactive, flood.callers, workload)
    both = (*interactive, *groups("batch", flood.batch, flood.callers, workload))
    made = [
        Entry(each, arms.ROUTER, tuple(interactive)) if isinstance(each, str) else Entry(each.name, each, both)
        for each in of
    ]
    names = [entry.name for entry in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArmError(f"two arms are called '{twice}'")
    for key in flood.required or ():
        needed = {"p90": ALONE}.get(key, arms.ROUTER.name)
        missing = [name for name in (arms.LUFTPAUSE.name, needed) if name not in names]
        if missing:
            raise ArmError(f"--require {key} needs the arm {missing[0]}")
    return made


def recorded(flood: Flood, serves: Served) -> Workload:
    """The workload, with the recorded sessions where there are some. Raises ArmError."""
    if flood.traces is None:
        return flood.workload
    try:
        lines = flood.traces.read_bytes().splitlines()
        found = sessions(lines, flood.scale, int(serves.window_tokens * TRACE_WINDOW_SHARE))
    except OSError as error:
        raise ArmError(f"--traces {flood.traces}: {error.strerror}") from None
    except ValueError as error:
        raise ArmError(f"--traces {flood.traces}: {error}") from None
    return replace(flood.workload, sessions=found)


def main(
    flood: Flood,
    find: Callable[[str], str | None],
    environment: Mapping[str, str],
    json_to: pathlib.Path | None = None,
    svg_to: pathlib.Path | None = None,
) -> int:
    """Measures and prints: 0 if every bar asked for holds, 1 if not or nothing could be measured, 130 after Ctrl-C."""

    async def measured() -> dict[str, Any]:
        serves = await look(flood.where, environment)
        made = entries(flood, chosen(flood, find), recorded(flood, serves))
        rules = Rules(flood.timing, flood.seed, flood.model or serves.model, flood.end_runs, flood.send_run_id)
        contest = Contest(made, flood.where, rules, environment)
        with show.progress(made, flood.timing) as tell:
            samples = await contest.run(tell)
        return figures.report(samples, arms.ROUTER.name) | {"settings": settings(flood, rules.model)}

    def work() -> int:
        report = uvloop.run(show.until_signal(measured()))
        bars = figures.judge(report, arms.LUFTPAUSE.name, flood.required or {})
        return show.result(report, bars, json_to=json_to, svg_to=svg_to)

    return show.guarded(work)


def settings(flood: Flood, model: str) -> dict[str, Any]:
    """What was measured, for the report."""
    workload = flood.workload
    return {
        "engines": list(flood.where) if isinstance(flood.where, tuple) else f"fake, {flood.where.profile}",
        "model": model,
        "seed": flood.seed,
        "batch": flood.batch,
        "interactive": flood.interactive,
        "callers": flood.callers,
        "turns": workload.turns,
        "context_chars": workload.context_chars,
        "growth_chars": workload.growth_chars,
        "max_tokens": workload.max_tokens,
        "tool_s": [workload.tool_s_min, workload.tool_s_max],
        "tools": workload.tools,
        "traces": None if flood.traces is None else {"file": flood.traces.name, "scale": flood.scale},
        "end_runs": flood.end_runs,
        "send_run_id": flood.send_run_id,
        "warm_up_s": flood.timing.warm_up_s,
        "measure_s": flood.timing.measure_s,
        "repeats": flood.timing.repeats,
    }
