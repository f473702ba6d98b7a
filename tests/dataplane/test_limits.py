"""Rate limits through real processes: simulated providers, the scheduler, a dataplane."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from loadgen.ports import free_ports
from tests.stack import Stack, fetched, running_stack, started, wait_healthy
from tests.waiting import wait_until_sync

pytestmark = pytest.mark.e2e


@dataclass
class Limited:
    """A running stack in front of providers."""

    stack: Stack
    providers: list[str]
    folder: pathlib.Path

    def ask(self, headers: dict[str, str] | None = None, **body: Any) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of one chat completion."""
        asked = {"model": "fake-hosted", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, **body}
        parts = urllib.parse.urlsplit(self.stack.base_url)
        with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=60)) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers or {})
            answer = connection.getresponse()
            raw = answer.read()
        streamed = asked.get("stream")
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, raw if streamed else json.loads(raw)

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and JSON of one GET of the dataplane."""
        parts = urllib.parse.urlsplit(self.stack.base_url)
        with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=30)) as connection:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def end(self, run: dict[str, str]) -> None:
        """Tells that the run that these headers name is over."""
        parts = urllib.parse.urlsplit(self.stack.base_url)
        with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=30)) as connection:
            connection.request("DELETE", f"/v1/runs/{run['x-luftpause-run-id']}", headers=run)
            assert connection.getresponse().status < 300

    def stats(self, number: int = 0) -> dict[str, int]:
        """What a provider has served and refused."""
        raw = fetched(self.providers[number] + "/fake/stats")
        assert raw is not None
        found: dict[str, int] = json.loads(raw)
        return found

    def fail(self, number: int, status: int, count: int) -> None:
        """Lets a provider's next answers be failures."""
        parts = urllib.parse.urlsplit(self.providers[number])
        with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=10)) as connection:
            connection.request("POST", "/fake/failures", json.dumps({"status": status, "count": count}))
            assert connection.getresponse().status == 200

    def in_flight(self) -> int:
        """Turns in flight, by the scheduler's status."""
        raw = fetched(f"{self.stack.status_url}/status")
        return 0 if raw is None else sum(replica["in_flight"] for replica in json.loads(raw)["replicas"])

    @contextlib.contextmanager
    def restarted_scheduler(self) -> Iterator[None]:
        """Kills the scheduler, and runs another one in its place while the block runs."""
        self.stack.services["scheduler"].kill()
        grpc_port = self.stack.scheduler_target.rpartition(":")[2]
        settings = {
            "LUFTPAUSE_POOL": str(self.folder / "limits.toml"),
            "LUFTPAUSE_STATE": str(self.folder / "state"),
            "LUFTPAUSE_SCHEDULER_PORT": grpc_port,
            "LUFTPAUSE_SCHEDULER_STATUS_PORT": self.stack.status_url.rpartition(":")[2],
        }
        with started("scheduler", settings, self.folder / "again.log") as service:
            wait_healthy(service, (f"{self.stack.status_url}/health",))
            yield


@contextlib.contextmanager
def limited(folder: pathlib.Path, *providers: dict[str, str], keys: tuple[str, ...] = ("",)) -> Iterator[Limited]:
    """Runs `providers` (their settings) behind luftpause; `keys` are further lines of each replica's table."""
    ports = free_ports(len(providers))
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    pool = folder / "limits.toml"
    tables = [
        f'[[replica]]\nname = "p{number}"\nurl = "{url}"\n'
        f'models = ["{settings.get("model", "fake-hosted")}"]\n{lines}\n'
        for number, (url, settings, lines) in enumerate(zip(urls, providers, keys, strict=True))
    ]
    pool.write_text("".join(tables))
    with contextlib.ExitStack() as opened:
        for number, (port, settings) in enumerate(zip(ports, providers, strict=True)):
            named = {f"LUFTPAUSE_PROVIDER_{name.upper()}": value for name, value in settings.items()}
            named["LUFTPAUSE_PROVIDER_PORT"] = str(port)
            provider = opened.enter_context(started("fakes.provider", named, folder / f"p{number}.log"))
            wait_healthy(provider, (f"http://127.0.0.1:{port}/health",))
        shared = {"LUFTPAUSE_POOL": str(pool)}
        yield Limited(opened.enter_context(running_stack(folder, len(urls), shared, tuple(urls))), urls, folder)


