"""The HTTP surface: status, metrics, health and the page."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.auth import Guard
from common.ids import ReplicaName
from common.pool import Replica
from scheduler import http
from tests.scheduler.running_host import ANSWER_S, A, B, RunningHost, running_host, turn


@contextlib.asynccontextmanager
async def surface(
    token: str | None = None, *, opened: bool = True, replicas: tuple[Replica, ...] = (A, B)
) -> AsyncIterator[tuple[RunningHost, str]]:
    """A host with its HTTP surface, and the URL of that."""
    async with running_host(replicas, opened=opened) as running:
        runner, port = await http.start(running.host, "127.0.0.1", 0, Guard(token))
        try:
            yield running, f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


async def fetch(url: str, token: str | None = None) -> tuple[int, str, str]:
    """Status, content type and body."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_status_tells_replicas_held_turns_and_runs() -> None:
    async with surface() as (running, url):
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1", run_id="r1"), turn("t2", run_id="r2", model="n")])
        for turn_id in ("t1", "t2"):
            await client.placement(turn_id)
        async with aiohttp.ClientSession() as session, session.get(url + "/status") as answer:
            status = await answer.json()
        assert answer.headers["Cache-Control"] == "no-store"
        assert status["replicas"][1] == {
            "name": "b",
            "kind": "generative",
            "models": ["m", "n"],
            "healthy": True,
            "in_flight": status["replicas"][1]["in_flight"],
            "capacity": None,
            "reserved": 0,
            "engine_running": None,
            "engine_waiting": None,
            "kv_usage": None,
            "batch_prefixes": None,
            "limits": [],
            "rests_s": 0.0,
        }
        assert sum(replica["in_flight"] for replica in status["replicas"]) == 2
        assert status["held"] == []
        assert {"phase": "generating", "class": "interactive", "runs": 2} in status["runs"]


async def test_status_tells_what_is_left_of_rate_limits() -> None:
    hosted = Replica(ReplicaName("hosted"), "http://hosted", models=("m",), limits={"tokens_per_minute": 6000})
    async with surface(replicas=(hosted,)) as (running, url):
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1", run_id="r1", prompt_bytes=4000, max_tokens=100)])
        await client.placement("t1")
        async with aiohttp.ClientSession() as session, session.get(url + "/status") as answer:
            (limit,) = (await answer.json())["replicas"][0]["limits"]
        assert (limit["dimension"], limit["limit"], limit["fixed"], limit["period_s"]) == ("tokens", 6000, False, 60)
        assert limit["in_flight"] >= 1000
        assert limit["left"] == pytest.approx(6000 - limit["in_flight"], abs=500)
        assert 5 < limit["full_in_s"] < 30


async def test_status_tells_held_turns_by_class_and_caller() -> None:
    async with surface(opened=False) as (running, url):
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1", caller="<b>me</b>", held_ms=1500), turn("t2", run_class=2)])
        await client.acknowledged()
        async with aiohttp.ClientSession() as session, session.get(url + "/status") as answer:
            held = (await answer.json())["held"]
        assert [(entry["class"], entry["caller"], entry["turns"]) for entry in held] == [
            ("interactive", "<b>me</b>", 1),
            ("batch", "", 1),
        ]
        assert held[0]["oldest_wait_s"] >= 1.5


async def test_metrics_are_prometheus_text_with_help() -> None:
    async with surface() as (running, url):
        client = running.dispatch()
        await client.open()
        await client.send(admits=[turn("t1", model="n"), turn("t2", model="unknown")])
        await client.placement("t1")
        code, content_type, text = await fetch(url + "/metrics")
        assert (code, content_type.partition(";")[0]) == (200, "text/plain")
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert all(family.documentation for family in families.values())
        samples = {
            (sample.name.removeprefix("luftpause_scheduler_"), *sample.labels.values()): sample.value
            for family in families.values()
            for sample in family.samples
        }
        assert samples["events_total", "TurnArrived"] == 2
        assert samples["placements_total", "b"] == 1
        assert samples["refusals_total", "unknown_model"] == 1
        assert samples["batch_seconds_count",] == samples["batch_seconds_bucket", "+Inf"] > 0
        assert samples["replica_healthy", "a"] == 1
        assert samples["runs", "interactive", "generating"] == 1


async def test_health_says_why_nothing_can_be_placed_yet() -> None:
    async with surface(opened=False) as (_, url):
        code, content_type, text = await fetch(url + "/health")
        assert (code, content_type.partition(";")[0]) == (503, "application/json")
        assert text == '{"ready":false,"reason":"waiting for the first probe of 2 of 2 replicas"}'
    async with surface() as (_, url):
        assert (await fetch(url + "/health"))[0] == 200


