"""What the fake tool server's tools do and how long they take: notes, a count of every effect, seeded delays. Pure.

An effect is counted under the idempotency key of its call each time it happens. The tools do not honour the key: a
second call under the same key has its effect once more, so that whoever repeats a call is found out.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NO_KEY = ""
"""Calls without an idempotency key are counted under this one."""

DELAY_S_MAX = 10.0
_MEDIAN_S = {"lookup": 1.0, "deep_search": 4.0}
_SIGMA = 0.5
"""Of the logarithm of a seeded delay: two thirds of them lie between 0.6 and 1.6 times the median."""
_CALLS_KEPT = 1000
_SUBJECTS = ("The harbour", "The archive", "The orchard", "The observatory", "The mill", "The lighthouse")
_FACTS = ("was built in {year}", "closed in {year}", "was sold in {year}", "burned in {year} and stands again")


@dataclass(slots=True)
class Call:
    """A call as the server saw it."""

    tool: str
    key: str
    arguments: Mapping[str, Any]
    traceparent: str | None
    """Of `_meta`."""
    header: str | None
    """The HTTP header `traceparent`."""
    state: str = "running"
    """`running`, `done` or `cancelled`."""

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "tool": self.tool,
            "key": self.key,
            "arguments": dict(self.arguments),
            "traceparent": self.traceparent,
            "header": self.header,
            "state": self.state,
        }


@dataclass(slots=True)
class Effects:
    """Notes, and the count of what was done to them."""

    notes: dict[str, str] = field(default_factory=dict)
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    """Effects by idempotency key."""
    calls: collections.deque[Call] = field(default_factory=lambda: collections.deque(maxlen=_CALLS_KEPT))
    """The last calls, oldest first."""
    calls_by_tool: collections.Counter[str] = field(default_factory=collections.Counter)

    def began(self, call: Call) -> None:
        """Counts a call, which may come to an effect or not."""
        self.calls.append(call)
        self.calls_by_tool[call.tool] += 1

    def do(self, call: Call) -> str:
        """Has the call's effect and counts it: what the tool answers. Raises KeyError for a note that is not there."""
        match call.tool:
            case "add_note":
                name = f"note-{len(self.notes) + 1}"
                self.notes[name] = str(call.arguments["text"])
                answer = f"Added {name}."
            case "set_note":
                name = str(call.arguments["name"])
                self.notes[name] = str(call.arguments["text"])
                answer = f"{name} is set."
            case "delete_note":
                name = str(call.arguments["name"])
                del self.notes[name]
                answer = f"Deleted {name}."
            case _:
                return found(call.tool, str(call.arguments["query"]))
        self.counts[call.key] += 1
        return answer

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "effects": dict(self.counts),
            "calls_by_tool": dict(self.calls_by_tool),
            "calls": [call.told() for call in self.calls],
            "notes": dict(self.notes),
        }


def found(tool: str, query: str) -> str:
    """What a search for `query` finds: invented, and always the same for the same query."""
    chance = random.Random(f"{tool}:{query}")
    facts = [
        f"{chance.choice(_SUBJECTS)} {chance.choice(_FACTS).format(year=chance.randint(1700, 2020))}."
        for _ in range(3 if tool == "lookup" else 12)
    ]
    return f"On '{query}': " + " ".join(facts)


def delay_s(seed: int, tool: str, key: str, query: str) -> float:
    """How long a search takes, in seconds: log-normal, the same for the same seed and call, at most 10 s."""
    drawn = random.Random(f"{seed}:{tool}:{key}:{query}").lognormvariate(0.0, _SIGMA) * _MEDIAN_S[tool]
    return min(DELAY_S_MAX, drawn)
