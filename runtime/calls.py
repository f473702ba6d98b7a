"""What becomes of the tool calls that a reply asks for: which are made, with what, and which are refused and why. Pure.

Decided once, before the reply is journaled, so that a restart makes the same calls even if a tool server describes its
tools otherwise by then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from runtime import approvals
from runtime.arguments import ARGUMENTS_CHARS_MAX, Bad, Good
from runtime.chat import RawCall
from runtime.records import Call, Order
from runtime.tool_specs import EffectKind, ToolSpec

NONE_LEFT = "Error: no tool calls are left in this run; answer with what you know"


def decide(
    asked: Sequence[RawCall],
    offered: Mapping[str, ToolSpec],
    prepared: Mapping[int, Good | Bad],
    *,
    order: Order,
    left: int,
    step: int,
) -> tuple[Call, ...]:
    """The calls of the reply that begins `step`. `offered` by name; `left` is how many calls the run may still make.

    `prepared` has the arguments, by position, of the calls that are among the first `left` and of an offered tool.
    """
    ids: set[str] = set()
    calls = []
    for position, raw in enumerate(asked):
        call_id = raw.id if raw.id and raw.id not in ids else f"call-{step}-{position}"
        ids.add(call_id)
        calls.append(_decide(raw, call_id, offered, prepared.get(position), order, has_room=position < left))
    return tuple(calls)


def judged(call: Call, tool: ToolSpec | None, order: Order) -> Call:
    """`call`, about which another runtime decided, by what this one knows of its tool; None: nothing, so that a person
    has to allow it."""
    kind = EffectKind.AT_MOST_ONCE if tool is None else tool.kind
    asks = tool is None or approvals.is_needed(tool.name, tool.destructive, order.approve_tools)
    return msgspec.structs.replace(call, effect=kind, needs_approval=call.needs_approval or asks)


def _decide(
    raw: RawCall,
    call_id: str,
    offered: Mapping[str, ToolSpec],
    prepared: Good | Bad | None,
    order: Order,
    *,
    has_room: bool,
) -> Call:
    def refused(text: str) -> Call:
        return Call(call_id, raw.name, _object(raw.arguments), EffectKind.AT_MOST_ONCE, refusal=text)

    if not has_room:
        return refused(NONE_LEFT)
    tool = offered.get(raw.name)
    if tool is None:
        return refused(f"Error: there is no tool '{raw.name}'; there are: {', '.join(offered)}")
    assert prepared is not None, "its arguments were looked at before"
    if isinstance(prepared, Bad):
        return refused(prepared.text)
    asks = approvals.is_needed(tool.name, tool.destructive, order.approve_tools)
    return Call(call_id, tool.name, json.dumps(prepared.arguments, ensure_ascii=False), tool.kind, asks)


def _object(text: str) -> str:
    """`text` if it is a JSON object of some size, else an empty one: engines parse earlier arguments again."""
    if len(text) > ARGUMENTS_CHARS_MAX:
        return "{}"
    try:
        return text if isinstance(json.loads(text), dict) else "{}"
    except (ValueError, RecursionError):
        return "{}"
