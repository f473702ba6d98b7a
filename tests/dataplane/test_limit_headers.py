"""What a turn says of its limits, and what an answer's head tells: headers read."""

from __future__ import annotations

import pytest

from common.ids import ReplicaName
from common.pool import Pool, Replica
from dataplane import limits
from dataplane.chat import parse, with_model
from dataplane.errors import ApiError
from dataplane.fallback import RETRIES_AHEAD, RetryBudget
from dataplane.limits import LastTold, TurnLimits
from dataplane.pool_view import PoolView
from protos import turn_pb2


def test_a_request_says_how_long_it_waits_until_when_and_for_how_much() -> None:
    headers = {
        limits.WAIT_S_MAX: b"1.5",
        limits.DEADLINE: b"2030-01-31T12:00:00Z",
        limits.BUDGET_USD: b"0.25",
    }
    own = limits.begin(headers)
    assert own == TurnLimits(1.5, 1896091200.0, 0.25)
    assert isinstance(own, TurnLimits)
    turn = turn_pb2.Turn()
    limits.describe(turn, own, prompt_bytes=10, max_tokens=None, unix_s=1896091190.0)
    assert (turn.wait_ms_max, turn.deadline_ms, turn.budget_usd) == (1500, 10_000, 0.25)
    assert not turn.HasField("max_tokens")


def test_a_request_that_says_nothing_has_no_limits() -> None:
    assert limits.begin({}) is limits.NO_LIMITS


@pytest.mark.parametrize("name", [limits.WAIT_S_MAX, limits.DEADLINE, limits.BUDGET_USD])
@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"nan", b"1e400", b"\xff"])
def test_what_is_no_limit_is_refused_by_its_name(name: bytes, value: bytes) -> None:
    refused = limits.begin({name: value})
    assert isinstance(refused, ApiError)
    assert refused.message.startswith(name.decode())


def test_only_headers_about_limits_are_told_with_the_answers_date() -> None:
    lines = [
        b"HTTP/1.1 200 OK\r\n",
        b"Content-Type: text/plain\r\n",
        b"X-RateLimit-Remaining-Tokens: 5\r\n",
        b"Date: Mon, 30 Nov 2026 12:00:00 GMT\r\n",
        b"X-Left: 7\r\n",
        b"Set-Cookie: secret\r\n",
    ]
    told = limits.told(lines, {"x-left": "x-ratelimit-remaining-requests"}, "now")
    assert [(header.name, header.value) for header in told] == [
        ("x-ratelimit-remaining-tokens", "5"),
        ("x-ratelimit-remaining-requests", "7"),
        ("date", "Mon, 30 Nov 2026 12:00:00 GMT"),
    ]
    assert limits.told(lines[:2], {}, "now") == []


def test_a_resync_tells_how_old_the_last_word_is() -> None:
    last = LastTold()
    last.take(10.0, "a", [turn_pb2.LimitHeader(name="retry-after", value="1")])
    last.take(12.0, "a", [turn_pb2.LimitHeader(name="retry-after", value="2")])
    (known,) = last.known(15.0)
    assert (known.replica, known.age_ms, known.limit_headers[0].value) == ("a", 3000, "2")


@pytest.mark.parametrize(
    ("fields", "tokens_max"),
    [
        (b"", None),
        (b',"max_tokens":7', 7),
        (b',"max_tokens":7,"max_completion_tokens":9', 9),
        (b',"max_tokens":null', None),
        (b',"max_tokens":"many"', None),
        (b',"max_tokens":true', None),
        (b',"max_tokens":-1', None),
        (b',"max_tokens":18446744073709551616', None),
        (b',"max_tokens":9007199254740992', 2**53),
    ],
)
def test_a_maximum_that_makes_no_sense_is_left_to_the_engine(fields: bytes, tokens_max: int | None) -> None:
    parsed = parse(b'{"model":"m","messages":[{"role":"assistant","content":null}]%b}' % fields)
    assert not isinstance(parsed, ApiError)
    assert parsed.tokens_max == tokens_max


def test_a_maximum_that_is_a_list_is_refused() -> None:
    parsed = parse(b'{"model":"m","messages":[{"role":"user"}],"max_tokens":[%b[]]}' % (b"[]," * 1_000))
    assert isinstance(parsed, ApiError)
    assert (parsed.status, parsed.message.partition(":")[0]) == (400, "max_tokens")


def test_another_model_name_leaves_the_rest_as_it_was() -> None:
    body = b'{"a": 1.50, "model": "m", "messages": [ {"role":"user"} ]}'
    assert with_model(body, "n") == b'{"a":1.50,"model":"n","messages":[ {"role":"user"} ]}'


def test_retries_are_a_share_of_the_turns() -> None:
    retries = RetryBudget()
    taken = sum(retries.take() for _ in range(100))
    assert taken == RETRIES_AHEAD
    for _ in range(50):
        retries.earn()
    assert sum(retries.take() for _ in range(100)) in (9, 10), "a fifth of them"
    for _ in range(200):
        retries.earn()
    assert sum(retries.take() for _ in range(100)) == RETRIES_AHEAD, "no more are saved up"


def test_a_replica_without_limits_tells_only_how_long_it_refuses() -> None:
    plain = PoolView(Pool((Replica(ReplicaName("a"), "http://a"),)))
    lines = [b"Retry-After: 7\r\n", b"x-ratelimit-remaining-tokens: 5\r\n"]
    assert [header.name for header in plain.told_limits("a", 429, lines)] == ["retry-after", "date"]
    assert plain.told_limits("a", 200, lines) == []
