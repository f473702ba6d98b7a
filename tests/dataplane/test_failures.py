"""The table of failures in the README, row by row."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from dataplane import app, proxy, sockets, upstream
from protos import turn_pb2
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.dataplane.scripted_engine import STREAM, Call, chunk, delta, event, whole
from tests.waiting import wait_until

STREAMED = {**CHAT, "stream": True}


async def close_the_second(call: Call) -> None:
    """Closes the first connection when its second request has come."""
    if call.connection == 1 and call.number == 2:
        call.writer.close()
    else:
        await call.send(whole(b"{}"))


async def test_a_client_that_leaves_while_held_reaches_no_engine(rig: Rig) -> None:
    rig.scheduler.holds = True
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT))
    turn = (await wait_until(lambda: rig.scheduler.turns))[0]
    client.close()
    await wait_until(lambda: any(turn.turn_id in r.abandons for r in rig.scheduler.requests))
    assert rig.engine.calls == []
    assert rig.scheduler.kinds(turn.turn_id) == []


@pytest.mark.parametrize(
    "ahead",
    [request(CHAT), request(CHAT)[:-5], b"GET /health", b"\x00garbage", request(CHAT) * 100],
    ids=["a request", "a part of one", "a part of a head", "garbage", "many"],
)
async def test_a_client_that_leaves_is_noticed_though_it_sent_more(rig: Rig, ahead: bytes) -> None:
    rig.scheduler.holds = True
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT) + ahead)
    await wait_until(lambda: rig.scheduler.turns)
    client.close()
    turn_id = rig.scheduler.turns[0].turn_id
    await wait_until(lambda: any(turn_id in each.abandons for each in rig.scheduler.requests))
    assert len(rig.scheduler.turns) == 1


async def test_a_client_far_ahead_of_its_answers_is_read_no_further(rig: Rig) -> None:
    rig.scheduler.holds = True
    await rig.start()
    client = await rig.client()
    body = {**CHAT, "user": "u" * 10_000}
    await client.send(request(CHAT))
    await wait_until(lambda: rig.scheduler.turns)
    client.writer.write(b"".join(request(body) for _ in range(2000)))
    await wait_until(lambda: rig.app is not None and all(c._held_back for c in rig.app._server.connections))
    rig.scheduler.holds = False
    rig.scheduler.place(rig.scheduler.turns[0])
    for _ in range(20):
        assert (await client.response()).status == 200
    client.writer.transport.abort()


async def test_a_turn_placed_while_its_client_leaves_is_reported_failed(rig: Rig) -> None:
    rig.scheduler.holds = True
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT))
    turn = (await wait_until(lambda: rig.scheduler.turns))[0]
    client.close()
    await wait_until(lambda: any(turn.turn_id in r.abandons for r in rig.scheduler.requests))
    rig.scheduler.place(turn)
    await rig.reported("FAILED")
    assert rig.engine.calls == []


async def test_a_client_that_leaves_while_streaming_closes_the_engines_connection(rig: Rig) -> None:
    async def stream_on(call: Call) -> None:
        await call.send(STREAM, chunk(event(delta(content="a"))))
        await call.left()
        call.writer.close()

    rig.engine.script = stream_on
    await rig.start()
    client = await rig.client()
    await client.send(request(STREAMED))
    await client.head()
    await client.chunk()
    client.close()
    left_at = time.monotonic()
    await wait_until(lambda: rig.engine.open == 0)
    assert time.monotonic() - left_at < 1
    await rig.reported("STARTED", "FIRST_TOKEN", "FAILED")


async def test_an_engine_that_refuses_the_connection_is_a_502_at_once(rig: Rig) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        rig.scheduler.url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        await rig.start()
        began_at = time.monotonic()
        response = await rig.ask(request(CHAT, "x-luftpause-run-id: r1"))
    assert (response.status, response.error) == (502, "engine engine-0: connection refused")
    assert time.monotonic() - began_at < 1.5
    assert response.headers["x-luftpause-run-id"] == "r1"
    await rig.reported("STARTED", "FAILED")


async def test_an_engine_that_is_silent_is_a_502_after_the_connect_limit(rig: Rig) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        # A queue of waiting connections that is full drops further ones, as a host that does not answer would.
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        rig.scheduler.url = f"http://127.0.0.1:{address[1]}"
        await rig.start()
        await rig.connected()
        began_at = time.monotonic()
        response = await rig.ask(request(CHAT))
        for each in waiting:
            each.close()
    assert (response.status, response.error) == (502, "engine engine-0: no connection within 2 s")
    assert 1.8 < time.monotonic() - began_at < 4
    await rig.reported("STARTED", "FAILED")


async def test_an_engine_whose_name_is_unknown_is_a_502(rig: Rig) -> None:
    rig.scheduler.url = "http://engine.invalid:80"
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.status, response.error) == (502, "engine engine-0: its host name is not known")


async def test_an_engine_that_dies_mid_stream_ends_the_answer_without_a_final_chunk(rig: Rig) -> None:
    async def die(call: Call) -> None:
        await call.send(STREAM, chunk(event(delta(content="a"))))
        call.writer.close()

    rig.engine.script = die
    await rig.start()
    response = await rig.ask(request(STREAMED))
    assert (response.status, response.whole) == (200, False)
    assert response.body == event(delta(content="a"))
    await rig.reported("STARTED", "FIRST_TOKEN", "FAILED")


async def test_an_engine_that_dies_before_its_answer_is_a_502(rig: Rig) -> None:
    async def die(call: Call) -> None:
        call.writer.close()

    rig.engine.script = die
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.status, response.error) == (502, "engine engine-0: closed the connection")
    await rig.reported("STARTED", "FAILED")


async def test_an_engine_that_dies_in_a_reply_with_a_length_breaks_it_off(rig: Rig) -> None:
    async def die(call: Call) -> None:
        await call.send(whole(b'{"a": 1}')[:-3])
        call.writer.close()

    rig.engine.script = die
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.status, response.whole) == (200, False)
    await rig.reported("STARTED", "FAILED")


async def test_an_engine_that_ends_an_undelimited_stream_too_early_breaks_it_off(rig: Rig) -> None:
    async def die(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + event(delta(content="a")))
        call.writer.close()

    rig.engine.script = die
    await rig.start()
    response = await rig.ask(request(STREAMED))
    assert (response.status, response.whole) == (200, False)
    await rig.reported("STARTED", "FIRST_TOKEN", "FAILED")


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable", "400 Bad Request"])
async def test_an_engines_refusal_is_passed_on_as_it_is(rig: Rig, status: str) -> None:
    body = b'{"error":  {"message": "slow down"}}'

    async def refuse(call: Call) -> None:
        await call.send(whole(body, status, "Retry-After: 7", "X-Request-Id: abc"))

    rig.engine.script = refuse
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.status, response.body) == (int(status[:3]), body)
    assert (response.headers["retry-after"], response.headers["x-request-id"]) == ("7", "abc")
    assert response.headers["x-luftpause-run-id"]
    await rig.reported("STARTED", "FAILED")


@pytest.mark.parametrize(
    "said", [b"Request too large for m on tokens per min (TPM): Limit 6, Requested 9", b"slow down"]
)
async def test_a_request_too_large_for_a_rate_limit_is_told_from_one_too_many(rig: Rig, said: bytes) -> None:
    body = b'{"error": {"message": "%b", "code": "rate_limit_exceeded"}}' % said

    async def refuse(call: Call) -> None:
        await call.send(whole(body, "429 Too Many Requests"))

    rig.engine.script = refuse
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.status, response.body) == (429, body)
    await rig.reported("STARTED", "FAILED")
    failed = rig.scheduler.last(turn_pb2.REPORT_KIND_FAILED)
    assert failed is not None
    assert failed.status == (413 if b"large" in said else 429)


async def test_an_engine_that_does_not_speak_http_is_a_502(rig: Rig) -> None:
    async def babble(call: Call) -> None:
        await call.send(b"220 mail.example ESMTP\r\n")

    rig.engine.script = babble
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert response.status == 502
    assert response.error.startswith("engine engine-0: answered what is not HTTP")


async def test_an_error_event_in_a_stream_fails_the_turn(rig: Rig) -> None:
    async def fail(call: Call) -> None:
        await call.send(
            STREAM, chunk(event({"error": {"message": "out of memory"}})), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"
        )

    rig.engine.script = fail
    await rig.start()
    assert (await rig.ask(request(STREAMED))).whole
    await rig.reported("STARTED", "FAILED")


async def test_an_unknown_model_is_a_404(rig: Rig) -> None:
    message = "no generative replica serves model 'nope'"
    rig.scheduler.refusals["nope"] = (turn_pb2.REFUSAL_REASON_UNKNOWN_MODEL, message)
    await rig.start()
    response = await rig.ask(request({**CHAT, "model": "nope"}))
    assert (response.status, response.error) == (404, message)
    assert response.json["error"]["code"] == "model_not_found"
    assert rig.engine.calls == []


async def test_models_that_no_replica_has_told_are_a_503(rig: Rig) -> None:
    message = "no generative replica has told its models yet: engine-1"
    rig.scheduler.refusals["m"] = (turn_pb2.REFUSAL_REASON_MODELS_UNKNOWN, message)
    await rig.start()
    response = await rig.ask(request(CHAT))
    assert (response.status, response.error, response.json["error"]["code"]) == (503, message, "models_unknown")
    assert rig.engine.calls == []


async def test_a_run_of_another_caller_is_a_409(rig: Rig) -> None:
    rig.scheduler.refusals["m"] = (turn_pb2.REFUSAL_REASON_RUN_OF_OTHER_CALLER, "run 'r' belongs to another caller")
    await rig.start()
    response = await rig.ask(request(CHAT, "x-luftpause-run-id: r"))
    assert (response.status, response.headers["x-luftpause-run-id"]) == (409, "r")


async def test_a_turn_waits_for_a_scheduler_that_is_gone(rig: Rig) -> None:
    await rig.scheduler.stop()
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT))
    health = await rig.ask(request(b"", method="GET", path="/health"))
    assert health.json == {"status": "ok", "scheduler": "waiting"}
    await rig.scheduler.start(rig.scheduler.port)
    assert (await client.response()).status == 200
    assert rig.scheduler.turns[0].held_ms > 0


async def test_a_request_that_crossed_the_end_of_a_kept_connection_is_sent_on_another(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race of keep-alive: the engine closes while the request is on its way, and TCP knows that it never came."""
    monkeypatch.setattr(upstream, "_FRESH_S", -1.0)
    monkeypatch.setattr(sockets, "acked_bytes", lambda _transport: 1)
    rig.engine.script = close_the_second
    await rig.start()
    client = await rig.client()
    assert (await client.ask(request(CHAT))).status == 200
    assert (await client.ask(request(CHAT))).status == 200
    assert [call.connection for call in rig.engine.calls] == [1, 1, 2]
    await rig.reported("STARTED", "ENDED")


