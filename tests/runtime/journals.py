"""Small journals for the tests of the runtime's pure core."""

from __future__ import annotations

from typing import Any

from runtime.records import (
    Answered,
    Call,
    Ended,
    Intended,
    LostTrack,
    Order,
    Replied,
    Returned,
    Started,
    State,
    effect_key,
)
from runtime.tool_specs import EffectKind

RUN = "run-1"


def started(run_id: str = RUN, parent: str | None = None, **order: Any) -> Started:
    """A run's first record."""
    whole = Order(**{"task": "t", "model": "m", **order})
    return Started(at=0.0, run_id=run_id, parent=parent, root=parent or run_id, caller="me", order=whole)


def call(number: int = 0, **fields: Any) -> Call:
    """A call of `lookup`."""
    return Call(
        **{"id": f"c{number}", "name": "lookup", "arguments": "{}", "effect": EffectKind.AT_MOST_ONCE, **fields}
    )


def replied(step: int, *calls: Call, content: str = "") -> Replied:
    """A reply that asks for `calls`."""
    return Replied(at=1.0, step=step, content=content, calls=calls, prompt_tokens=10, completion_tokens=5)


def intended(step: int, number: int, run_id: str = RUN) -> Intended:
    """The intent of a call."""
    return Intended(at=2.0, step=step, call=number, key=effect_key(run_id, step, number))


def returned(step: int, number: int, text: str = "found", failed: bool = False) -> Returned:
    """The outcome of a call."""
    return Returned(at=3.0, step=step, call=number, text=text, failed=failed, duration_s=0.5)


def lost(step: int, number: int) -> LostTrack:
    """A call whose outcome is unknown."""
    return LostTrack(at=3.0, step=step, call=number, known="no answer came.")


def answered(step: int, number: int, allow: bool) -> Answered:
    """A person's answer."""
    return Answered(at=4.0, step=step, call=number, allow=allow)


def ended(state: State = State.COMPLETED, text: str = "done") -> Ended:
    """The last record."""
    return Ended(at=5.0, state=state, text=text)


def assert_valid(messages: list[dict[str, Any]]) -> None:
    """Fails unless a provider would take `messages`: each tool call has its result, once, before any other message."""
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_ids, messages
            open_ids.remove(message["tool_call_id"])
        else:
            assert not open_ids, messages
            open_ids = [each["id"] for each in message.get("tool_calls", ())]
    assert not open_ids, messages
