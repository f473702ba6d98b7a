"""Any headers and any body: an identity or a refusal, never anything else."""

from __future__ import annotations

import json
import random

import pytest

from common.grants import CLASSES, Grant
from common.ids import CALLER_BYTES_MAX, Caller, is_id
from dataplane import chat, limits
from dataplane.errors import ApiError
from dataplane.identity import CALLER, CLASS, RUN_ID, Identity, identify
from protos import turn_pb2
from tests.fuzz.fuzzing import fuzz, mutated, some, some_bytes

NAMES = [RUN_ID, CLASS, CALLER, b"authorization", b"x-luftpause-other"]
VALUES = [b"interactive", b"batch", b"r-1", b"alice", b"", b" "]
GRANTS = [
    Grant("t", caller, classes)
    for caller in (None, Caller("alice"))
    for classes in (CLASSES, ("batch",), ("interactive",))
]
CHATS = [
    b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
    b'{"model":"m","messages":[{"role":"tool","tool_call_id":"a"}],"stream":true}',
    b'{"model":"m","messages":[{"role":"user"}],"stream":true,"stream_options":{"continuous_usage_stats":true}}',
    b'{"model":"m","messages":[{"role":"user"}],"max_tokens":18446744073709551615,"max_completion_tokens":null}',
    b'{"stream_options":null,"messages":[{"role":"user"}],"model":"m","stream":true} ',
]


def headers_and_grant(chance: random.Random) -> tuple[dict[bytes, bytes], Grant]:
    """Headers as the dataplane reads them."""
    names = some(chance, 4, lambda one: one.choice(NAMES))
    return {name: value(chance) for name in names}, chance.choice(GRANTS)


def value(chance: random.Random) -> bytes:
    """A right one, nearly one, or any bytes."""
    return mutated(chance, chance.choice(VALUES)) if chance.random() < 0.6 else some_bytes(chance, 200)


def body(chance: random.Random) -> bytes:
    """A chat, nearly one, or any bytes."""
    return mutated(chance, chance.choice(CHATS)) if chance.random() < 0.9 else some_bytes(chance, 100)


def test_any_headers_give_an_identity_or_name_the_header(request: pytest.FixtureRequest) -> None:
    def run(made: tuple[dict[bytes, bytes], Grant]) -> None:
        headers, grant = made
        found = identify(headers, grant)
        if isinstance(found, ApiError):
            assert found.status in (400, 403)
            assert found.message.startswith("x-luftpause-")
            return
        assert isinstance(found, Identity)
        assert found.run_id is None or is_id(found.run_id)
        assert len(found.caller.encode()) <= CALLER_BYTES_MAX
        assert grant.caller in (None, found.caller)
        name = turn_pb2.RunClass.Name(found.run_class).removeprefix("RUN_CLASS_").lower()
        assert name in grant.classes

    fuzz(request, headers_and_grant, run)


def test_any_body_is_a_request_or_names_the_field(request: pytest.FixtureRequest) -> None:
    def run(body: bytes) -> None:
        found = chat.parse(body)
        if isinstance(found, ApiError):
            assert found.status == 400
            assert found.body()
            return
        assert all(found.tool_call_ids())
        limits.describe(
            turn_pb2.Turn(), limits.NO_LIMITS, prompt_bytes=len(body), max_tokens=found.tokens_max, unix_s=0.0
        )
        asked = json.loads(chat.ask_for_usage(body, found))
        assert asked["stream_options"]["include_usage"] is True

    fuzz(request, body, run)
