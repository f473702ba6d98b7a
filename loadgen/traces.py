"""Reads recorded agent sessions (`data/README.md` has the format) as runs to replay, scaled down. Pure.

Sizes and times are divided by the same scale: a smaller context on a smaller engine, and pauses that keep their
proportion to the replies. Read `workload` next.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from loadgen.workload import TurnPlan

CHARS_PER_TOKEN = 4
"""English text has about four characters a token."""
_REWRITTEN_TOKENS = 128
"""A prompt that keeps so much less than all of the one before has another history; recordings count in blocks of 64."""

_PAUSE_S_MAX = 1_800.0
"""A longer pause is a person who had gone: it is cut to this, before scaling, since a load cannot wait for them."""

# t_s, prompt_tokens, completion_tokens, shared_prefix_tokens, think_s, api_s, stopped_on_tool
_Recorded = tuple[float, int, int, int, float, float, int]


class _Session(msgspec.Struct):
    turns: list[_Recorded]


_decode = msgspec.json.Decoder(_Session).decode


def sessions(lines: Iterable[bytes | str], scale: float, window_tokens: int) -> tuple[tuple[TurnPlan, ...], ...]:
    """One run a line, tokens and seconds divided by `scale`.

    A session ends before the first turn that needs more than `window_tokens`, prompt and reply together; without a
    turn that fits it is left out. Raises ValueError, with the number of the line, where one is no session.
    """
    if not scale > 0:
        raise ValueError("scale must be above 0")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            recorded = _decode(line).turns
        except msgspec.MsgspecError as error:
            raise ValueError(f"line {number}: not a session: {error}") from None
        turns = _turns(recorded, scale, window_tokens)
        if turns:
            found.append(turns)
    if not found:
        raise ValueError(f"no session has a turn that fits into {window_tokens} tokens at scale {scale:g}")
    return tuple(found)


def _turns(recorded: list[_Recorded], scale: float, window_tokens: int) -> tuple[TurnPlan, ...]:
    fitting = []
    for turn in recorded:
        if (turn[1] + turn[2]) / scale > window_tokens:
            break
        fitting.append(turn)
    turns = []
    before_tokens = before_completion = 0
    for number, (_, prompt_tokens, completion_tokens, shared_tokens, *_rest) in enumerate(fitting):
        kept_chars = None
        new_tokens = prompt_tokens - before_tokens - before_completion
        if number and shared_tokens < before_tokens - _REWRITTEN_TOKENS:
            kept_chars = round(shared_tokens / scale) * CHARS_PER_TOKEN
            new_tokens = prompt_tokens - shared_tokens
        tool_s = min(fitting[number + 1][4], _PAUSE_S_MAX) / scale if number + 1 < len(fitting) else 0.0
        turns.append(
            TurnPlan(
                new_chars=max(round(new_tokens / scale), 0) * CHARS_PER_TOKEN,
                max_tokens=max(round(completion_tokens / scale), 1),
                tool_s=max(tool_s, 0.0),
                kept_chars=kept_chars,
            )
        )
        before_tokens, before_completion = prompt_tokens, completion_tokens
    return tuple(turns)
