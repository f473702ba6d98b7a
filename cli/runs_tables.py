"""The reports of `runs` for people. Only prints."""

from __future__ import annotations

import json
import time
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

TASK_CHARS = 48


def show_list(runs: list[dict[str, Any]]) -> None:
    """Prints the list of runs."""
    console = Console()
    if not runs:
        console.print("no runs")
        return
    table = Table(box=SIMPLE)
    table.add_column("run", no_wrap=True)
    for name in ("state", "task", "age", "turns", "calls", "tokens"):
        table.add_column(name)
    for run in runs:
        own = run["own"]
        table.add_row(
            run["handle"],
            run["state"],
            Text(_line(run["task"])),
            f"{run['seconds']:.0f} s",
            str(own["turns"]),
            str(own["toolCalls"]),
            str(own["promptTokens"] + own["completionTokens"]),
        )
    console.print(table)


def show_run(run: dict[str, Any]) -> None:
    """Prints a whole run."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"{run['handle']}  {run['state']}", style="bold")
    console.print(f"started {_time(run['startedAt'])}, {run['seconds']:.1f} s, {run['class']}, model {run['model']}")
    for name, label in (("parent", "below"), ("forkedFrom", "forked from")):
        if run[name]:
            console.print(f"{label} {run[name]}")
    if run["system"]:
        console.print("\nsystem", style="bold")
        console.print(run["system"])
    console.print("\ntask", style="bold")
    console.print(run["task"])
    for step in run["steps"]:
        _show_step(console, step)
    if run["pendingApproval"]:
        asked = run["pendingApproval"]
        console.print(f"\nwaits for an answer about {asked['tool']} {_json(asked['arguments'])}", style="bold")
    # The answer is the last reply, which is shown above.
    if run["text"] and run["state"] != "Completed":
        console.print(f"\n{run['text']}", style="bold")


def _show_step(console: Console, step: dict[str, Any]) -> None:
    tokens = f"{step['promptTokens']} tokens in ({step['cachedTokens']} cached), {step['completionTokens']} out"
    console.print(f"\nstep {step['step']}  {_time(step['at'])}  {step['turnS']:.2f} s  {tokens}", style="bold")
    if step["content"]:
        console.print(step["content"])
    for call in step["calls"]:
        console.print(f"  → {call['name']} {_json(call['arguments'])}")
        for answer in call["answers"]:
            console.print(f"    {'allowed' if answer['allow'] else 'declined'} {_time(answer['at'])}")
        console.print(f"    {_outcome(call)}")


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
    first = " ".join(text.split())
    return first if len(first) <= TASK_CHARS else first[: TASK_CHARS - 1] + "…"
