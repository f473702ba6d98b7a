"""When a budget is spent."""

from __future__ import annotations

import pytest

from runtime.budgets import exceeded
from runtime.records import Limits
from runtime.run import Usage


@pytest.mark.parametrize(
    ("limits", "used", "age_s", "expected"),
    [
        (Limits(), Usage(prompt_tokens=10**9, tool_calls=10**9), 10**9, None),
        (Limits(tokens=100), Usage(prompt_tokens=60, completion_tokens=39), 0, None),
        (Limits(tokens=100), Usage(prompt_tokens=60, completion_tokens=40), 0, "budget exceeded: tokens 100/100"),
        (Limits(tool_calls=2), Usage(tool_calls=2), 0, None),
        (Limits(tool_calls=2), Usage(tool_calls=3), 0, "budget exceeded: tool calls 3/2"),
        (Limits(seconds=1.5), Usage(), 1.4, None),
        (Limits(seconds=1.5), Usage(), 1.52, "budget exceeded: seconds 1.5/1.5"),
    ],
)
def test_a_budget_is_exceeded_when_another_round_does_not_fit(
    limits: Limits, used: Usage, age_s: float, expected: str | None
) -> None:
    found = exceeded(limits, used, age_s)
    assert (str(found) if found else None) == expected


def test_calls_that_were_not_made_are_told_apart() -> None:
    found = exceeded(Limits(tool_calls=1), Usage(tool_calls=3), 0, waiting=2)
    assert str(found) == "budget exceeded: tool calls 1/1 (2 more asked for and not made)"
