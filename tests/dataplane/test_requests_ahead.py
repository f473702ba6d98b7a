"""Requests that come before the one ahead of them is answered: answers keep their order, 100 Continue among them."""

from __future__ import annotations

import json

import pytest

from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.dataplane.scripted_engine import REPLY

BODY = json.dumps(CHAT).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(
    BODY
)
WRONG = request({"messages": []})


@pytest.mark.parametrize(("first", "status"), [(request(CHAT), 200), (WRONG, 400)])
async def test_a_client_is_told_to_continue_when_its_turn_has_come(rig: Rig, first: bytes, status: int) -> None:
    await rig.start()
    client = await rig.client()
    await client.send(first + HEAD)
    assert (await client.response()).status == status
    assert (await client.head())[0] == 100
    await client.send(BODY)
    assert (await client.response()).body == REPLY


async def test_a_body_that_does_not_wait_needs_no_word(rig: Rig) -> None:
    await rig.start()
    client = await rig.client()
    await client.send(request(CHAT) + HEAD + BODY)
    assert [(await client.response()).body for _ in range(2)] == [REPLY, REPLY]


async def test_each_of_several_wrong_requests_is_answered(rig: Rig) -> None:
    await rig.start()
    client = await rig.client()
    await client.send(WRONG + WRONG + b"not HTTP\r\n\r\n")
    assert [(await client.response()).status for _ in range(3)] == [400, 400, 400]