SMALL = {"window_tokens": "400", "period_s": "4", "window_requests": "100", "token_ms": "1"}


@pytest.mark.parametrize("family", ["openai", "groq", "anthropic"])
def test_turns_beyond_the_window_are_held_and_the_provider_never_refuses(tmp_path: pathlib.Path, family: str) -> None:
    with limited(tmp_path, {**SMALL, "family": family}, keys=("limits = {}",)) as stack:
        with ThreadPoolExecutor(12) as clients:
            answers = list(clients.map(lambda n: stack.ask(stream=n % 2 == 0), range(12)))
        assert [answer for answer in answers if answer[0] != 200] == []
        assert stack.stats()["refused"] == 0


def test_a_client_that_waits_no_longer_is_told_when_to_come_again(tmp_path: pathlib.Path) -> None:
    limits = "limits = { tokens_per_minute = 100 }"
    with limited(tmp_path, {"window_tokens": "100"}, keys=(limits,)) as stack:
        assert stack.ask()[0] == 200
        status, headers, body = stack.ask({"x-luftpause-wait-s-max": "2"}, max_tokens=60)
        assert status == 429, body
        assert body["error"]["code"] == "not_soon"
        wait_s = int(headers["retry-after-ms"]) / 1000
        assert 2 < wait_s < 60
        assert int(headers["retry-after"]) == pytest.approx(wait_s, abs=1)
        assert stack.stats()["refused"] == 0


def test_a_turn_larger_than_the_window_is_a_clear_400(tmp_path: pathlib.Path) -> None:
    with limited(tmp_path, {"window_tokens": "200"}, keys=("limits = { tokens_per_minute = 200 }",)) as stack:
        status, _, body = stack.ask(messages=[{"role": "user", "content": "x" * 4000}])
        assert (status, body["error"]["code"]) == (400, "never_fits")
        assert stack.stats() == {"served": 0, "served_tokens": 0, "refused": 0, "refused_tokens": 0}


def test_a_turn_with_larger_max_tokens_than_the_window_hinders_nobody(tmp_path: pathlib.Path) -> None:
    limits = "limits = { tokens_per_minute = 6000, requests_per_minute = 30 }"
    with limited(tmp_path, {"token_ms": "1"}, keys=(limits,)) as stack:
        status, _, body = stack.ask(max_tokens=70000)
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded"), "the provider's own words"
        assert stack.ask({"x-luftpause-caller": "other", "x-luftpause-wait-s-max": "5"})[0] == 200
        status, _, body = stack.ask(max_tokens=70000)
        assert (status, body["error"]["code"]) == (400, "never_fits")
        assert "max_tokens of 70000" in body["error"]["message"]
        assert stack.stats()["refused"] == 1


def test_a_deadline_that_cannot_be_met_is_told_at_once(tmp_path: pathlib.Path) -> None:
    limits = "limits = { tokens_per_minute = 100 }"
    with limited(tmp_path, {"window_tokens": "100"}, keys=(limits,)) as stack:
        assert stack.ask()[0] == 200
        began = time.monotonic()
        status, _, body = stack.ask({"x-luftpause-deadline": str(int(time.time()) + 3)}, max_tokens=60)
        assert (status, body["error"]["code"]) == (504, "deadline_cannot_be_met")
        assert time.monotonic() - began < 2


def test_a_limit_that_is_none_is_a_400(tmp_path: pathlib.Path) -> None:
    limits = (("x-luftpause-wait-s-max", "soon"), ("x-luftpause-deadline", "x"), ("x-luftpause-budget-usd", "-1"))
    with limited(tmp_path, SMALL, keys=("limits = {}",)) as stack:
        for name, value in limits:
            status, _, body = stack.ask({name: value})
            assert status == 400
            assert body["error"]["message"].startswith(name)


