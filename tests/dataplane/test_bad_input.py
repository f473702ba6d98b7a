"""What a client may send wrongly, and what it is told."""

from __future__ import annotations

import asyncio
import json

import pytest

from protos import turn_pb2
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.waiting import wait_until


async def test_a_body_without_model_names_the_field(rig: Rig) -> None:
    await rig.start()
    response = await rig.ask(request({"messages": CHAT["messages"]}, "x-luftpause-run-id: r"))
    assert (response.status, response.error) == (400, "model: expected a value, it is missing")
    assert response.headers["x-luftpause-run-id"] == "r"
    assert rig.scheduler.turns == []


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"model": "m", "messages": {}}', b"\xff\xfe\x00"])
async def test_a_wrong_body_is_a_400_and_the_connection_goes_on(rig: Rig, body: bytes) -> None:
    await rig.start()
    client = await rig.client()
    assert (await client.ask(request(body))).status == 400
    assert (await client.ask(request(CHAT))).status == 200


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("x-luftpause-run-id: a b", "x-luftpause-run-id"),
        ("x-luftpause-run-id: " + "x" * 129, "x-luftpause-run-id"),
        ("x-luftpause-run-id: a\r\nx-luftpause-run-id: b", "x-luftpause-run-id"),
        ("x-luftpause-class: urgent", "x-luftpause-class"),
    ],
)
async def test_a_wrong_header_is_a_400_that_names_it(rig: Rig, line: str, field: str) -> None:
    await rig.start()
    client = await rig.client()
    response = await client.ask(request(CHAT, line))
    assert response.status == 400
    assert response.error.startswith(f"{field}: expected")
    assert (await client.ask(request(CHAT))).status == 200, "its body was read, and the connection goes on"


async def test_a_caller_with_line_breaks_in_it_is_only_text(rig: Rig) -> None:
    await rig.start()
    response = await rig.ask(request(CHAT, "x-luftpause-caller: a%0d%0aset-cookie: b"))
    assert (response.status, "set-cookie" in response.headers) == (200, False)
    assert rig.scheduler.turns[0].caller == "a%0d%0aset-cookie: b"


@pytest.mark.parametrize("value", [b"a\x00b", b"a\rb"])
async def test_control_characters_in_a_header_are_refused(rig: Rig, value: bytes) -> None:
    await rig.start()
    data = request(CHAT).replace(b"host: x", b"host: x\r\nx-luftpause-caller: " + value)
    response = await rig.ask(data)
    assert response.status == 400
    assert response.error.startswith("malformed HTTP request")


async def test_a_header_of_10_kb_is_taken_and_one_of_20_kb_is_not(rig: Rig) -> None:
    await rig.start()
    assert (await rig.ask(request(CHAT, "x-large: " + "x" * 10_000))).status == 200
    response = await rig.ask(request(CHAT, "x-large: " + "x" * 20_000))
    assert (response.status, response.error) == (431, "request line and headers are larger than 16384 bytes")


async def test_a_header_that_never_ends_is_refused(rig: Rig) -> None:
    await rig.start()
    client = await rig.client()
    await client.send(b"GET /health HTTP/1.1\r\nx: " + b"x" * 20_000)
    assert (await client.response()).status == 431


async def test_a_body_of_50_mb_is_refused_before_it_is_read(rig: Rig) -> None:
    await rig.start()
    client = await rig.client()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50000000\r\n\r\n"
    await client.send(head)
    response = await client.response()
    assert (response.status, response.error) == (413, "the body is larger than 33554432 bytes")


async def test_a_client_that_sends_50_mb_at_once_can_read_the_refusal(rig: Rig) -> None:
    await rig.start()
    response = await rig.ask(request(b"x" * 50_000_000))
    assert response.status == 413


async def test_a_chunked_body_that_grows_too_large_is_refused(rig: Rig) -> None:
    await rig.start(body_bytes_max=10_000)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    response = await rig.ask(head + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 20)
    assert response.status == 413


@pytest.mark.parametrize(
    "lines",
    [
        ("content-length: 5", "transfer-encoding: chunked"),
        ("content-length: 5", "content-length: 6"),
        ("content-length: -1",),
        ("content-length: 5x",),
        ("content-length: 99999999999999999999999999",),
        ("transfer-encoding: gzip",),
        ("transfer-encoding: chunked, identity",),
        (" folded: x",),
        ("no colon",),
        ("bad name: x",),
    ],
)
async def test_a_head_that_two_parsers_could_read_differently_is_refused(rig: Rig, lines: tuple[str, ...]) -> None:
    await rig.start()
    client = await rig.client()
    head = "".join(f"{line}\r\n" for line in ("POST /v1/chat/completions HTTP/1.1", "host: x", *lines))
    response = await client.ask(head.encode() + b"\r\n{}GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert response.status == 400, response
    assert response.headers["connection"] == "close"
    assert await client.reader.read() == b"", "nothing behind it is answered"


@pytest.mark.parametrize(
    "data", [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
)
async def test_what_is_not_http_is_refused(rig: Rig, data: bytes) -> None:
    await rig.start()
    assert (await rig.ask(data)).status == 400


async def test_garbage_behind_a_request_does_not_spoil_its_answer(rig: Rig) -> None:
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT) + b"\x00garbage\r\n\r\n")
    assert (await client.response()).status == 200
    assert (await client.response()).status == 400


