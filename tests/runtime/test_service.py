"""The runtime's operations: what they check, trees, budgets, awaiting and watching."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from runtime.orders import DEPTH_MAX
from runtime.records import Ended, Limits, Started
from runtime.refusals import InvalidArgumentError, RefusedError, UnknownRunError, WrongStateError
from runtime.service import Runtime
from runtime.tool_specs import Done, EffectKind, Outcome
from tests.runtime.rig import Hold, Rig, results, spec
from tests.waiting import wait_until


async def test_a_run_calls_tools_and_answers(r: Rig) -> None:
    run = await r.settled(await r.spawn('CALL lookup {"query": "x"}', system="be brief"))
    assert run.state == "Completed"
    assert results(run) == ["lookup did x"]
    assert run.end is not None
    assert run.end.text == run.steps[-1].content != ""
    assert (run.usage.turns, run.usage.tool_calls, run.usage.failed_tool_calls) == (2, 1, 0)
    assert run.usage.prompt_tokens > 0
    assert run.caller == "tester"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"task": ""}, "task: expected a text that is not empty"),
        ({"task": "x" * 1_000_001}, "task: expected at most 1000000 characters"),
        ({"task": "\ud800"}, "task: expected Unicode text"),
        ({"model": ""}, "model: expected the name of a model"),
        ({"model": "\ud800"}, "model: expected Unicode text"),
        ({"service_class": "urgent"}, "serviceClass: expected 'interactive' or 'batch'"),
        ({"tools": ("nothing",)}, "tools: there is no tool 'nothing'; there are: lookup, save, send, delete"),
        ({"approve_tools": ("nothing",)}, "approveTools: there is no tool 'nothing'"),
        ({"max_tool_calls": -1}, "maxToolCalls: expected a whole number from 0 to"),
        ({"max_tokens": -1}, "maxTokens: expected a whole number from 0 to"),
        ({"budget_tokens": -5}, "budgetTokens: expected a whole number from 1 to"),
        ({"budget_tool_calls": 0}, "budgetToolCalls: expected a whole number from 1 to"),
        ({"budget_seconds": -1.0}, "budgetSeconds: expected a number more than 0"),
        ({"budget_seconds": float("nan")}, "budgetSeconds: expected a number more than 0"),
    ],
    ids=str,
)
async def test_a_bad_argument_is_refused_by_its_name(r: Rig, arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        await r.spawn(**{"task": "t", **arguments})
    assert str(refused.value).startswith(expected)
    assert await r.store.runs() == {}


async def test_an_unknown_handle_is_refused_by_every_operation(r: Rig) -> None:
    calls = [
        r.runtime.await_(["nobody"]),
        r.runtime.cancel("nobody"),
        r.runtime.approve("nobody", True),
        r.runtime.read("nobody"),
        r.spawn("t", parent="nobody"),
    ]
    for call in calls:
        with pytest.raises(UnknownRunError, match="there is no run 'nobody'"):
            await call


async def test_a_parent_that_ended_has_no_new_children(r: Rig) -> None:
    handle = await r.spawn("t")
    await r.settled(handle)
    with pytest.raises(WrongStateError, match=r"parent: run \S+ has ended"):
        await r.spawn("t", parent=handle)


async def test_a_tree_is_so_deep_and_no_deeper(r: Rig) -> None:
    handle = await r.spawn("CALL delete {}")
    for _ in range(DEPTH_MAX - 1):
        handle = await r.spawn("CALL delete {}", parent=handle)
    with pytest.raises(WrongStateError, match=rf"parent: run {handle} is {DEPTH_MAX} runs deep, and none is deeper"):
        await r.spawn("t", parent=handle)


async def test_children_have_the_class_of_their_parent_and_the_caller_of_their_root(r: Rig) -> None:
    r.tools.behaves["lookup"] = Hold()
    root = await r.spawn("CALL lookup {}", caller="root's", service_class="batch")
    child = await r.spawn("CALL lookup {}", caller="another", parent=root)
    grandchild = await r.spawn("t", caller="a third", parent=child)
    run = r.journal(grandchild).run
    assert (run.caller, run.order.run_class, run.root, run.parent) == ("root's", "batch", root, child)
    with pytest.raises(InvalidArgumentError, match="serviceClass: a child has the class of its parent, 'batch'"):
        await r.spawn("t", parent=root, service_class="interactive")


async def test_a_caller_is_cut_and_cannot_break_a_header(r: Rig) -> None:
    handle = await r.spawn("t", caller="a\r\nx: y" + "ü" * 100)
    caller = r.journal(handle).run.caller
    assert caller.startswith("ax: yü")
    assert len(caller.encode()) <= 128
    assert (await r.settled(handle)).state == "Completed"


async def test_tools_that_the_owner_names_need_approval(r: Rig) -> None:
    handle = await r.spawn("CALL lookup {}", approve_tools=("lookup",))
    await r.until(handle, "AwaitingApproval")
    await r.runtime.approve(handle, True)
    assert results(await r.settled(handle)) == ["lookup did something"]


async def test_a_run_is_offered_only_the_tools_it_names(r: Rig) -> None:
    run = await r.settled(await r.spawn("CALL save {}", tools=("lookup",)))
    assert results(run) == ["Error: there is no tool 'save'; there are: lookup"]
    assert not r.tools.calls


async def test_arguments_that_do_not_fit_are_answered_and_not_run(r: Rig) -> None:
    run = await r.settled(await r.spawn('CALL lookup {"query": [1]}'))
    assert run.usage.failed_tool_calls == 1
    assert results(run)[0].startswith("Error: bad arguments for lookup")
    assert not r.tools.calls


async def test_arguments_are_coerced_before_the_call(r: Rig) -> None:
    await r.settled(await r.spawn('CALL lookup {"query": 5}'))
    assert r.tools.calls[0][1] == {"query": "5"}


async def test_a_model_that_never_stops_calling_tools_is_made_to_answer(r: Rig) -> None:
    task = "\n".join("CALL lookup {}" for _ in range(50))
    run = await r.settled(await r.spawn(task, max_tool_calls=3))
    assert run.state == "Completed"
    assert (run.usage.turns, r.times("lookup")) == (4, 3)
    together = await r.settled(await r.spawn(task, max_tool_calls=3, parallel_tool_calls=True))
    assert r.times("lookup") == 6
    assert together.usage.turns == 2


async def test_a_result_that_is_too_large_is_cut_with_a_note(r: Rig) -> None:
    async def lookup(_arguments: dict[str, Any], _key: str) -> Outcome:
        return Done("x" * 1_000_000, False)

    r.tools.behaves["lookup"] = lookup
    (text,) = results(await r.settled(await r.spawn("CALL lookup {}")))
    assert len(text) < 40_000
    assert "characters are missing here" in text


async def test_a_tool_that_fails_is_counted_and_the_run_goes_on(r: Rig) -> None:
    async def lookup(_arguments: dict[str, Any], _key: str) -> Outcome:
        return Done("no such page", True)

    r.tools.behaves["lookup"] = lookup
    run = await r.settled(await r.spawn("CALL lookup {}"))
    assert (run.state, run.usage.failed_tool_calls, results(run)) == ("Completed", 1, ["no such page"])


async def test_a_budget_of_tokens_ends_the_run_before_its_next_round(r: Rig) -> None:
    run = await r.settled(await r.spawn("CALL lookup {}", budget_tokens=1))
    assert run.state == "BudgetExceeded"
    assert run.end is not None
    assert run.end.text.startswith("budget exceeded: tokens ")
    assert run.end.text.endswith("/1")
    assert not r.tools.calls


async def test_a_budget_covers_what_is_spawned_below_and_ends_it_too(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["lookup"] = hold
    root = await r.spawn("CALL lookup {}", budget_tool_calls=2)
    child = await r.spawn("CALL save {}", parent=root)
    await r.settled(child)
    second = await r.spawn("CALL save {}", parent=root)
    for handle in (root, second):
        await r.until(handle, "BudgetExceeded")
    end = r.journal(second).run.end
    assert end is not None
    assert end.text == "budget exceeded: tool calls 2/2 (1 more asked for and not made)"
    with pytest.raises(WrongStateError):
        await r.spawn("t", parent=root)


async def test_a_spent_budget_is_still_spent_after_a_restart(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["lookup"] = hold
    handle = await r.spawn("CALL save {}\nCALL lookup {}\nCALL save {}", budget_tool_calls=2)
    await hold.started.wait()
    del r.tools.behaves["lookup"]
    await r.restart()
    run = await r.settled(handle)
    assert run.end is not None
    assert run.end.text == "budget exceeded: tool calls 2/2 (1 more asked for and not made)"
    assert r.times("save") == 1


async def test_a_budget_of_seconds_ends_a_run_that_waits(r: Rig) -> None:
    r.tools.behaves["lookup"] = Hold()
    busy = await r.spawn("CALL lookup {}", budget_seconds=0.4)
    resting = await r.spawn("CALL delete {}", parent=busy)
    for handle in (busy, resting):
        await r.until(handle, "BudgetExceeded")
    end = r.journal(busy).run.end
    assert end is not None
    assert end.text == "budget exceeded: seconds 0.4/0.4"
    assert end.at - r.journal(busy).run.started_at >= 0.4


async def test_the_seconds_of_a_budget_count_from_the_start_of_the_run_over_a_restart(r: Rig) -> None:
    handle = await r.spawn("CALL delete {}", budget_seconds=4.0)
    await r.until(handle, "AwaitingApproval")
    await wait_until(lambda: r.journal(handle).age_s > 3.5)
    await r.restart()
    await r.until(handle, "BudgetExceeded")
    run = r.journal(handle).run
    assert run.end is not None
    assert 4.0 <= run.end.at - run.started_at < 7.0


async def test_promise_07_a_time_that_was_over_during_a_downtime_ends_the_run_once(r: Rig) -> None:
    handle = await r.spawn("CALL delete {}", budget_seconds=2.0)
    await r.until(handle, "AwaitingApproval")
    await r.crash()
    await asyncio.sleep(2.0)
    await r.start()
    await r.until(handle, "BudgetExceeded")
    assert sum(b'"ended"' in record for record in await r.store.read(handle)) == 1


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_promise_07_a_clock_that_is_set_ends_no_run_early_or_late(
    r: Rig, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    hold, right = Hold(), time.time
    r.tools.behaves["lookup"] = hold
    patient = await r.spawn("CALL lookup {}\nCALL save {}", budget_seconds=60)
    await hold.started.wait()
    monkeypatch.setattr(time, "time", lambda: right() + jump_s)
    hasty = await r.spawn("CALL lookup {}", budget_seconds=0.3)
    monkeypatch.setattr(time, "time", right)
    await r.until(hasty, "BudgetExceeded")
    monkeypatch.setattr(time, "time", lambda: right() + jump_s)
    hold.go.set()
    assert (await r.settled(patient)).state == "Completed"


async def test_watch_tells_every_record_to_the_end(r: Rig) -> None:
    hold = Hold()
    r.tools.behaves["lookup"] = hold
    handle = await r.spawn("CALL lookup {}")
    kinds: list[str] = []
    async for record in r.runtime.watch(handle):
        kinds.append(type(record).__name__)
        if kinds[-1] == "Intended":
            hold.go.set()
    assert kinds == ["Started", "Replied", "Intended", "Returned", "Replied", "Ended"]
    again = [record async for record in r.runtime.watch(handle)]
    assert isinstance(again[0], Started)
    assert isinstance(again[-1], Ended)


async def test_ended_runs_answer_after_a_restart(r: Rig) -> None:
    handle = await r.spawn('CALL lookup {"query": "x"}')
    before = await r.settled(handle)
    await r.restart()
    assert await r.settled(handle) == before
    assert r.times("lookup") == 1


async def test_a_child_left_alone_by_a_crash_goes_with_its_cancelled_parent(r: Rig) -> None:
    r.tools.behaves["lookup"] = Hold()
    root = await r.spawn("CALL lookup {}")
    child = await r.spawn("CALL lookup {}", parent=root)
    ended = Ended(at=time.time(), state=r.journal(root).run.state.CANCELLED, text="cancelled")
    await r.journal(root).append(ended)
    await r.restart()
    await r.until(child, "Cancelled")


async def test_a_tool_that_is_gone_after_a_restart_tells_the_model_so(r: Rig) -> None:
    hold = Hold()
    r.tools.specs.append(spec("odd", EffectKind.READ_ONLY))
    r.tools.behaves["odd"] = hold
    handle = await r.spawn("CALL odd {}")
    await hold.started.wait()
    r.tools.specs.pop()
    await r.restart()
    assert results(await r.settled(handle)) == ["Error: the tool 'odd' is no longer there"]


async def test_what_was_not_asked_is_not_answered(r: Rig) -> None:
    handle = await r.spawn("t")
    await r.settled(handle)
    with pytest.raises(RefusedError, match="waits for no approval; it is Completed"):
        await r.runtime.approve(handle, True)
    assert r.journal(handle).run.order.limits == Limits()


async def test_ended_trees_are_forgotten_after_their_time_and_others_kept(r: Rig) -> None:
    root = await r.spawn("CALL delete {}")
    child = await r.spawn("t", parent=root)
    done = await r.spawn("t")
    for handle in (root, child, done):
        await r.settled(handle)
    await r.runtime.close()
    later = await Runtime.start(r.store, r.model, r.tools, keep_s=0.001)

    async def gone() -> bool:
        return list(await r.store.runs()) == [root, child]

    await wait_until(gone)
    with pytest.raises(UnknownRunError):
        await later.read(done)
    await later.close()