def test_a_turn_falls_back_before_the_first_byte(tmp_path: pathlib.Path) -> None:
    keys = ('fallback = ["p1"]', 'aliases = { "fake-hosted" = "other" }')
    with limited(tmp_path, SMALL, {**SMALL, "model": "other"}, keys=keys) as stack:
        for served, status in enumerate((503, 429), 1):
            stack.fail(0, status, 1)
            answer, headers, body = stack.ask({"x-luftpause-run-id": f"r{status}"})
            assert answer == 200, body
            assert headers["x-luftpause-run-id"] == f"r{status}"
            assert stack.stats(1)["served"] + stack.stats(0)["served"] == served


def test_without_a_place_to_fall_back_to_the_first_failure_is_told(tmp_path: pathlib.Path) -> None:
    keys = ('fallback = ["p1"]', "")
    with limited(tmp_path, SMALL, SMALL, keys=keys) as stack:
        stack.fail(0, 503, 1)
        stack.fail(1, 503, 1)
        status, _, body = stack.ask()
        assert status == 503
        assert body["error"]["message"] == "it is overloaded"


def test_a_4xx_is_the_clients_own_and_does_not_fall_back(tmp_path: pathlib.Path) -> None:
    with limited(tmp_path, SMALL, SMALL, keys=('fallback = ["p1"]', 'fallback = ["p0"]')) as stack:
        status, _, _ = stack.ask(max_tokens=-5)
        assert status == 400
        assert stack.stats(0)["served"] + stack.stats(1)["served"] == 0


def test_windows_survive_a_restart_of_the_scheduler(tmp_path: pathlib.Path) -> None:
    settings = {"window_tokens": "400", "period_s": "60", "window_requests": "100", "token_ms": "1"}
    with limited(tmp_path, settings, keys=("limits = {}",)) as stack:
        while True:
            status, _, body = stack.ask({"x-luftpause-wait-s-max": "0.5"})
            if status != 200:
                break
        assert status == 429, body
        with stack.restarted_scheduler():
            large = [{"role": "user", "content": "x" * 900}]
            status, _, body = stack.ask({"x-luftpause-wait-s-max": "4"}, messages=large)
            assert status == 429, body
        assert stack.stats()["refused"] == 0


PRICED = "limits = {}\n[replica.price.fake-hosted]\ninput = 10.0\noutput = 1000.0"
"""US dollars a million tokens: a turn of 50 tokens is some cents."""


def test_what_a_run_spent_survives_a_restart_of_the_scheduler(tmp_path: pathlib.Path) -> None:
    run = {"x-luftpause-run-id": "r", "x-luftpause-budget-usd": "0.1"}
    with limited(tmp_path, {"token_ms": "1"}, keys=(PRICED,)) as stack:
        answers = [stack.ask(run)[0] for _ in range(12)]
        spent = answers.count(200)
        assert 1 <= spent < 12
        assert answers[-1] == 402
        with stack.restarted_scheduler():
            status, _, body = stack.ask(run)
            assert (status, body["error"]["code"]) == (402, "over_budget")
            assert stack.ask({"x-luftpause-run-id": "other", "x-luftpause-budget-usd": "0.1"})[0] == 200


def test_what_a_run_spent_before_it_named_a_budget_counts_after_a_kill_too(tmp_path: pathlib.Path) -> None:
    run = {"x-luftpause-run-id": "r"}
    with limited(tmp_path, {"token_ms": "1"}, keys=(PRICED,)) as stack:
        assert [stack.ask(run)[0] for _ in range(4)] == [200] * 4
        with stack.restarted_scheduler():
            status, _, body = stack.ask({**run, "x-luftpause-budget-usd": "0.05"})
            assert (status, body["error"]["code"]) == (402, "over_budget")
            assert "x-luftpause-budget-usd" in body["error"]["message"]
            assert stack.ask(run)[0] == 402, "it holds for turns that name none"
            assert stack.ask({**run, "x-luftpause-budget-usd": "5"})[0] == 200