async def test_a_change_of_protocol_is_refused(rig: Rig) -> None:
    await rig.start()
    response = await rig.ask(request(CHAT, "Connection: Upgrade", "Upgrade: h2c"))
    assert (response.status, "change of protocol" in response.error) == (400, True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/runs/r", 405),
        ("DELETE", "/v1/runs/a%20b", 400),
        ("DELETE", "/v1/runs/", 400),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/", 404),
        ("OPTIONS", "*", 404),
    ],
)
async def test_a_wrong_route_is_told_apart(rig: Rig, method: str, path: str, status: int) -> None:
    await rig.start()
    client = await rig.client()
    response = await client.ask(request(b"x" * 100, method=method, path=path))
    assert (response.status, bool(response.error)) == (status, True)
    assert (await client.ask(request(b"", method="GET", path="/health"))).status == 200


@pytest.mark.parametrize(
    "part", [b"POST /v1/ch", b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"]
)
async def test_a_slow_client_is_told_so(rig: Rig, part: bytes) -> None:
    await rig.start(header_s=0.2, body_s=0.2)
    response = await rig.ask(part)
    assert response.status == 408
    assert "did not arrive within 0.2 s" in response.error


async def test_an_unused_connection_is_closed(rig: Rig) -> None:
    await rig.start(idle_s=0.2)
    client = await rig.client()
    assert (await client.ask(request(b"", method="GET", path="/health"))).status == 200
    async with asyncio.timeout(5):
        assert await client.reader.read() == b""


async def test_the_token_is_asked_for(rig: Rig) -> None:
    await rig.start(token="secret")
    for lines in ((), ("Authorization: Bearer wrong",), ("Authorization: secret",)):
        for data in (request(CHAT, *lines), request(b"", *lines, method="GET", path="/v1/models")):
            response = await rig.ask(data)
            assert (response.status, response.json["error"]["type"]) == (401, "authentication_error")
    assert (await rig.ask(request(b"", method="GET", path="/health"))).status == 200
    assert (await rig.ask(request(CHAT, "Authorization: Bearer secret"))).status == 200
    assert "authorization" not in rig.engine.calls[0].headers
    assert rig.scheduler.metadata[0]["authorization"] == "Bearer secret"


async def test_models_are_those_of_generative_replicas(rig: Rig) -> None:
    rig.scheduler.models = ["b", "a"]
    await rig.start()
    await rig.connected()
    response = await rig.ask(request(b"", method="GET", path="/v1/models?x=1"))
    assert [model["id"] for model in response.json["data"]] == ["a", "b"]
    assert (response.json["object"], response.json["data"][0]["object"]) == ("list", "model")


async def test_models_without_a_scheduler_are_a_503(rig: Rig) -> None:
    await rig.scheduler.stop()
    await rig.start()
    assert (await rig.ask(request(b"", method="GET", path="/v1/models"))).status == 503


def end_of_run(run_id: str, caller: str) -> bytes:
    return request(b"", f"x-luftpause-caller: {caller}", method="DELETE", path=f"/v1/runs/{run_id}")


async def test_the_end_of_a_run_is_reported(rig: Rig) -> None:
    await rig.start()
    await rig.ask(request(CHAT, "x-luftpause-run-id: r-1", "x-luftpause-caller: me"))
    response = await rig.ask(end_of_run("r-1", "me"))
    assert (response.status, response.json["deleted"], response.headers["x-luftpause-run-id"]) == (200, True, "r-1")
    await wait_until(lambda: rig.scheduler.last(turn_pb2.REPORT_KIND_RUN_ENDED))
    report = rig.scheduler.reports[-1]
    assert (report.run_id, report.caller, report.turn_id) == ("r-1", "me", "")


async def test_the_end_of_a_run_that_another_process_may_know_is_passed_on(rig: Rig) -> None:
    await rig.start()
    response = await rig.ask(end_of_run("r-2", "me"))
    assert (response.status, response.json["deleted"]) == (200, True)
    await wait_until(lambda: rig.scheduler.last(turn_pb2.REPORT_KIND_RUN_ENDED))


async def test_only_its_own_caller_ends_a_run(rig: Rig) -> None:
    await rig.start()
    await rig.ask(request(CHAT, "x-luftpause-run-id: r-1", "x-luftpause-caller: me"))
    response = await rig.ask(end_of_run("r-1", "you"))
    assert response.status == 409
    assert "x-luftpause-caller" in response.json["error"]["message"]


@pytest.mark.parametrize(
    ("header", "status", "said"),
    [
        ("x-luftpause-runid: r-1", 400, "x-luftpause-runid: no such header; there are x-luftpause-budget-usd"),
        ("content-encoding: gzip", 415, "content-encoding"),
    ],
)
async def test_a_header_that_would_be_ignored_is_refused(rig: Rig, header: str, status: int, said: str) -> None:
    await rig.start()
    response = await rig.ask(request(CHAT, header))
    assert response.status == status
    assert said in response.json["error"]["message"]


async def test_an_empty_body_is_called_empty(rig: Rig) -> None:
    await rig.start()
    response = await rig.ask(request(b""))
    assert (response.status, response.json["error"]["message"]) == (400, "body: expected JSON, it is empty")


async def test_metrics_count_turns(rig: Rig) -> None:
    await rig.start()
    for body in ({**CHAT, "stream": True}, CHAT):
        await rig.ask(request(body, "x-luftpause-class: batch"))
    response = await rig.ask(request(b"", method="GET", path="/metrics"))
    assert response.headers["content-type"].startswith("text/plain")
    lines = response.body.decode().splitlines()
    for line in (
        'luftpause_dataplane_turns_total{class="batch",outcome="ended"} 2.0',
        "luftpause_dataplane_prompt_tokens_total 24.0",
        'luftpause_dataplane_ttft_seconds_count{class="batch"} 1.0',
        'luftpause_dataplane_turn_seconds_count{class="batch"} 2.0',
        "luftpause_dataplane_turns_in_flight 0.0",
        "luftpause_dataplane_schedulers_connected 1.0",
    ):
        assert line in lines, json.dumps(lines, indent=1)


@pytest.mark.parametrize(
    ("version", "coding"), [("1.1", "gzip, chunked"), ("1.1", "deflate,chunked"), ("1.0", "chunked")]
)
async def test_a_transfer_coding_that_others_may_read_differently_is_refused(
    rig: Rig, version: str, coding: str
) -> None:
    await rig.start()
    client = await rig.client()
    head = f"POST /v1/chat/completions HTTP/{version}\r\nhost: x\r\ntransfer-encoding: {coding}\r\n\r\n"
    response = await client.ask(head.encode() + b"2\r\n{}\r\n0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert response.status == 400
    assert "Transfer-Encoding" in response.error
    assert await client.reader.read() == b"", "nothing behind it is answered"


async def test_blanks_around_a_headers_value_are_not_part_of_it(rig: Rig) -> None:
    await rig.start()
    lines = ("x-luftpause-run-id: \t r1 \t", "x-luftpause-class:  batch ", "x-luftpause-caller: me\t")
    assert (await rig.ask(request(CHAT, *lines))).headers["x-luftpause-run-id"] == "r1"
    turn = rig.scheduler.turns[-1]
    assert (turn.run_id, turn.run_class, turn.caller) == ("r1", turn_pb2.RUN_CLASS_BATCH, "me")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://any.example/v1/chat/completions", 200),
        ("HTTP://h:80/v1/chat/completions?x=1", 200),
        ("http://any.example", 404),
        ("http://any.example?/v1/chat/completions", 404),
        ("//v1//chat/completions", 404),
        ("/x://h/v1/chat/completions", 404),
    ],
)
async def test_a_target_may_be_a_whole_url(rig: Rig, target: str, status: int) -> None:
    await rig.start()
    assert (await rig.ask(request(CHAT, path=target))).status == status


