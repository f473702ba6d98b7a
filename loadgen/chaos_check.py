"""What was seen of a chaos, and what of it is a fault. Pure. Nothing that the services say of themselves excuses them.

- *Lost*: a run that was begun, or acknowledged by the runtime, and did not come to an end after all was well again.
- *Doubled*: a turn id that came to engines twice, as the links and they themselves counted; a client's try that did,
  under whatever id; an effect that happened twice.
- *Stuck*: a turn that was neither answered nor broken off for a minute.
- *Leaked*: slots, held turns, sockets or tasks that are there when nothing is going on; memory that grows without end.
- *Wrong*: an answer that no failure explains, or that belongs to another run.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MEMORY_GROWTH_MAX = 0.05
MEMORY_S_MIN = 30.0
"""The last third must be this long to say anything about memory."""
SPARE = 2
"""Sockets and tasks that a process may have more than at its start."""
STARTED_LATER = {("runtime", "sockets"): 4}
"""What a service has from when it is first needed: the two processes that check arguments are spoken to by two each."""
_SHOWN_MAX = 5


@dataclass(slots=True)
class Seen:
    """Everything that was seen from outside, filled in by the load, the links and the readings."""

    turns: Counter[str] = field(default_factory=Counter)
    """Tries of turns by outcome."""
    wrong: list[str] = field(default_factory=list)
    runs_begun: int = 0
    runs_done: int = 0
    request_ids: Counter[str] = field(default_factory=Counter)
    """How often each turn id came through the links to the engines."""
    marks: Counter[str] = field(default_factory=Counter)
    """How often each try of a client did, by the mark in its body."""
    doubled_at_engines: list[str] = field(default_factory=list)
    """What the engines themselves counted."""
    sub_agents: dict[str, str] = field(default_factory=dict)
    """Mark of each run that the runtime acknowledged, by handle."""
    ends: dict[str, str] = field(default_factory=dict)
    """How each of those ended, by handle."""
    unknown: set[str] = field(default_factory=set)
    """Handles of runs that said that they do not know the outcome of an effect."""
    effects: Sequence[Mapping[str, Any]] = ()
    """The tool server's own ledger."""
    left_over: dict[str, int] = field(default_factory=dict)
    """What should be 0 once all is quiet."""
    at_start: dict[str, dict[str, int]] = field(default_factory=dict)
    """Sockets and tasks of each process when it was fresh and idle."""
    at_end: dict[str, dict[str, int]] = field(default_factory=dict)
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """Of each process that lived through the last third: seconds since its start and KiB."""
    bad_ends: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, by kind: each a list of lines, empty where all is well."""

    faults: dict[str, list[str]]
    figures: dict[str, Any]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not any(self.faults.values())


def judge(seen: Seen) -> Verdict:
    """The verdict on a chaos that is over."""
    growth = memory_growth(seen.memory)
    faults = {
        "lost": _lost(seen),
        "doubled": _doubled(seen),
        "stuck": [f"{seen.turns['stuck']} turns"] if seen.turns["stuck"] else [],
        "leaked": _leaked(seen, growth),
        "wrong": [*seen.wrong[:_SHOWN_MAX], *seen.bad_ends, *_unseen(seen)],
    }
    figures = {
        "turns": dict(sorted(seen.turns.items())),
        "turns_at_engines": len(seen.request_ids),
        "tries_at_engines": len(seen.marks),
        "runs": seen.runs_done,
        "sub_agents": dict(sorted(Counter(seen.ends.get(handle, "lost") for handle in seen.sub_agents).items())),
        "effects": len(seen.effects),
        "unknown_effects": len(seen.unknown),
        "memory_growth": {name: round(value, 4) for name, value in sorted(growth.items())},
    }
    return Verdict(faults, figures)


def memory_growth(memory: Mapping[str, Sequence[tuple[float, int]]]) -> dict[str, float]:
    """By process, the median of the later half over that of the earlier one, less 1; none where too little was seen."""
    growth = {}
    for name, readings in memory.items():
        if len(readings) < 4 or readings[-1][0] - readings[0][0] < MEMORY_S_MIN:
            continue
        sizes = [kib for _, kib in readings]
        half = len(sizes) // 2
        growth[name] = statistics.median(sizes[half:]) / statistics.median(sizes[:half]) - 1
    return growth


def _lost(seen: Seen) -> list[str]:
    lost = []
    if seen.runs_done < seen.runs_begun:
        lost.append(f"{seen.runs_begun - seen.runs_done} runs of agents have not ended")
    missing = [f"sub-agent {handle} has not ended" for handle in seen.sub_agents if handle not in seen.ends]
    done = Counter(line["arguments"]["text"] for line in seen.effects if line["tool"] == "add_note")
    completed = {handle for handle, end in seen.ends.items() if end == "completed"} - seen.unknown
    undone = [
        f"sub-agent {handle} completed, its effect happened {done[seen.sub_agents[handle]]} times"
        for handle in completed
        if done[seen.sub_agents[handle]] != 1
    ]
    return lost + missing[:_SHOWN_MAX] + undone[:_SHOWN_MAX]


def _doubled(seen: Seen) -> list[str]:
    turns = [f"turn {turn_id} came {times} times" for turn_id, times in seen.request_ids.items() if times > 1]
    tries = [f"{mark} came {times} times" for mark, times in seen.marks.items() if times > 1]
    keys = Counter(line["key"] for line in seen.effects if line["tool"] == "add_note")
    effects = [f"effect {key} happened {times} times" for key, times in keys.items() if times > 1]
    return turns[:_SHOWN_MAX] + tries[:_SHOWN_MAX] + seen.doubled_at_engines[:_SHOWN_MAX] + effects[:_SHOWN_MAX]


def _unseen(seen: Seen) -> list[str]:
    """Answers to tries that came to no engine: they were made up, or the marks are not counted."""
    unseen = seen.turns["answered"] - len(seen.marks)
    return [f"{unseen} answered tries came to no engine"] if unseen > 0 else []


def _leaked(seen: Seen, growth: Mapping[str, float]) -> list[str]:
    leaked = [f"{name}: {count}" for name, count in sorted(seen.left_over.items()) if count]
    for name, now in sorted(seen.at_end.items()):
        before = seen.at_start.get(name, {})
        for what, count in now.items():
            if count > before.get(what, count) + SPARE + STARTED_LATER.get((name, what), 0):
                leaked.append(f"{name}: {count} {what}, {before[what]} at its start")
    leaked += [
        f"{name}: memory grew by {value:.1%} in the last third"
        for name, value in sorted(growth.items())
        if value > MEMORY_GROWTH_MAX
    ]
    return leaked