async def test_the_page_may_run_its_own_script_only_and_loads_nothing() -> None:
    async with surface() as (_, url), aiohttp.ClientSession() as session, session.get(url + "/") as answer:
        page, policy = await answer.text(), answer.headers["Content-Security-Policy"]
    assert answer.content_type == "text/html"
    for tag in ("script", "style"):
        (block,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"https?://|innerHTML|insertAdjacent|document\.write|\son\w+=|style=", page)


@pytest.mark.parametrize(
    ("runtime", "allowed"),
    [
        ("http://127.0.0.1:7000", " http://127.0.0.1:7000"),
        ("https://[::1]:7000/", " https://[::1]:7000"),
        ("https://runtime.example/below", " https://runtime.example"),
        ("", ""),
        ("javascript:alert(1)", ""),
        ("http://a; script-src *", ""),
        ("http://a:1 https:", ""),
        ("http://user@evil.example", ""),
    ],
)
async def test_the_page_may_ask_the_runtime_that_it_is_given_and_no_other(runtime: str, allowed: str) -> None:
    async with (
        surface() as (_, url),
        aiohttp.ClientSession() as session,
        session.get(url + "/", params={"runtime": runtime}) as answer,
    ):
        policy = answer.headers["Content-Security-Policy"]
    assert f"connect-src 'self'{allowed};" in policy
    assert policy.count("script-src") == 1


@pytest.mark.parametrize("path", ["/status", "/"])
async def test_a_browser_may_show_the_token_as_a_password_to_read(path: str) -> None:
    async with surface(token="sec:ret") as (_, url), aiohttp.ClientSession() as session:
        async with session.get(url + path) as asked:
            assert asked.headers.getall("WWW-Authenticate") == ["Bearer", 'Basic realm="luftpause", charset="UTF-8"']
        for user, password, status in (("", "sec:ret", 200), ("anybody", "sec:ret", 200), ("sec:ret", "", 401)):
            shown = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
            async with session.get(url + path, headers={"Authorization": shown}) as answer:
                assert answer.status == status
        for shown in ("Basic sec:ret", "Basic ", "Basic c2VjOnJldA=", "Digest c2VjOnJldA=="):
            async with session.get(url + path, headers={"Authorization": shown}) as answer:
                assert answer.status == 401
        right = {"Authorization": "Basic " + base64.b64encode(b":sec:ret").decode()}
        async with session.post(url + path, headers=right) as refused:
            assert (refused.status, refused.headers.getall("WWW-Authenticate")) == (401, ["Bearer"])


async def test_two_authorization_headers_are_none() -> None:
    async with surface(token="secret") as (_, url), aiohttp.ClientSession() as session:
        for tokens in (("secret", "wrong"), ("wrong", "secret"), ("secret", "secret")):
            shown = [("Authorization", f"Bearer {token}") for token in tokens]
            async with session.get(f"{url}/status", headers=shown) as response:
                assert response.status == 401


@pytest.mark.parametrize("path", ["/", "/status"])
async def test_status_and_page_need_the_token(path: str) -> None:
    async with surface(token="secret") as (_, url):
        code, content_type, text = await fetch(url + path)
        assert (code, content_type.partition(";")[0]) == (401, "application/json")
        assert text.startswith('{"error":{"message":"missing or wrong token')
        assert (await fetch(url + path, "wrong"))[0] == 401
        assert (await fetch(url + path, "secret"))[0] == 200
        assert (await fetch(url + "/health"))[0] == 200


async def test_an_unknown_path_and_method_are_answered_in_json() -> None:
    async with surface() as (_, url):
        code, _, text = await fetch(url + "/nope")
        assert (code, text.partition(":")[0]) == (404, '{"error"')
        async with aiohttp.ClientSession() as session, session.post(url + "/status") as answer:
            assert answer.status == 405
            assert (await answer.json())["error"]["message"] == "method POST: expected GET"


@pytest.mark.parametrize(
    ("line", "body", "status"),
    [
        (b"authorization: Bearer se\x01cret", b"", b"400"),
        (b"content-encoding: gzip\r\ncontent-length: 4", b"bomb", b"200"),
        (b"transfer-encoding: chunked", b"zz\r\nauthorization: Bearer secret", b"400"),
    ],
    ids=["header", "coding", "chunks"],
)
async def test_what_a_client_sends_wrong_is_neither_logged_nor_unpacked(
    caplog: pytest.LogCaptureFixture, line: bytes, body: bytes, status: bytes
) -> None:
    async with surface() as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n%b\r\n\r\n%b" % (line, body))
        said = await asyncio.wait_for(reader.read(), ANSWER_S)
        writer.close()
        await writer.wait_closed()
    assert said.partition(b"\r\n")[0].split()[1] == status, said
    assert not caplog.records


async def test_a_connect_without_a_target_is_answered() -> None:
    async with surface() as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"CONNECT  \r\nhost: x\r\n\r\n")
        assert b" 404 " in await asyncio.wait_for(reader.readline(), ANSWER_S)
        writer.close()
        await writer.wait_closed()
