"""Recorded sessions become runs: sizes and times scaled, histories as they were."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from loadgen import traces
from loadgen.traces import CHARS_PER_TOKEN, sessions

RECORDED = pathlib.Path(traces.__file__).parent / "data" / "agent-traces.jsonl"


def line(*turns: list[Any]) -> str:
    return json.dumps({"id": "t", "system_tokens": 1, "tool_tokens": 1, "turns": turns})


def test_a_session_grows_by_what_the_tools_said_and_pauses_as_long_as_they_took() -> None:
    first, second = [0.0, 10_000, 200, 0, 0, 5.0, 1], [20.0, 10_700, 500, 9_984, 15.0, 5.0, 0]
    (run,) = sessions([line(first, second)], scale=50, window_tokens=1_000)
    assert [turn.new_chars for turn in run] == [200 * CHARS_PER_TOKEN, 10 * CHARS_PER_TOKEN]
    assert [turn.max_tokens for turn in run] == [4, 10]
    assert [turn.tool_s for turn in run] == [pytest.approx(0.3), 0.0]
    assert [turn.kept_chars for turn in run] == [None, None]


def test_a_history_that_was_rewritten_keeps_what_the_prompts_share() -> None:
    first, second = [0.0, 10_000, 200, 0, 0, 5.0, 1], [20.0, 4_000, 500, 1_000, 15.0, 5.0, 0]
    (run,) = sessions([line(first, second)], scale=10, window_tokens=8_000)
    assert run[1].kept_chars == 100 * CHARS_PER_TOKEN
    assert run[1].new_chars == 300 * CHARS_PER_TOKEN


def test_a_session_ends_before_it_outgrows_the_window() -> None:
    turns = [[0.0, 1_000, 100, 0, 0, 5.0, 1], [9.0, 1_200, 100, 1_000, 4.0, 5.0, 1], [19.0, 5_000, 100, 1_200, 4, 5, 0]]
    outgrown, whole = sessions([line(*turns), line(turns[0])], scale=1, window_tokens=1_300)
    assert len(outgrown) == 2
    assert outgrown[-1].tool_s == 0.0
    assert len(whole) == 1


@pytest.mark.parametrize(("text", "expected"), [("{", "line 2"), ('{"id": "t"}', "turns"), (line([1, 2]), "line 2")])
def test_what_is_no_session_is_refused_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        sessions([line([0.0, 10, 1, 0, 0, 5.0, 0]), text], scale=1, window_tokens=100)


def test_a_recording_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="fits into 10 tokens"):
        sessions([line([0.0, 100, 1, 0, 0, 5.0, 0])], scale=1, window_tokens=10)


def test_the_sessions_that_come_along_can_be_read() -> None:
    found = sessions(RECORDED.read_text().splitlines(), scale=50, window_tokens=6_000)
    assert len(found) > 60
    assert all(turn.tool_s <= 36.0 for run in found for turn in run)
