"""Whether and when runs come back, as learned."""

from __future__ import annotations

from scheduler.habits import PAUSE_S_MAX, USUAL, returned, stayed_away


def test_a_run_that_called_a_tool_is_expected_and_an_idle_one_when_one_like_it_returned() -> None:
    assert USUAL.expects(1, paused=True)
    assert not USUAL.expects(1, paused=False)
    assert returned(USUAL, 1, 1.0, paused=False).expects(1, paused=False)
    assert USUAL.patience_s == PAUSE_S_MAX


def test_callers_of_single_turns_are_soon_not_waited_for() -> None:
    habit = USUAL
    for _ in range(5):
        habit = stayed_away(habit, 1, paused=False)
    assert not habit.expects(1, paused=False)
    assert habit.expects(1, paused=True), "a tool call is another habit"


def test_the_last_turn_of_runs_of_equal_length_is_learned() -> None:
    habit = USUAL
    for _ in range(10):
        for turn in (1, 2, 3):
            habit = returned(habit, turn, 1.0, paused=False)
        habit = stayed_away(habit, 4, paused=False)
    assert [habit.expects(turn, paused=False) for turn in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_run_that_comes_back_after_all_is_expected_again() -> None:
    habit = USUAL
    for _ in range(20):
        habit = stayed_away(habit, 2, paused=False)
    for _ in range(4):
        habit = returned(habit, 2, 1.0, paused=False)
    assert habit.expects(2, paused=False)


def test_patience_follows_the_pauses() -> None:
    quick = slow = USUAL
    for number in range(200):
        quick = returned(quick, 1, 0.5 + number % 4 / 2, paused=True)
        slow = returned(slow, 1, 20.0 + number % 40, paused=True)
    assert 2.0 < quick.patience_s < 6.0
    assert slow.patience_s == PAUSE_S_MAX


def test_turns_beyond_those_counted_share_a_place() -> None:
    habit = USUAL
    for _ in range(10):
        habit = stayed_away(habit, 100, paused=True)
    assert not habit.expects(40, paused=True)
    assert habit.expects(15, paused=True)