async def test_a_request_that_came_on_a_kept_connection_is_not_sent_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "_FRESH_S", -1.0)
    rig.engine.script = close_the_second
    await rig.start()
    client = await rig.client()
    assert (await client.ask(request(CHAT))).status == 200
    response = await client.ask(request(CHAT))
    assert (response.status, response.error) == (502, "engine engine-0: closed the connection")
    assert len(rig.engine.calls) == 2
    await rig.reported("STARTED", "FAILED")


async def test_a_fresh_connection_that_breaks_is_not_tried_again(rig: Rig) -> None:
    async def die(call: Call) -> None:
        call.writer.close()

    rig.engine.script = die
    await rig.start()
    assert (await rig.ask(request(CHAT))).status == 502
    assert len(rig.engine.calls) == 1


async def test_an_idle_connection_that_the_engine_closed_is_not_used(rig: Rig) -> None:
    await rig.start()
    client = await rig.client()
    assert (await client.ask(request(CHAT))).status == 200
    rig.engine.drop_connections()
    await wait_until(lambda: rig.engine.open == 0)
    assert (await client.ask(request(CHAT))).status == 200
    assert len(rig.engine.calls) == 2


@pytest.mark.parametrize("begun", [False, True])
async def test_an_engine_that_falls_silent_loses_the_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    monkeypatch.setattr(app, "SWEEP_S", 0.01)
    monkeypatch.setattr(app, "CHECK_S", 0.05)
    monkeypatch.setattr(proxy, "STALL_S_MAX", 2 * proxy.CHECK_S)

    async def fall_silent(call: Call) -> None:
        if begun:
            await call.send(STREAM, chunk(event(delta(content="a"))))
        await call.left()
        call.writer.close()

    rig.engine.script = fall_silent
    await rig.start()
    response = await rig.ask(request(STREAMED))
    if begun:
        assert (response.status, response.whole) == (200, False)
    else:
        assert (response.status, response.error) == (504, "engine engine-0: no byte for 120 s")
    await rig.reported("STARTED", *(["FIRST_TOKEN"] if begun else []), "FAILED")
    await wait_until(lambda: rig.engine.open == 0)


async def test_many_clients_that_leave_at_once_all_reach_the_engine(rig: Rig) -> None:
    async def stream_on(call: Call) -> None:
        await call.send(STREAM, chunk(event(delta(content="a"))))
        await call.left()
        call.writer.close()

    rig.engine.script = stream_on
    await rig.start()
    clients = [await rig.client() for _ in range(200)]
    await asyncio.gather(*(client.send(request(STREAMED)) for client in clients))
    await asyncio.gather(*(client.head() for client in clients))
    for client in clients:
        client.close()
    await wait_until(lambda: rig.engine.open == 0, timeout_s=3)


async def test_a_forecast_without_a_scheduler_that_answers_is_a_503(rig: Rig) -> None:
    await rig.start()
    await rig.connected()
    for _ in range(2):  # one that answers with an error, then none
        response = await rig.ask(request(b"", method="GET", path="/v1/forecast?run=r"))
        assert (response.status, response.json["error"]["code"]) == (503, "scheduler_unavailable")
        await rig.scheduler.stop()
