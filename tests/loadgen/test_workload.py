"""Runs are seeded, distinct, and grow by appending."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.reply import ToolCall
from loadgen.workload import Conversation, TurnPlan, Workload, plan_run, text

SMALL = Workload(turns=3, context_chars=500, growth_chars=50, tool_s_min=0.1, tool_s_max=0.2)


def messages(conversation: Conversation) -> list[dict[str, Any]]:
    body: dict[str, Any] = json.loads(conversation.body())
    found: list[dict[str, Any]] = body["messages"]
    return found


def test_the_same_key_plans_the_same_run_and_another_key_another_one() -> None:
    assert plan_run(SMALL, 1, 0, 2, 3) == plan_run(SMALL, 1, 0, 2, 3)
    others = [(2, 0, 2, 3), (1, 1, 2, 3), (1, 0, 3, 3), (1, 0, 2, 4)]
    plans = [plan_run(SMALL, *key) for key in [*others, (1, 0, 2, 3)]]
    assert len({text(plan, 0)[:40] for plan in plans}) == 5
    assert len({plan.turns for plan in plans}) == 5


@pytest.mark.parametrize("chars", [0, 1, 7, 8_000, 100_000])
def test_a_context_has_exactly_the_characters_asked_for(chars: int) -> None:
    plan = plan_run(Workload(context_chars=chars), 1)
    assert len(text(plan, 0)) == plan.turns[0].new_chars == chars


def test_tools_work_within_the_range() -> None:
    turns = [turn for key in range(100) for turn in plan_run(SMALL, key).turns]
    assert len(turns) == 300
    assert all(turn.tool_s == 0.0 for turn in turns[2::3])
    assert all(0.1 <= turn.tool_s <= 0.2 for n, turn in enumerate(turns) if n % 3 < 2)


def test_every_turn_appends_a_reply_and_a_result_and_leaves_the_prefix_alone() -> None:
    conversation = Conversation(SMALL, plan_run(SMALL, 1), "m")
    before = messages(conversation)
    tool_s = conversation.take_reply("I look it up.", [])
    after = messages(conversation)
    assert tool_s is not None
    assert after[: len(before)] == before
    assert after[len(before)] == {"role": "assistant", "content": "I look it up."}
    assert after[len(before) + 1]["content"].startswith("Observation: ")
    assert len(after) == len(before) + 2


def test_a_run_is_over_after_its_turns() -> None:
    conversation = Conversation(SMALL, plan_run(SMALL, 1), "m")
    pauses = []
    while not conversation.is_over:
        pauses.append(conversation.take_reply("so", []))
    assert [pause is None for pause in pauses] == [False, False, True]


def test_api_calls_are_answered_by_id_and_arguments_that_were_cut_are_mended() -> None:
    workload = Workload(turns=2, context_chars=10, tools="api")
    conversation = Conversation(workload, plan_run(workload, 1), "m")
    first = json.loads(conversation.body())
    assert first["tool_choice"] == "required"
    assert first["tools"][0]["function"]["strict"] is True
    assert "ignore_eos" not in first
    conversation.take_reply(
        "", [ToolCall("call-1", "lookup", '{"topic": "ord'), ToolCall("call-2", "lookup", '{"topic":1}')]
    )
    last = json.loads(conversation.body())
    assert last["tool_choice"] == "none"
    assert last["ignore_eos"] is True
    calls = last["messages"][2]["tool_calls"]
    assert [call["function"]["arguments"] for call in calls] == ["{}", '{"topic":1}']
    assert [message["tool_call_id"] for message in last["messages"][3:]] == ["call-1", "call-2"]


def test_a_rewritten_history_keeps_only_its_beginning() -> None:
    turns = (TurnPlan(100, 5, 0.3), TurnPlan(20, 7, 0.1, kept_chars=40), TurnPlan(10, 9, 0.0))
    workload = Workload(tools="text", sessions=(turns,))
    plan = plan_run(workload, 1)
    assert plan.turns == turns
    conversation = Conversation(workload, plan, "m")
    before = messages(conversation)
    assert conversation.take_reply("said", []) == 0.3
    after = messages(conversation)
    assert len(after) == 2
    assert after[0]["content"].startswith(text(plan, 0)[:40] + text(plan, 1))
    assert after[0]["content"][40:60] != before[0]["content"][40:60]
    assert json.loads(conversation.body())["max_tokens"] == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [("turns", 0), ("max_tokens", 0), ("context_chars", -1), ("growth_chars", -1), ("tool_s_min", 3.0)],
)
def test_a_workload_without_sense_is_refused_by_the_name_of_its_field(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Workload(**{field: value})  # type: ignore[arg-type]
