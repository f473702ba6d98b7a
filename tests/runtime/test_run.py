"""The fold of a journal, and what comes next by it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import approvals
from runtime.agent import AskApproval, CallModel, CallTools, Finish, Rest, next_step
from runtime.records import AnyRecord, Ended, JournalError, State, decode, encode
from runtime.run import DECLINED, LEFT_IN_PROGRESS, LEFT_OPEN, NOT_REPEATED, RunState, apply, conversation, fold
from tests.runtime import journals as j


def results(run: RunState) -> list[str]:
    """What the model reads of its calls."""
    return [message["content"] for message in conversation(run) if message["role"] == "tool"]


def test_a_new_run_asks_the_model_and_ends_with_its_answer() -> None:
    run = fold([j.started(system="be brief")])
    assert next_step(run) == CallModel(0, may_call=True)
    assert [message["role"] for message in conversation(run)] == ["system", "user"]
    run = apply(run, j.replied(0, content="42"))
    assert next_step(run) == Finish("42")
    run = apply(run, j.ended(text="42"))
    assert next_step(run) == Rest()
    assert run.state is State.COMPLETED


def test_a_round_is_shown_to_the_model_when_it_is_whole() -> None:
    run = fold([j.started(parallel_tool_calls=True), j.replied(0, j.call(0), j.call(1)), j.intended(0, 1)])
    run = apply(run, j.returned(0, 1, "second"))
    assert [message["role"] for message in conversation(run)] == ["user"]
    assert next_step(run) == CallTools(0, (0,))
    run = apply(apply(run, j.intended(0, 0)), j.returned(0, 0, "first"))
    assert results(run) == ["first", "second"]
    assert next_step(run) == CallModel(1, may_call=True)


def test_calls_are_made_one_after_another_unless_the_run_allows_more() -> None:
    records = [j.replied(0, j.call(0), j.call(1))]
    assert next_step(fold([j.started(), *records])) == CallTools(0, (0,))
    assert next_step(fold([j.started(parallel_tool_calls=True), *records])) == CallTools(0, (0, 1))


def test_no_call_may_be_made_when_they_are_spent() -> None:
    run = fold([j.started(tool_calls_max=1), j.replied(0, j.call(0)), j.intended(0, 0), j.returned(0, 0)])
    assert next_step(run) == CallModel(1, may_call=False)
    assert next_step(fold([j.started(tool_calls_max=0)])) == CallModel(0, may_call=False)


def test_a_refused_call_is_answered_without_being_made() -> None:
    run = fold([j.started(), j.replied(0, j.call(0, refusal="Error: expected a number"))])
    assert next_step(run) == CallModel(1, may_call=True)
    assert results(run) == ["Error: expected a number"]
    assert (run.usage.tool_calls, run.usage.failed_tool_calls) == (1, 1)


def test_promise_02_an_effect_recorded_done_is_never_run_again() -> None:
    run = fold([j.started(parallel_tool_calls=True), j.replied(0, j.call(0), j.call(1)), j.intended(0, 0)])
    run = apply(run, j.returned(0, 0))
    assert next_step(run) == CallTools(0, (1,))
    with pytest.raises(JournalError, match="has its outcome"):
        apply(run, j.intended(0, 0))


def test_promise_03_a_call_of_unknown_outcome_waits_for_a_person() -> None:
    run = fold([j.started(), j.replied(0, j.call(0)), j.intended(0, 0), j.lost(0, 0)])
    assert run.state is State.AWAITING_APPROVAL
    asked = approvals.question(run)
    assert asked is not None
    assert asked.known == "no answer came."
    declined = apply(run, approvals.answer(asked, False, 9.0))
    assert results(declined) == [NOT_REPEATED]
    allowed = apply(run, approvals.answer(asked, True, 9.0))
    assert next_step(allowed) == CallTools(0, (0,))
    # Its repetition is an intent of its own, and may be lost again.
    again = apply(apply(allowed, j.intended(0, 0)), j.lost(0, 0))
    assert again.state is State.AWAITING_APPROVAL


def test_promise_06_an_approval_is_asked_once_and_lasts() -> None:
    run = fold([j.started(), j.replied(0, j.call(0, needs_approval=True))])
    assert next_step(run) == AskApproval(0, 0)
    with pytest.raises(JournalError, match="must not start"):
        apply(run, j.intended(0, 0))
    run = apply(run, j.answered(0, 0, True))
    assert next_step(run) == CallTools(0, (0,))
    with pytest.raises(JournalError, match="nothing was asked"):
        apply(run, j.answered(0, 0, True))
    run = apply(apply(run, j.intended(0, 0)), j.returned(0, 0))
    assert next_step(run) == CallModel(1, may_call=True)


def test_a_declined_call_tells_the_model_so() -> None:
    run = fold([j.started(), j.replied(0, j.call(0, needs_approval=True)), j.answered(0, 0, False)])
    assert results(run) == [DECLINED]
    assert run.usage.failed_tool_calls == 1


def test_approvals_come_before_every_call_of_their_round() -> None:
    calls = (j.call(0), j.call(1, needs_approval=True), j.call(2, needs_approval=True))
    run = fold([j.started(parallel_tool_calls=True), j.replied(0, *calls)])
    assert next_step(run) == AskApproval(0, 1)
    run = apply(run, j.answered(0, 1, True))
    assert next_step(run) == AskApproval(0, 2)
    run = apply(run, j.answered(0, 2, False))
    assert next_step(run) == CallTools(0, (0, 1))


def test_promise_10_a_run_that_ends_in_a_round_is_closed_for_the_provider() -> None:
    run = fold([j.started(parallel_tool_calls=True), j.replied(0, j.call(0), j.call(1)), j.intended(0, 0)])
    run = apply(run, j.ended(State.CANCELLED, "cancelled"))
    j.assert_valid(conversation(run))
    assert results(run) == [LEFT_IN_PROGRESS, LEFT_OPEN]


@pytest.mark.parametrize(
    "records",
    [
        [],
        [j.ended()],
        [j.started(), j.started()],
        [j.started(), j.replied(1)],
        [j.started(), j.replied(0, content="a"), j.replied(1)],
        [j.started(), j.replied(0, j.call(0)), j.replied(1)],
        [j.started(), j.replied(0, j.call(0)), j.returned(0, 0)],
        [j.started(), j.replied(0, j.call(0)), j.lost(0, 0)],
        [j.started(), j.replied(0, j.call(0)), j.intended(0, 1)],
        [j.started(), j.replied(0, j.call(0)), j.intended(1, 0)],
        [j.started(), j.replied(0, j.call(0)), j.intended(0, 0, "run-2")],
        [j.started(), j.replied(0, j.call(0)), j.intended(0, 0), j.intended(0, 0)],
        [j.started(), j.replied(0, j.call(0)), j.answered(0, 0, True)],
        [j.started(), j.ended(), j.ended()],
    ],
)
def test_records_that_cannot_follow_are_no_journal(records: list[AnyRecord]) -> None:
    with pytest.raises(JournalError):
        fold(records)


def lived(chance: random.Random) -> list[AnyRecord]:
    """The journal of a run that does what is next until it ends, with chance as model, tools and person."""
    run = fold([start := j.started(parallel_tool_calls=chance.random() < 0.5, tool_calls_max=6)])
    records: list[AnyRecord] = [start]

    def tell(record: AnyRecord) -> None:
        nonlocal run
        records.append(decode(encode(record)))
        run = apply(run, records[-1])

    while run.end is None:
        if chance.random() < 0.05:
            tell(j.ended(State.CANCELLED, "cancelled"))
            break
        match next_step(run):
            case CallModel(step, may_call):
                number = chance.randint(0, 3) if may_call else 0
                refusals = [chance.choice([None, None, "Error: no"]) for _ in range(number)]
                asks = [chance.random() < 0.3 for _ in range(number)]
                calls = (j.call(n, refusal=refusals[n], needs_approval=asks[n]) for n in range(number))
                tell(j.replied(step, *calls, content="x"))
            case CallTools(step, calls):
                for number in calls:
                    if not run.steps[step].calls[number].intended:
                        tell(j.intended(step, number))
                for number in calls:
                    tell(j.lost(step, number) if chance.random() < 0.2 else j.returned(step, number))
            case AskApproval(step, number):
                tell(j.answered(step, number, chance.random() < 0.6))
            case Finish(answer):
                tell(j.ended(text=answer))
            case Rest():
                break
    return records


@given(st.integers(0, 2**32))
def test_promise_01_what_a_restart_finds_extends_what_was_there_and_is_valid(seed: int) -> None:
    records = lived(random.Random(seed))
    before: list[dict[str, object]] = []
    run: RunState | None = None
    for length, record in enumerate(records, 1):
        run = apply(run, record)
        messages = conversation(run)
        assert messages[: len(before)] == before
        assert fold(records[:length]) == run
        j.assert_valid(messages)
        before = messages
    assert isinstance(records[-1], Ended)


def test_promise_12_a_journal_grows_with_its_steps_and_not_with_their_square() -> None:
    def size(steps: int) -> int:
        journal: list[AnyRecord] = [j.started(tool_calls_max=steps)]
        for step in range(steps):
            journal += [j.replied(step, j.call(0)), j.intended(step, 0), j.returned(step, 0)]
        run = fold(journal)
        assert len(run.steps) == steps
        return sum(len(encode(record)) for record in journal)

    assert size(1000) < 10.2 * size(100)
