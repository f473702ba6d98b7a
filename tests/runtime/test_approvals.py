"""Answers to questions by their names: one that comes twice does not answer what nobody saw."""

from __future__ import annotations

import pytest

from runtime import approvals
from runtime.refusals import WrongStateError
from tests.runtime.rig import Hold, Rig, results

TWO = 'CALL delete {"query": "a"}\nCALL delete {"query": "b"}'


def asked(r: Rig, handle: str) -> list[tuple[str, str]]:
    """Name and arguments of each open question."""
    return [(each.name, each.arguments) for each in approvals.questions(r.journal(handle).run)]


@pytest.mark.parametrize("parallel", [False, True])
async def test_an_answer_that_is_repeated_answers_no_other_question(r: Rig, parallel: bool) -> None:
    handle = await r.spawn(TWO, parallel_tool_calls=parallel)
    await r.until(handle, "AwaitingApproval")
    (first, arguments), *_ = asked(r, handle)
    assert "a" in arguments
    assert await r.runtime.approve(handle, True, first) == (r.journal(handle), True)
    await r.until(handle, "AwaitingApproval")
    ((second, arguments),) = asked(r, handle)
    assert "b" in arguments
    for allow in (True, False):
        assert await r.runtime.approve(handle, allow, first) == (r.journal(handle), True)
    assert asked(r, handle) == [(second, arguments)]
    assert r.times("delete") == (0 if parallel else 1)
    assert (await r.runtime.approve(handle, False, second))[1] is False
    assert len(results(await r.settled(handle))) == 2
    await r.restart()
    assert (await r.runtime.approve(handle, True, first))[1] is True
    assert (await r.runtime.approve(handle, True, second))[1] is False
    assert r.times("delete") == 1


@pytest.mark.parametrize("name", ["0-9-0", "0-0-1", "nothing"])
async def test_a_question_that_was_never_asked_is_not_answered(r: Rig, name: str) -> None:
    handle = await r.spawn(TWO)
    await r.until(handle, "AwaitingApproval")
    with pytest.raises(WrongStateError, match=f"has asked no '{name}'"):
        await r.runtime.approve(handle, True, name)
    await r.runtime.cancel(handle)
    with pytest.raises(WrongStateError, match="has asked no '0-0-0'"):
        await r.runtime.approve(handle, True, "0-0-0")
    assert r.times("delete") == 0


async def test_questions_about_one_call_have_names_of_their_own(r: Rig) -> None:
    handle = await r.spawn("CALL send {}", approve_tools=("send",))
    hold = r.tools.behaves["send"] = Hold()
    await r.until(handle, "AwaitingApproval")
    await r.runtime.approve(handle, True, "0-0-0")
    await hold.started.wait()
    await r.restart()
    assert [name for name, _ in asked(r, handle)] == ["0-0-1"]
    assert (await r.runtime.approve(handle, False, "0-0-0"))[1] is True
    assert r.state(handle) == "AwaitingApproval"
    assert (await r.runtime.approve(handle, False, "0-0-1"))[1] is False
