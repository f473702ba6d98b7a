"""What one agent's run asks for, drawn from a seed. Pure. Must not do I/O, read a clock or use unseeded chance.

`plan_run` draws a run's sizes and tool times, all that a simulation in virtual time needs; `text` draws the words of a
turn. `Conversation` grows as a real one does: every turn appends the reply and a tool result, so that the prefix stays
as it was. Read `traces` for runs as they were recorded, `driver` for how runs are performed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from loadgen.reply import ToolCall

RunClass = Literal["interactive", "batch"]
ToolStyle = Literal["text", "api"]

# Ordinary words, so that a text tokenises as texts do (some 4.3 characters a token with a vocabulary of 4,096 learned
# from licences); the list is short since only its order has to differ.
_TEXT = """
account appear balance before between button cabin careful carry center change check choose city clean clear close
cloud coast color common consider copy corner count country course cover cross customer danger decide deliver depend
describe detail differ direct discover distance divide doctor double driver early earth effect eight either engine
enough evening event every exact example expect explain farmer figure final finger finish flight follow forest forward
friend garden gather general gentle govern great ground history idea include inform large later library listen machine
major manner matter member method mind nation nature network never night north notice number object offer often orange
order paper parent partner people person place plant position possible power present problem produce promise provide
public reach reason receive region remain require result round sample school season section service simple single
small sound source space special spring square station story street subject supply surface system table thing through
together toward under unit usual water weight whether whole winter world
"""
_WORDS = _TEXT.split()

_TOPICS = ("orders", "weather", "inventory", "calendar")
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Looks up a record of the task.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"topic": {"type": "string", "enum": list(_TOPICS)}},
                "required": ["topic"],
                "additionalProperties": False,
            },
        },
    }
]


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """Everything about a turn that chance or a recording decides."""

    new_chars: int
    """Characters that its prompt adds to the conversation: at first the context, then a tool's result."""
    max_tokens: int
    """Most tokens of its reply."""
    tool_s: float
    """How long the tool works that its reply asks for, seconds; 0 after the last turn."""
    kept_chars: int | None = None
    """None: the whole conversation goes on. Else the agent rewrote its history: of the conversation's first text only
    so many characters are kept, and `new_chars` more follow them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The shape of every run of a group. Raises ValueError, naming the field, where it makes no sense."""

    turns: int = 4
    """Model turns of a run; between two of them a tool works."""
    context_chars: int = 8_000
    """Characters of the context that a run starts with; each run has its own."""
    growth_chars: int = 400
    """Characters of a tool's result, which the next turn adds."""
    max_tokens: int = 48
    """Most tokens of a reply."""
    tool_s_min: float = 0.5
    """Shortest time a tool works, seconds."""
    tool_s_max: float = 2.0
    """Longest time a tool works, seconds."""
    ignore_eos: bool = True
    """Whether engines are asked to fill max_tokens; an extension that hosted endpoints may refuse."""
    tools: ToolStyle = "api"
    """`api`: all turns but the last must call a tool, so the run pauses; `text`: replies are taken for tool calls as
    they are (ReAct), for engines without tools."""
    sessions: tuple[tuple[TurnPlan, ...], ...] = ()
    """Recorded runs, of which each run is one; they take the place of the sizes and times above. See `traces`."""

    def __post_init__(self) -> None:
        for name in ("turns", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("context_chars", "growth_chars"):
            if not 0 <= getattr(self, name) <= 10_000_000:
                raise ValueError(f"{name} must be 0 to 10,000,000 characters")
        if not 0 <= self.tool_s_min <= self.tool_s_max:
            raise ValueError("tool_s_min must be at least 0 and at most tool_s_max")


@dataclass(frozen=True, slots=True)
class Group:
    """Agents that do the same for the same caller."""

    agents: int
    run_class: RunClass
    caller: str
    workload: Workload
    spawned: bool = False
    """Whether they are sub-agents, whose loop the runtime keeps."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run."""

    key: tuple[int, ...]
    """What it was drawn from; its texts are too."""
    turns: tuple[TurnPlan, ...]


def plan_run(workload: Workload, *key: int) -> RunPlan:
    """The run that `key` (seed, group, agent, number of the run) stands for: the same key, the same run."""
    rng = random.Random(":".join(map(str, key)))
    if workload.sessions:
        return RunPlan(key, rng.choice(workload.sessions))
    last = workload.turns - 1
    turns = (
        TurnPlan(
            new_chars=workload.growth_chars if number else workload.context_chars,
            max_tokens=workload.max_tokens,
            tool_s=rng.uniform(workload.tool_s_min, workload.tool_s_max) if number < last else 0.0,
        )
        for number in range(workload.turns)
    )
    return RunPlan(key, tuple(turns))


def text(plan: RunPlan, turn: int) -> str:
    """The words that turn number `turn` (from 0) adds to the conversation; no two runs share them."""
    rng = random.Random(":".join(map(str, (*plan.key, "turn", turn))))
    return _text(rng, plan.turns[turn].new_chars)


def _text(rng: random.Random, chars: int) -> str:
    """Exactly `chars` characters of words."""
    words: list[str] = []
    length = 0
    while length <= chars:
        more = rng.choices(_WORDS, k=max(1, (chars - length) // 8))
        words += more
        length += sum(map(len, more)) + len(more)
    return " ".join(words)[:chars]


class Conversation:
    """The messages of one run, and the request bodies they make."""

    def __init__(self, workload: Workload, plan: RunPlan, model: str) -> None:
        self._workload = workload
        self._plan = plan
        self._model = model
        self._turns_done = 0
        self._begin(text(plan, 0))

    def _begin(self, context: str) -> None:
        self._context = context
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": f"{context}\nYou work on the task above, one step at a time."},
            {"role": "user", "content": "Take the first step."},
        ]

    @property
    def is_over(self) -> bool:
        """Whether all turns are done."""
        return self._turns_done >= len(self._plan.turns)

    def body(self) -> bytes:
        """The JSON body of the next turn."""
        is_last = self._turns_done == len(self._plan.turns) - 1
        must_call = self._workload.tools == "api" and not is_last
        body: dict[str, Any] = {
            "model": self._model,
            "messages": self._messages,
            "max_tokens": self._plan.turns[self._turns_done].max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._workload.tools == "api":
            body |= {"tools": _TOOLS, "tool_choice": "required" if must_call else "none"}
        # A reply that must be a tool call ends by its grammar: going on after its end is undefined.
        if self._workload.ignore_eos and not must_call:
            body["ignore_eos"] = True
        return msgspec.json.encode(body)

    def take_reply(self, said: str, tool_calls: list[ToolCall]) -> float | None:
        """Appends a whole reply and, unless it was the last, the tool's result; the seconds that the tool works."""
        number, self._turns_done = self._turns_done, self._turns_done + 1
        if self.is_over:
            return None
        following = self._plan.turns[self._turns_done]
        result = text(self._plan, self._turns_done)
        if following.kept_chars is not None:
            self._begin(self._context[: following.kept_chars] + result)
        elif tool_calls:
            calls = [_as_message(call) for call in tool_calls]
            self._messages.append({"role": "assistant", "content": said or None, "tool_calls": calls})
            self._messages += [{"role": "tool", "tool_call_id": call.id, "content": result} for call in tool_calls]
        else:
            self._messages.append({"role": "assistant", "content": said})
            self._messages.append({"role": "user", "content": f"Observation: {result}"})
        return self._plan.turns[number].tool_s


def _as_message(call: ToolCall) -> dict[str, Any]:
    # max_tokens may have cut the arguments, and engines refuse messages whose arguments are not JSON.
    try:
        msgspec.json.decode(call.arguments)
        arguments = call.arguments
    except msgspec.DecodeError:
        arguments = "{}"
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
