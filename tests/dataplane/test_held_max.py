"""How much of a caller may wait for admission at once."""

from __future__ import annotations

import json

import pytest

from common.ids import ANONYMOUS
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, RawClient, request
from tests.waiting import wait_until

BODY = json.dumps(CHAT).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY)
MOST = 2


async def held(rig: Rig, number: int) -> None:
    """Waits until so many turns wait."""
    await wait_until(lambda: len(rig.scheduler.turns) == number)


def still_coming(rig: Rig) -> int:
    """Bytes kept of bodies of the usual caller that are not whole."""
    assert rig.app is not None
    return rig.app._server.routes.coming.of(ANONYMOUS)


async def told(clients: list[RawClient]) -> list[str]:
    """The codes of refusals."""
    return [(await client.response()).json["error"]["code"] for client in clients]


async def test_more_turns_of_a_caller_than_may_wait_are_refused(rig: Rig) -> None:
    rig.scheduler.holds = True
    await rig.start(held_max=MOST)
    for waiting in range(1, MOST + 1):
        client = await rig.client()
        await client.send(request(CHAT))
        await held(rig, waiting)
    response = await rig.ask(request(CHAT))
    assert (response.status, response.json["error"]["code"]) == (429, "too_many_held_turns")
    other = await rig.client()
    await other.send(request(CHAT, "x-luftpause-caller: other"))
    await held(rig, MOST + 1)


async def test_heads_that_came_first_do_not_let_more_wait(rig: Rig) -> None:
    rig.scheduler.holds = True
    await rig.start(held_max=MOST)
    clients = [await rig.client() for _ in range(MOST + 3)]
    for client in clients:
        await client.send(HEAD)
    for number, client in enumerate(clients, 1):
        await client.send(BODY)
        await held(rig, min(number, MOST))
    assert await told(clients[MOST:]) == ["too_many_held_turns"] * 3


@pytest.mark.parametrize("there", [True, False], ids=["no model known", "no scheduler"])
async def test_decisions_that_wait_for_a_models_name_count(rig: Rig, there: bool) -> None:
    rig.scheduler.classifiers = {"c": []}
    await rig.start(held_max=MOST)
    if not there:
        await rig.scheduler.stop()
    asked = request({"input": "x"}, path="/v1/decide")
    waiting = [await rig.client() for _ in range(MOST)]
    for client in waiting:
        await client.send(asked)
    response = await rig.ask(asked)
    assert (response.status, response.json["error"]["code"]) == (429, "too_many_held_turns")


async def test_the_bytes_of_a_caller_that_wait_are_limited(rig: Rig) -> None:
    rig.scheduler.holds = True
    await rig.start(held_bytes_max=2 * len(BODY))
    waiting = [await rig.client() for _ in range(2)]
    for number, client in enumerate(waiting, 1):
        await client.send(request(CHAT))
        await held(rig, number)
    response = await rig.ask(request(CHAT))
    assert (response.status, response.json["error"]["code"]) == (429, "too_many_held_turns")
    waiting[0].close()
    await wait_until(lambda: rig.app is not None and rig.app.snapshot()["gauges"]["held"] == 1)
    await (await rig.client()).send(request(CHAT))
    await held(rig, 3)


async def test_bodies_on_their_way_are_of_what_may_be_kept(rig: Rig) -> None:
    await rig.start(held_bytes_max=3 * len(BODY))
    coming = [await rig.client() for _ in range(4)]
    for client in coming:
        await client.send(HEAD + BODY[:-1])
    await wait_until(lambda: still_coming(rig) == len(coming) * (len(BODY) - 1))
    last = await rig.client()
    assert (await last.ask(request(CHAT))).json["error"]["code"] == "too_many_held_turns"
    other = await rig.client()
    assert (await other.ask(request(CHAT, "x-luftpause-caller: other"))).status == 200
    assert [(await client.ask(BODY[-1:])).status for client in coming] == [200] * 4
    assert (await rig.ask(request(CHAT))).status == 200


async def test_a_client_that_leaves_takes_the_body_on_its_way_along(rig: Rig) -> None:
    await rig.start(held_bytes_max=len(BODY) - 1)
    leaving = await rig.client()
    await leaving.send(HEAD + BODY[:-1])
    await wait_until(lambda: still_coming(rig) == len(BODY) - 1)
    leaving.close()
    await wait_until(lambda: still_coming(rig) == 0)
    assert (await rig.ask(request(CHAT))).status == 200


async def test_a_body_that_nobody_reads_is_not_kept(rig: Rig) -> None:
    await rig.start(held_bytes_max=1)
    body = b"x" * 2_000_000
    for path in ("/health", "/metrics", "/v1/models"):
        assert (await rig.ask(request(body, method="GET", path=path))).status == 200
