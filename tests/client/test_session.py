"""A session: what is reserved, spent and refused, and a run that goes on where it was."""

from __future__ import annotations

import errno
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from luftpause_client import Action, NotNowError, Reading, RunCompletedError, Session, Window, session

ASK = [{"role": "user", "content": "Hello"}]


class TooManyError(Exception):
    """As clients raise it for an answer 429."""

    status_code = 429

    def __init__(self, retry_after: str) -> None:
        super().__init__("slow down")
        self.headers = {"Retry-After": retry_after}


def costing(tokens: object) -> Callable[[list[Any]], Any]:
    """A turn that takes `tokens`."""
    return lambda _: ("reply", tokens)


def opened(folder: pathlib.Path, turn: Any = None, reading: Reading = None, **options: Any) -> Session[str]:
    return session("r", turn or costing(100), telemetry=lambda: reading, folder=folder, **options)


def test_a_call_gives_the_reply_and_counts_its_tokens(tmp_path: pathlib.Path) -> None:
    with opened(tmp_path) as run:
        assert run.call(ASK) == "reply"
        assert run.call(ASK) == "reply"
        assert (run.spent_tokens, run.turns) == (200, 2)


def test_the_next_action_is_its_text(tmp_path: pathlib.Path) -> None:
    for reading, action in ((1e6, "continue"), (Window(0, None, 5.0), "wait"), (0, "checkpoint"), (None, "continue")):
        with opened(tmp_path, reading=reading) as run:
            assert run.next_action() == action
            assert run.should_suspend() is (action == "checkpoint")


