"""`./luftpause bench flood`: interactive runs beside a flood of batch runs, through each arm in turn.

Says which entries there are and which bars are asked for; `contest` measures them.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from loadgen.compare import arms, figures, show
from loadgen.compare.arms import Arm, ArmError
from loadgen.compare.contest import Entry, Rules
from loadgen.compare.engines import Served
from loadgen.traces import sessions
from loadgen.workload import Group, RunClass, Workload

SubAgents = Literal["none", "batch", "all"]
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
    rules: Rules
    batch: int
    interactive: int
    callers: int
    """Callers that the agents of a class are divided among."""
    sub_agents: SubAgents
    """Which agents are sub-agents of a runtime in front of each arm."""
    names: tuple[str, ...] | None
    """Arms; None: ARMS, as far as they are installed."""
    extra: tuple[Arm, ...]
    """Arms of the user's own."""
    traces: pathlib.Path | None
    """Recorded sessions to replay in place of the workload's sizes and times."""
    scale: float
    """What their sizes and times are divided by."""
    required: Mapping[str, float]
    """Bars on luftpause, by the keys of `figures.REQUIREMENTS`."""


def groups(run_class: RunClass, agents: int, callers: int, workload: Workload, *, spawned: bool = False) -> list[Group]:
    """`agents` of a class, divided among `callers` as evenly as they go."""
    shares = [agents // callers + (number < agents % callers) for number in range(callers)]
    return [
        Group(share, run_class, f"{run_class}-{n}", workload, spawned) for n, share in enumerate(shares, 1) if share
    ]


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


def check(flood: Flood, of: Sequence[Arm | str]) -> None:
    """Raises ArmError where two arms have one name, or bars ask for arms that are missing."""
    names = [each if isinstance(each, str) else each.name for each in of]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArmError(f"two arms are called '{twice}'")
    for key in flood.required:
        needed = {"p90": ALONE}.get(key, arms.ROUTER.name)
        missing = [name for name in (arms.LUFTPAUSE.name, needed) if name not in names]
        if missing:
            raise ArmError(f"--require {key} needs the arm {missing[0]}")


def entries(flood: Flood, of: Sequence[Arm | str], workload: Workload) -> list[Entry]:
    """An entry an arm."""

    def agents_of(run_class: RunClass, agents: int) -> list[Group]:
        spawned = flood.sub_agents in ("all", run_class)
        return groups(run_class, agents, flood.callers, workload, spawned=spawned)

    interactive = agents_of("interactive", flood.interactive)
    both = (*interactive, *agents_of("batch", flood.batch))
    return [
        Entry(each, arms.ROUTER, tuple(interactive)) if isinstance(each, str) else Entry(each.name, each, both)
        for each in of
    ]


def recorded(traces: pathlib.Path | None, scale: float, window_tokens: int, workload: Workload) -> Workload:
    """The workload, with the recorded sessions where there are some. Raises ArmError."""
    if traces is None:
        return workload
    try:
        found = sessions(traces.read_bytes().splitlines(), scale, int(window_tokens * TRACE_WINDOW_SHARE))
    except OSError as error:
        raise ArmError(f"--traces {traces}: {error.strerror}") from None
    except ValueError as error:
        raise ArmError(f"--traces {traces}: {error}") from None
    return replace(workload, sessions=found)


def _workload(flood: Flood, serves: Served) -> Workload:
    return recorded(flood.traces, flood.scale, serves.window_tokens, flood.workload)


def main(flood: Flood, find: Callable[[str], str | None], files: show.Files) -> int:
    """Measures and prints: 0 if every bar asked for holds, else 1; 130 after an early Ctrl-C.

    `find` gives the path of a command, or None.
    """

    def work() -> int:
        found = chosen(flood, find)
        check(flood, found)
        measured = show.perform(flood.rules, lambda serves: entries(flood, found, _workload(flood, serves)))
        report = figures.report(measured.samples, arms.ROUTER.name) | {"settings": settings(flood, measured.model)}
        bars = figures.judge(report, arms.LUFTPAUSE.name, flood.required)
        return show.result(measured, report, bars, files)

    return show.guarded(work)


def settings(flood: Flood, model: str) -> dict[str, Any]:
    """What was asked for, for the report."""
    sizes = asdict(flood.workload)
    del sizes["sessions"]
    return {
        **sizes,
        "batch": flood.batch,
        "interactive": flood.interactive,
        "callers": flood.callers,
        "sub_agents": flood.sub_agents,
        "traces": None if flood.traces is None else {"file": flood.traces.name, "scale": flood.scale},
        **flood.rules.as_json(),
        "model": model,
    }
