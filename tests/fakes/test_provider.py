"""The simulated provider: its windows and headers on any clock, and the process."""

from __future__ import annotations

import http.client
import json
import pathlib
from contextlib import closing

import pytest

from fakes.provider import headers
from fakes.provider.windows import Bucket, Charge, Quota
from loadgen.ports import free_ports
from tests.stack import started, wait_healthy


def quota(*, fixed: bool = False, says: float = 1.0) -> Quota:
    return Quota(Bucket(100, 60, fixed), Bucket(2, 60, fixed), says)


def test_a_request_is_charged_by_its_estimate_and_corrected_at_its_end() -> None:
    account = quota()
    charge = account.arrive(0, 40, 50)
    assert isinstance(charge, Charge)
    assert account.tokens.level == 40
    account.end(0, charge, 20)
    assert account.tokens.level == 80
    assert (account.served, account.served_tokens, account.refused) == (1, 20, 0)


def test_what_does_not_fit_is_refused_with_the_time_until_it_does() -> None:
    account = quota()
    account.arrive(0, 40, 90)
    assert account.arrive(0, 40, 50) == pytest.approx(36.0)
    account.arrive(36.1, 40, 50)
    assert account.arrive(36.1, 4, 1) == pytest.approx(1.2, abs=0.1)
    assert (account.refused, account.refused_tokens) == (2, 11)


def test_a_fixed_window_is_full_at_whole_periods() -> None:
    account = quota(fixed=True)
    charge = account.arrive(50, 40, 90)
    assert isinstance(charge, Charge)
    assert account.arrive(50, 40, 50) == pytest.approx(10)
    account.tokens.to(60)
    assert account.tokens.level == 100
    account.end(61, charge, 10)
    assert account.tokens.level == 100, "it forgot the charge"


def test_each_family_tells_the_same_in_its_own_form() -> None:
    account = quota()
    account.arrive(0, 40, 50)
    openai = headers.tell("openai", account, 0)
    assert openai["x-ratelimit-remaining-tokens"] == "40"
    assert openai["x-ratelimit-reset-tokens"] == "36s"
    anthropic = headers.tell("anthropic", account, 0)
    assert anthropic["anthropic-ratelimit-tokens-remaining"] == "40"
    assert anthropic["anthropic-ratelimit-tokens-reset"] == "1970-01-01T00:00:36+00:00"
    assert headers.tell("plain", account, 0)["ratelimit-remaining"] == "1"
    assert headers.tell("none", account, 0) == {}
    assert headers.tell("openai", quota(says=2), 0)["x-ratelimit-limit-tokens"] == "200"


def test_durations_are_written_as_providers_do() -> None:
    assert [headers.duration(each) for each in (0.12, 1, 360, 179.56)] == ["120ms", "1s", "6m0s", "2m59.56s"]
    assert headers.retry_after("date", 1.2, 0)["retry-after"] == "Thu, 01 Jan 1970 00:00:02 GMT"
    assert headers.retry_after("seconds", 1.2, 0) == {"retry-after": "2"}
    assert headers.retry_after("ms", 1.2, 0) == {"retry-after-ms": "1200"}
    assert headers.retry_after("none", 1.2, 0) == {}


def test_it_serves_refuses_and_fails_as_it_is_told(tmp_path: pathlib.Path) -> None:
    (port,) = free_ports(1)
    settings = {"LUFTPAUSE_PROVIDER_PORT": str(port), "LUFTPAUSE_PROVIDER_WINDOW_REQUESTS": "1"}
    body = {"model": "fake-hosted", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}

    def ask(path: str, document: object) -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("POST", path, json.dumps(document))
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    with started("fakes.provider", settings, tmp_path / "log") as service:
        wait_healthy(service, (f"http://127.0.0.1:{port}/health",))
        assert ask("/fake/failures", {"status": 503, "count": 1})[0] == 200
        assert ask("/v1/chat/completions", body)[0] == 503
        status, told, reply = ask("/v1/chat/completions", {**body, "stream": True})
        assert status == 200
        assert reply.endswith(b"data: [DONE]\n\n")
        assert told["x-ratelimit-remaining-requests"] == "0"
        status, told, _ = ask("/v1/chat/completions", body)
        assert status == 429
        assert int(told["retry-after"]) > 1
        assert ask("/v1/chat/completions", {**body, "model": "x"})[0] == 404
        assert ask("/v1/chat/completions", {**body, "messages": []})[0] == 400
