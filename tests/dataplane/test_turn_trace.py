"""The spans of a proxied turn, as a collector gets them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from common.trace_context import parse
from tests.collector import Collector, grpc_collector
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.dataplane.scripted_engine import Call, whole
from tests.dataplane.test_decide import CHOOSE, CHOSEN, CLASSIFIED, CLASSIFY, decide, sends

ABOVE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
async def collector(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    """A collector that the dataplane, which is started with it, sends to; `rig.stop` sends what is left."""
    with grpc_collector() as collector:
        for name, value in collector.settings.items():
            monkeypatch.setenv(name, value)
        await rig.start(otlp_endpoint=collector.settings["OTEL_EXPORTER_OTLP_ENDPOINT"], otlp_protocol="grpc")
        yield collector


async def test_a_turn_and_its_engine_request_are_spans_below_the_clients(rig: Rig, collector: Collector) -> None:
    response = await rig.ask(request({**CHAT, "stream": True}, f"TraceParent: {ABOVE}", "x-luftpause-run-id: run-7"))
    assert response.status == 200
    await rig.stop()
    [turn], [engine] = collector.named("turn "), collector.named("engine")
    told, above = rig.scheduler.turns[0], parse(ABOVE)
    assert above is not None
    assert (turn.service, turn.kind, engine.kind) == ("luftpause-dataplane", 2, 3)
    assert (turn.trace_id, turn.parent_id) == (f"{above.trace_id:032x}", f"{above.span_id:016x}")
    assert (engine.trace_id, engine.parent_id) == (turn.trace_id, turn.span_id)
    assert turn.start_ns <= engine.start_ns <= engine.end_ns <= turn.end_ns
    # Each hop is told its own parent, and the client's header goes no further.
    assert told.traceparent == f"00-{turn.trace_id}-{turn.span_id}-01"
    assert rig.engine.calls[0].headers["traceparent"] == f"00-{engine.trace_id}-{engine.span_id}-01"
    assert turn.attributes["luftpause.turn_id"] == told.turn_id == rig.engine.calls[0].headers["x-request-id"]
    assert turn.attributes["luftpause.run_id"] == "run-7"
    assert turn.attributes["luftpause.outcome"] == "ended"
    assert turn.attributes["gen_ai.usage.input_tokens"] == 12
    assert turn.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert turn.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert turn.attributes["luftpause.held_ms"] >= 0
    assert not turn.is_error


@pytest.mark.parametrize(("asked", "answer"), [(CLASSIFY, CLASSIFIED), (CHOOSE, CHOSEN)], ids=["classify", "labels"])
async def test_a_decision_is_traced_as_the_turn_that_it_is(
    rig: Rig, collector: Collector, asked: dict[str, object], answer: bytes
) -> None:
    rig.engine.script = sends(whole(answer))
    response = await rig.ask(decide({**asked, "model": "m"}, f"traceparent: {ABOVE}"))
    assert response.status == 200, response.json
    await rig.stop()
    [turn], [engine] = collector.named("turn m"), collector.named("engine")
    assert (turn.trace_id, turn.parent_id, engine.parent_id) == (ABOVE[3:35], ABOVE[36:52], turn.span_id)
    assert rig.scheduler.turns[0].traceparent == f"00-{turn.trace_id}-{turn.span_id}-01"
    assert rig.engine.calls[0].headers["traceparent"] == f"00-{engine.trace_id}-{engine.span_id}-01"
    assert (turn.attributes["luftpause.outcome"], turn.attributes["luftpause.class"]) == ("ended", "interactive")
    assert turn.attributes["gen_ai.usage.input_tokens"] > 0


async def test_a_decision_that_failed_says_why(rig: Rig, collector: Collector) -> None:
    async def die(call: Call) -> None:
        call.writer.close()

    rig.engine.script = die
    response = await rig.ask(decide({**CHOOSE, "model": "m"}))
    assert response.status == 502
    await rig.stop()
    [turn] = collector.named("turn m")
    assert (turn.is_error, turn.message) == (True, response.json["error"]["message"])


async def test_a_turn_that_failed_says_why(rig: Rig, collector: Collector) -> None:
    async def die(call: Call) -> None:
        call.writer.close()

    rig.engine.script = die
    response = await rig.ask(request(CHAT))
    assert response.status == 502
    await rig.stop()
    [turn] = collector.named("turn ")
    assert turn.is_error
    assert turn.message == response.json["error"]["message"]
    assert (turn.attributes["error.type"], turn.parent_id) == ("failed", "")


async def test_who_decided_against_sampling_is_followed(rig: Rig, collector: Collector) -> None:
    unsampled = ABOVE[:-1] + "0"
    await rig.ask(request(CHAT, f"traceparent: {unsampled}"))
    await rig.stop()
    assert collector.spans == []
    sent = parse(rig.engine.calls[0].headers["traceparent"])
    assert sent is not None
    assert (sent.sampled, f"{sent.trace_id:032x}") == (False, ABOVE[3:35])


async def test_the_log_has_one_line_a_turn_and_only_where_it_is_wanted(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.start()
    await rig.ask(request(CHAT))
    assert not [line for line in caplog.messages if "turn over" in line]
    with caplog.at_level(logging.DEBUG, "dataplane"):
        await rig.ask(request(CHAT, f"traceparent: {ABOVE}", "Authorization: Bearer secret"))
    [line] = [line for line in caplog.messages if "turn=" in line]
    assert f"trace_id={ABOVE[3:35]}" in line
    assert "secret" not in line