async def test_a_whole_url_does_not_get_past_the_token(rig: Rig) -> None:
    await rig.start(token="secret")
    assert (await rig.ask(request(CHAT, path="http://any.example/v1/chat/completions"))).status == 401


async def test_a_rare_route_that_fails_is_a_500_and_no_silence(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.start()
    assert rig.app is not None

    async def break_down(_timeout_s: float) -> None:
        raise RuntimeError("with a secret")

    monkeypatch.setattr(rig.app._scheduler, "replicas", break_down)
    response = await rig.ask(request(b"", method="GET", path="/v1/models"))
    assert (response.status, response.error) == (500, "the dataplane failed to answer")
    assert "request failed" in caplog.text


@pytest.mark.parametrize("hosts", [b"", b"host: x\r\nhost: x\r\n", b"host: x, y\r\n"])
async def test_a_request_has_one_host(rig: Rig, hosts: bytes) -> None:
    await rig.start()
    response = await rig.ask(request(CHAT).replace(b"host: x\r\n", hosts))
    assert (response.status, response.error) == (400, "malformed HTTP request: Host: expected once")


async def test_http_1_0_needs_no_host(rig: Rig) -> None:
    await rig.start()
    assert (await rig.ask(b"GET /health HTTP/1.0\r\n\r\n")).status == 200


@pytest.mark.parametrize("more", ["", ', "labels": ["a"]'])
async def test_very_many_labels_are_not_looked_at(rig: Rig, more: str) -> None:
    await rig.start()
    many = '{"input": "x", "labels": [' + '"a",' * 250_000 + '"b"]'
    response = await rig.ask(request(f"{many}{more}}}".encode(), path="/v1/decide"))
    there = "they take 1000005 bytes" if not more else "or none to ask a classifier; there are 1"
    assert response.status == 400
    assert response.error.startswith("labels: expected 2 to 20 labels")
    assert response.error.endswith(there)
