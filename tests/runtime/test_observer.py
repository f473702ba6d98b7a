"""What metrics and spans tell of runs, also of those that a restart found."""

from __future__ import annotations

import logging
import re
import uuid

import pytest

from common.trace_context import TraceContext, parse
from common.tracing import Span, Tracer
from runtime.decisions import Question
from runtime.http import metrics_of
from runtime.orders import SpawnRequest
from runtime.records import LostTrack, decode
from runtime.recovery import new_recovery_id
from runtime.refusals import InvalidArgumentError
from runtime.tool_specs import Done
from tests.runtime.rig import Hold, Rig
from tests.runtime.test_llm import Dataplane, says, served


class Kept:
    """Keeps every span."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.lost = 0

    def keep(self, span: Span) -> None:
        """Keeps it."""
        self.spans.append(span)

    def sampled(self, parent: TraceContext | None, _trace_id: int, _name: str) -> bool:
        """As the parent, else yes."""
        return parent is None or parent.sampled

    def close(self) -> None:
        """Nothing is left."""

    def one(self, name: str) -> Span:
        """The span of this name."""
        [found] = [span for span in self.spans if span.name == name]
        return found


@pytest.fixture
async def kept(r: Rig) -> Kept:
    """What the rig's runtime traces, from a restart on."""
    kept = Kept()
    r.tracer = Tracer(kept)
    await r.restart()
    return kept


async def test_a_child_is_traced_below_its_parent_and_its_calls_below_it(r: Rig, kept: Kept) -> None:
    hold = Hold()
    r.tools.behaves["lookup"] = hold
    parent = await r.spawn("CALL lookup {}")
    await hold.started.wait()
    child = await r.spawn("go", parent=parent)
    await r.settled(child)
    hold.go.set()
    await r.settled(parent)
    of_parent, of_child = (
        next(span for span in kept.spans if span.name == "invoke_agent" and span.attributes["luftpause.run_id"] == run)
        for run in (parent, child)
    )
    assert of_parent.parent is None
    assert of_child.parent == of_parent.context
    assert kept.one("execute_tool lookup").parent == of_parent.context
    assert len({span.context.trace_id for span in kept.spans}) == 1
    assert len({span.context.span_id for span in kept.spans}) == len(kept.spans)


async def test_a_restart_goes_on_below_the_same_spans_and_its_id_is_in_log_spans_and_journal(
    r: Rig, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    hold = Hold()
    r.tools.behaves["send"] = hold
    handle = await r.spawn("CALL send {}")
    await hold.started.wait()
    with caplog.at_level(logging.INFO, "runtime"):
        await r.restart()
    [line] = [line for line in caplog.messages if "event=recovered" in line]
    recovery_id = re.findall(r"recovery_id=(\S+) runs=1 ", line)[0]
    assert uuid.UUID(recovery_id).version == 7
    records = [decode(raw) for raw in await r.store.read(handle)]
    assert [record.recovery_id for record in records if isinstance(record, LostTrack)] == [recovery_id]
    assert kept.one("recover").attributes["luftpause.recovery_id"] == recovery_id
    unknown = kept.one("execute_tool send")
    assert unknown.attributes["error.type"] == "outcome_unknown"

    async def sent(_arguments: object, _key: str) -> Done:
        return Done("sent", False)

    r.tools.behaves["send"] = sent
    await r.runtime.approve(handle, True)
    await r.settled(handle)
    run = kept.one("invoke_agent")
    assert {span.parent for span in kept.spans} == {None, run.context}
    repeated = [span for span in kept.spans if span.name == "execute_tool send" and not span.error]
    assert len(repeated) == 1
    assert repeated[0].context.span_id != unknown.context.span_id


async def test_a_run_of_a_request_that_is_not_sampled_leaves_no_span(r: Rig, kept: Kept) -> None:
    above = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
    journal = await r.runtime.spawn(SpawnRequest("go"), "me", above)
    await r.settled(journal.run.run_id)
    assert kept.spans == []
    told = parse(r.runtime.observer.turn_traceparent(journal.run, 0) or "")
    assert told is not None
    assert not told.sampled


async def test_a_turn_that_fails_is_a_failed_span_and_counted(r: Rig, kept: Kept) -> None:
    handle = await r.spawn("go", model="no-such-model")
    run = await r.settled(handle)
    assert run.state == "Failed"
    chat, agent = kept.one("chat no-such-model"), kept.one("invoke_agent")
    assert run.end is not None
    assert chat.error == agent.error == run.end.text
    assert agent.attributes["error.type"] == "Failed"
    assert sample(r, 'turns_total{class="interactive",outcome="failed"}') == 1
    assert sample(r, 'ended_runs_total{state="Failed"}') == 1


ABOVE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
DECIDED = {"label": "b", "probabilities": {"b": 1.0}, "unscored": [], "model": "m"}


async def test_a_decision_is_a_span_and_what_it_asks_the_dataplane_is_below_it(
    r: Rig, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataplane = Dataplane(says(DECIDED), says({"error": {"message": "input: too long"}}, 413))
    async with served(dataplane) as url:
        monkeypatch.setattr(r.model, "_url", url)
        await r.runtime.decide(Question("x"), "me", "batch", ABOVE)
        with pytest.raises(InvalidArgumentError):
            await r.runtime.decide(Question("x"), "me", "batch", ABOVE)
    done, refused = (span for span in kept.spans if span.name == "decide")
    assert dataplane.requests[0][0]["traceparent"] == done.context.traceparent
    assert (done.parent, done.error, done.attributes["luftpause.class"]) == (parse(ABOVE), "", "batch")
    assert (refused.error, refused.context.trace_id) == ("input: too long", done.context.trace_id)


async def test_what_runs_do_is_counted(r: Rig) -> None:
    async def breaks(_arguments: object, _key: str) -> Done:
        return Done("broken", True)

    r.tools.behaves["save"] = breaks
    handle = await r.spawn("CALL lookup {}\nCALL save {}")
    run = await r.settled(handle)
    assert sample(r, "spawned_runs_total") == 1
    assert sample(r, 'runs{state="Completed"}') == 1
    assert sample(r, 'turns_total{class="interactive",outcome="ended"}') == 3
    assert sample(r, 'turn_seconds_count{class="interactive"}') == 3
    assert sample(r, "prompt_tokens_total") == run.usage.prompt_tokens
    assert [sample(r, f'tool_calls_total{{outcome="{o}"}}') for o in ("ok", "failed", "unknown")] == [1, 1, 0]
    assert sample(r, "journal_commit_seconds_count") > 6
    assert sample(r, "journal_writable") == 1


def sample(r: Rig, name: str) -> float:
    """A number of the runtime's exposition."""
    lines = metrics_of(r.runtime).decode().splitlines()
    [value] = [line.split(" ")[-1] for line in lines if line.startswith(f"luftpause_runtime_{name} ")]
    return float(value)


def test_recovery_ids_sort_by_time() -> None:
    ids = [new_recovery_id(seconds) for seconds in (1.0, 2.0, 3_000_000_000.0)]
    assert ids == sorted(ids)
    assert all(uuid.UUID(each).variant == uuid.RFC_4122 for each in ids)
