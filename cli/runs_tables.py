"""The reports of `runs` for people. Only prints."""

from __future__ import annotations

import json
import time
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

HANDLE_CHARS = 29
TASK_CHARS = 48


def show_list(runs: list[dict[str, Any]]) -> None:
    """Prints the list of runs."""
    console = Console()
    if not runs:
        console.print("no runs")
        return
    table = Table(box=SIMPLE)
    for name, width in (("run", HANDLE_CHARS), ("state", 16), ("took", 6), ("turns", 5), ("tokens", 6), ("task", None)):
        # What is too wide is cut from the task: handles are there to be copied.
        table.add_column(name, min_width=width, no_wrap=width is not None)
    for run in runs:
        own = run["own"]
        table.add_row(
            run["handle"],
            run["state"],
            f"{run['seconds']:.0f} s",
            str(own["turns"]),
            str(own["promptTokens"] + own["completionTokens"]),
            Text(_line(run["task"]), no_wrap=True, overflow="ellipsis"),
        )
    console.print(table)


def show_run(run: dict[str, Any]) -> None:
    """Prints a whole run."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    _say(console, f"{run['handle']}  {run['state']}", style="bold")
    _say(console, f"started {_time(run['startedAt'])}, {run['seconds']:.1f} s, {run['class']}, model {run['model']}")
    for name, label in (("parent", "below"), ("forkedFrom", "forked from")):
        if run[name]:
            _say(console, f"{label} {run[name]}")
    if run["system"]:
        _say(console, "\nsystem", style="bold")
        _say(console, run["system"])
    _say(console, "\ntask", style="bold")
    _say(console, run["task"])
    for step in run["steps"]:
        _show_step(console, step)
    if run["pendingApproval"]:
        asked = run["pendingApproval"]
        _say(console, f"\nwaits for an answer about {asked['tool']} {_json(asked['arguments'])}", style="bold")
    for name, label in (("waitsFor", "waits for tool servers"), ("missingServers", "lacked the tools of")):
        if name in run:
            _say(console, f"\n{label}: {', '.join(run[name])}", style="bold")
    # The answer is the last reply, which is shown above.
    if run["text"] and run["state"] != "Completed":
        _say(console, f"\n{run['text']}", style="bold")


def _show_step(console: Console, step: dict[str, Any]) -> None:
    tokens = f"{step['promptTokens']} tokens in ({step['cachedTokens']} cached), {step['completionTokens']} out"
    _say(console, f"\nstep {step['step']}  {_time(step['at'])}  {step['turnS']:.2f} s  {tokens}", style="bold")
    if step["content"]:
        _say(console, step["content"])
    for call in step["calls"]:
        _say(console, f"  → {call['name']} {_json(call['arguments'])}")
        for answer in call["answers"]:
            _say(console, f"    {'allowed' if answer['allow'] else 'declined'} {_time(answer['at'])}")
        _say(console, f"    {_outcome(call)}")


def _say(console: Console, text: str, style: str | None = None) -> None:
    """Prints what models and tools wrote without letting it steer the terminal."""
    console.print("".join(char for char in text if char.isprintable() or char in "\n\t"), style=style)


def _outcome(call: dict[str, Any]) -> str:
    if call["refusal"]:
        return str(call["refusal"])
    if call["outcomeUnknown"]:
        return f"outcome unknown: {call['outcomeUnknown']}"
    if call["result"] is not None:
        return f"{'failed' if call['failed'] else 'done'} in {call['toolS']:.2f} s: {call['result']}"
    return "begun, no outcome yet" if call["startedAt"] else "not begun"


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _line(text: str) -> str:
    first = "".join(char for char in " ".join(text.split()) if char.isprintable())
    return first if len(first) <= TASK_CHARS else first[: TASK_CHARS - 1] + "…"