def test_two_calls_of_one_agent_do_not_over_commit(tmp_path: pathlib.Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def turn(_: list[Any]) -> tuple[str, int]:
        begun.set()
        assert go_on.wait(20)
        return "reply", 100

    with opened(tmp_path, turn, reading=600) as run:
        first = threading.Thread(target=run.call, args=(ASK,))
        first.start()
        assert begun.wait(20)
        with pytest.raises(NotNowError, match=r"600 remain, \d+ of it reserved"):
            run.call(ASK)
        assert run.should_suspend()
        go_on.set()
        first.join(20)
        assert not run.should_suspend()


@pytest.mark.parametrize("problem", [RuntimeError("broken"), KeyboardInterrupt(), TooManyError("0")])
def test_a_call_that_raises_keeps_nothing_reserved(tmp_path: pathlib.Path, problem: BaseException) -> None:
    def turn(_: list[Any]) -> tuple[str, int]:
        raise problem

    with opened(tmp_path, turn, reading=600) as run:
        for _ in range(20):
            with pytest.raises(NotNowError if isinstance(problem, TooManyError) else type(problem)):
                run.call(ASK)
            if isinstance(problem, TooManyError):
                break  # a refusal widens the spread by itself
        assert run._reserved == []
        assert run.spent_tokens == 0


def test_a_refusal_is_waited_out_with_more_caution(tmp_path: pathlib.Path) -> None:
    refusals = [TooManyError("Sun, 17 Mar 2999 17:47:10 GMT")]

    def turn(_: list[Any]) -> tuple[str, int]:
        if refusals:
            raise refusals.pop()
        return "reply", 100

    with opened(tmp_path, turn, reading=1e6) as run:
        before = run.outlook(ASK).need_tokens
        with pytest.raises(NotNowError) as refused:
            run.call(ASK)
        assert isinstance(refused.value.__cause__, TooManyError)
        assert refused.value.outlook.action is Action.CHECKPOINT
        assert run.outlook(ASK).need_tokens > before
    with opened(tmp_path, turn, reading=1e6) as run:  # resumed too early
        assert run.should_suspend()
        with pytest.raises(NotNowError):
            run.call(ASK)


def test_caution_decays(tmp_path: pathlib.Path) -> None:
    refusals = [TooManyError("0")]

    def turn(_: list[Any]) -> tuple[str, int]:
        if refusals:
            raise refusals.pop()
        return "reply", 100

    with opened(tmp_path, turn, reading=1e6) as run:
        with pytest.raises(NotNowError) as refused:
            run.call(ASK)
        assert refused.value.outlook.action is Action.WAIT
        needs = []
        for _ in range(8):
            run.call(ASK)
            needs.append(run.outlook(ASK).need_tokens)
    assert needs[-1] < needs[1]


def test_what_was_spent_is_remembered_without_a_checkpoint_and_the_state_is_of_the_last_one(
    tmp_path: pathlib.Path,
) -> None:
    with opened(tmp_path) as run:
        run.state["step"] = 1
        run.checkpoint()
        run.state["step"] = 2
        run.call(ASK)
    with opened(tmp_path) as run:
        assert run.spent_tokens == 100
        assert run.state == {"step": 1}


def test_a_refusal_is_told_though_the_disk_is_full(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(_: list[Any]) -> tuple[str, int]:
        monkeypatch.setattr(os, "replace", fail)
        raise TooManyError("40")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with opened(tmp_path, turn) as run:
        with pytest.raises(NotNowError):
            run.call(ASK)
        assert run.should_suspend()


def test_a_reply_that_no_checkpoint_followed_is_not_asked_for_again(tmp_path: pathlib.Path) -> None:
    asked: list[Any] = []

    def turn(messages: list[Any]) -> tuple[dict[str, Any], int]:
        asked.append(messages)
        return {"content": f"reply {len(asked)}"}, 100

    other = [{"role": "user", "content": "Other"}]
    with session("r", turn, folder=tmp_path) as run:
        assert run.call(ASK) == {"content": "reply 1"}
        assert run.call(other) == {"content": "reply 2"}
    with session("r", turn, folder=tmp_path) as run:  # killed before its checkpoint
        assert [run.call(ASK), run.call(other)] == [{"content": "reply 1"}, {"content": "reply 2"}]
        assert (len(asked), run.spent_tokens, run.turns) == (2, 200, 2)
        assert run.call(ASK) == {"content": "reply 3"}, "asked anew by one session, it is another turn"
        run.checkpoint()
    with session("r", turn, folder=tmp_path) as run:
        assert run.call(ASK) == {"content": "reply 4"}, "the checkpoint has what was replied before"


def test_a_reply_that_json_cannot_hold_is_asked_for_again(tmp_path: pathlib.Path) -> None:
    asked: list[Any] = []

    def turn(messages: list[Any]) -> tuple[object, int]:
        asked.append(messages)
        return object(), 1

    for number in (1, 2):
        with session("r", turn, folder=tmp_path) as run:
            run.call(ASK)
            assert len(asked) == number


def test_a_budget_covers_the_run_also_after_it_was_resumed(tmp_path: pathlib.Path) -> None:
    calls = 0
    while not (run := opened(tmp_path, budget_tokens=1500)).should_suspend():
        with run:
            run.call(ASK)
            run.checkpoint()
        calls += 1
    with run, pytest.raises(NotNowError, match=r"^budget_tokens: \d+ of 1500 taken"):
        run.call(ASK)
    assert 5 < calls <= 15


def test_the_history_on_the_disk_is_bounded(tmp_path: pathlib.Path) -> None:
    sizes = []
    with opened(tmp_path) as run:
        for _ in range(3):
            for _ in range(70):
                run.call(ASK)
            sizes.append((tmp_path / "run-r.json").stat().st_size)
    assert sizes[2] - sizes[1] < 16


@pytest.mark.parametrize(
    "answer", [None, "reply", ("reply",), ("reply", None), ("reply", -1), ("reply", 1.5), ("r", True)]
)
def test_a_turn_that_gives_something_else_is_a_clear_error(tmp_path: pathlib.Path, answer: object) -> None:
    with opened(tmp_path, lambda _: answer) as run:
        with pytest.raises(TypeError, match=r"^(turn|tokens_used): expected"):
            run.call(ASK)
        assert run._reserved == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"budget_tokens": 0}, "budget_tokens: expected"),
        ({"budget_tokens": "9"}, "budget_tokens: expected"),
        ({"wait_s_max": -1}, "wait_s_max: expected"),
        ({"wait_s_max": float("nan")}, "wait_s_max: expected"),
        ({"telemetry": 7}, "telemetry: expected"),
        ({"turn": "gpt"}, "turn: expected"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path: pathlib.Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        session("r", folder=tmp_path, **options)
    session("r", folder=tmp_path).close()


def test_a_completed_run_does_nothing_more(tmp_path: pathlib.Path) -> None:
    with opened(tmp_path) as run:
        run.state["answer"] = 42
        run.complete()
    with opened(tmp_path) as run:
        assert run.completed
        assert run.state == {"answer": 42}
        for call in (run.call, run.checkpoint, run.complete):
            with pytest.raises(RunCompletedError):
                call()


def test_a_closed_session_takes_nothing_more(tmp_path: pathlib.Path) -> None:
    run = opened(tmp_path)
    run.close()
    run.close()
    for call in (run.call, run.checkpoint, run.complete):
        with pytest.raises(ValueError, match="the session was closed"):
            call()


def test_what_telemetry_raises_is_passed_on(tmp_path: pathlib.Path) -> None:
    def telemetry() -> Reading:
        raise ConnectionError("no telemetry")

    with session("r", costing(1), telemetry=telemetry, folder=tmp_path) as run, pytest.raises(ConnectionError):
        run.call(ASK)