def test_two_callers_with_one_run_id_have_money_and_deadlines_of_their_own_after_a_kill_too(
    tmp_path: pathlib.Path,
) -> None:
    mine, theirs = ({"x-luftpause-run-id": "r", "x-luftpause-caller": caller} for caller in ("a", "b"))
    with limited(tmp_path, {"token_ms": "1"}, keys=(PRICED,)) as stack:
        answers = [stack.ask({**mine, "x-luftpause-budget-usd": "0.1"})[0] for _ in range(12)]
        assert answers[-1] == 402
        stack.end(mine)
        assert stack.ask({**theirs, "x-luftpause-deadline": "2000-01-01"})[0] == 504
        assert stack.ask({**theirs, "x-luftpause-deadline": str(time.time() + 600)})[0] == 200
        stack.end(theirs)
        with stack.restarted_scheduler():
            assert stack.ask(theirs)[0] == 200
            stack.end(theirs)
            status, _, body = stack.ask(mine)
            assert (status, body["error"]["code"]) == (402, "over_budget")


@pytest.mark.parametrize("keys", ["", "limits = {}"])
def test_a_runs_deadline_holds_for_its_later_turns_and_survives_a_kill(tmp_path: pathlib.Path, keys: str) -> None:
    run = {"x-luftpause-run-id": "r"}
    with limited(tmp_path, {"token_ms": "1"}, keys=(keys,)) as stack:
        ends_at = time.time() + 4
        assert stack.ask({**run, "x-luftpause-deadline": str(ends_at)})[0] == 200
        with stack.restarted_scheduler():
            wait_until_sync(lambda: time.time() > ends_at + 0.5)  # dates and the scheduler's clock are read apart
            status, _, body = stack.ask(run)
            assert (status, body["error"]["code"]) == (504, "deadline_cannot_be_met")
            assert "x-luftpause-deadline" in body["error"]["message"]
            assert stack.ask({**run, "x-luftpause-deadline": str(ends_at + 600)})[0] == 200
            assert stack.ask(run)[0] == 200


def test_a_forecast_of_a_run_is_told_to_its_caller(tmp_path: pathlib.Path) -> None:
    with limited(tmp_path, {"token_ms": "1"}, keys=(PRICED,)) as stack:
        me = {"x-luftpause-run-id": "r", "x-luftpause-caller": "me"}
        assert stack.ask(me)[0] == 200
        assert stack.ask(me)[0] == 200
        status, body = stack.get("/v1/forecast?run=r&steps=5", {"x-luftpause-caller": "me"})
        assert status == 200, body
        assert body["steps"] == 5
        assert body["tokens"]["p95"] >= body["tokens"]["mean"] > 100
        assert body["usd"]["mean"] > 0
        assert stack.get("/v1/forecast?run=r", {"x-luftpause-caller": "you"})[0] == 404
        assert stack.get("/v1/forecast?run=nobody")[0] == 404
        for query in ("", "?run=", "?run=r&steps=0", "?run=r&steps=x", "?run=r&step=1"):
            assert stack.get(f"/v1/forecast{query}")[0] == 400, query


def test_who_waits_no_longer_for_a_busy_replica_is_told_what_is_known(tmp_path: pathlib.Path) -> None:
    slow = {"reply_tokens": "100", "token_ms": "100"}
    with limited(tmp_path, slow, keys=("max_in_flight = 1",)) as stack, ThreadPoolExecutor(1) as clients:
        busy = clients.submit(stack.ask, max_tokens=60)
        wait_until_sync(lambda: stack.in_flight() == 1)
        status, headers, body = stack.ask({"x-luftpause-wait-s-max": "1.2"})
        assert (status, body["error"]["code"]) == (429, "not_soon")
        assert body["error"]["message"].startswith("it waited 1.")
        assert int(headers["retry-after"]) == 5
        status, _, body = stack.ask({"x-luftpause-deadline": "2000-01-01T00:00:00Z"})
        assert (status, body["error"]["code"]) == (504, "deadline_cannot_be_met")
        assert busy.result()[0] == 200
        status, _, body = stack.ask({"x-luftpause-deadline": "2000-01-01T00:00:00Z"})
        assert (status, body["error"]["code"]) == (504, "deadline_cannot_be_met"), "with room too"
