"""Scripted faults, clients that leave, and what the engine keeps of it all."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import openai
import pytest

from fakes.engine.faults import Fault, Script, parse_script
from fakes.engine.ledger import DOUBLED_SHOWN_MAX, Ledger
from tests.fakes.conftest import RunningEngine, StartEngine, eventually
from tests.waiting import wait_until

HELLO = [{"role": "user", "content": "hello"}]


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake-1b", "messages": HELLO, "max_tokens": 8, "ignore_eos": True, **fields}


async def _chat(engine: RunningEngine, **fields: Any) -> tuple[int, Any]:
    return await engine.json("POST", "/v1/chat/completions", _body(**fields))


async def test_a_status_with_retry_after_comes_as_often_as_scripted(engine: RunningEngine) -> None:
    await engine.script(
        {"fault": "status", "code": 429, "retry_after": 7, "count": 2, "body": {"error": {"message": "slow"}}}
    )
    for _ in range(2):
        with pytest.raises(openai.RateLimitError) as caught:
            await engine.client.chat.completions.create(model="fake-1b", messages=HELLO)  # type: ignore[arg-type]
        assert caught.value.response.headers["retry-after"] == "7"
        assert caught.value.response.json() == {"error": {"message": "slow"}}
    assert (await _chat(engine))[0] == 200
    assert {**await engine.stats(), "doubled_ids": None} == {
        "open": 0, "served": 1, "aborted": 0, "faulted": 2, "refused": 0, "doubled": 0, "doubled_ids": None,
    }  # fmt: skip


async def test_a_fault_strikes_only_what_it_matches(engine: RunningEngine) -> None:
    await engine.script({"fault": "status", "code": 503, "match": "unlucky"})
    assert (await _chat(engine))[0] == 200
    assert (await _chat(engine, user="unlucky"))[0] == 503
    assert (await engine.json("DELETE", "/fake/faults"))[1] == {"faults": []}
    assert (await _chat(engine, user="unlucky"))[0] == 200


async def _read_into(raw: bytearray, response: aiohttp.ClientResponse) -> None:
    async for piece in response.content.iter_any():
        raw += piece


@pytest.mark.parametrize("reset", [False, True])
async def test_an_engine_that_dies_mid_stream_sends_no_end(engine: RunningEngine, reset: bool) -> None:
    await engine.script({"fault": "die", "after_tokens": 3, "reset": reset})
    raw = bytearray()
    async with engine.http.post(f"{engine.url}/v1/chat/completions", json=_body(stream=True)) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await _read_into(raw, response)
    if not reset:  # a reset may overtake what was sent before
        assert raw.count(b'"content":" ') == 3
    assert b"[DONE]" not in raw
    assert b'"finish_reason":"' not in raw
    await wait_until(lambda: not engine.engine.busy)
    assert engine.blocks_used == 0
    assert (await engine.stats())["faulted"] == 1


@pytest.mark.parametrize("reset", [False, True])
async def test_an_engine_that_dies_before_it_answers_closes_the_connection(engine: RunningEngine, reset: bool) -> None:
    await engine.script({"fault": "die", "reset": reset})
    with pytest.raises(aiohttp.ClientError):
        await _chat(engine)


async def test_a_stall_before_the_headers_delays_the_answer(engine: RunningEngine) -> None:
    await engine.script({"fault": "stall", "seconds": 0.3, "count": 1})
    start = time.monotonic()
    assert (await _chat(engine))[0] == 200
    assert time.monotonic() - start >= 0.3
    assert (await engine.stats())["served"] == 1


async def test_a_stall_mid_stream_withholds_the_rest(engine: RunningEngine) -> None:
    await engine.script({"fault": "stall", "seconds": 0.3, "after_tokens": 2, "count": 1})
    seen = []
    async with engine.http.post(f"{engine.url}/v1/chat/completions", json=_body(stream=True)) as response:
        async for line in response.content:
            if b'"content":" ' in line:
                seen.append(time.monotonic())
    assert len(seen) == 8
    assert seen[2] - seen[1] >= 0.25


async def test_a_slow_request_slows_every_step_while_it_runs(start_engine: StartEngine) -> None:
    engine = await start_engine(speed=2.0)
    await engine.script({"fault": "slow", "factor": 20, "count": 1})
    durations = []
    for _ in range(2):
        start = time.monotonic()
        await _chat(engine)
        durations.append(time.monotonic() - start)
    assert durations[0] > 4 * durations[1]


async def test_an_engine_that_refuses_listens_again_later(engine: RunningEngine) -> None:
    await engine.script({"fault": "refuse", "seconds": 0.5})

    async def listens() -> bool:
        try:
            async with aiohttp.ClientSession() as http, http.get(f"{engine.url}/health"):
                return True
        except aiohttp.ClientConnectorError:
            return False

    async def refuses() -> bool:
        return not await listens()

    await eventually(refuses)
    await eventually(listens)


async def test_faults_can_be_there_from_the_start(start_engine: StartEngine) -> None:
    engine = await start_engine(faults='[{"fault": "status", "code": 500, "chance": 0.5}]')
    statuses = [(await _chat(engine, max_tokens=1))[0] for _ in range(40)]
    assert 8 <= statuses.count(500) <= 32
    twin = await start_engine(faults='[{"fault": "status", "code": 500, "chance": 0.5}]')
    assert [(await _chat(twin, max_tokens=1))[0] for _ in range(40)] == statuses, "chance is seeded"


@pytest.mark.parametrize(
    ("script", "param"),
    [
        ([{"fault": "melt"}], "faults[0].fault"),
        ([3], "faults[0]"),
        ([{"fault": "die"}, {"fault": "stall"}], "faults[1].seconds"),
        ([{"fault": "die", "seconds": 1}], "faults[0].seconds"),
        ([{"fault": "status", "code": 200}], "faults[0].code"),
        ([{"fault": "slow", "factor": 0.5}], "faults[0].factor"),
        ([{"fault": "die", "count": -1}], "faults[0].count"),
        ([{"fault": "die", "chance": 2}], "faults[0].chance"),
        ([{"fault": "refuse", "seconds": 1, "match": "x"}], "faults[0].match"),
        ({}, None),
    ],
)
async def test_a_wrong_script_is_refused_naming_the_key(engine: RunningEngine, script: Any, param: str | None) -> None:
    status, answer = await engine.json("POST", "/fake/faults", script)
    assert (status, answer["error"]["param"]) == (400, param)
    assert (await engine.json("GET", "/fake/faults"))[1] == {"faults": []}


def test_the_first_fault_that_applies_is_taken_and_counted() -> None:
    script = Script(0, parse_script([{"fault": "die", "count": 1, "match": "a"}, {"fault": "slow", "factor": 2}]))
    assert script.take(b"b") == Fault("slow", factor=2)
    assert script.take(b"a") == Fault("die", count=1, match="a")
    assert script.take(b"a") == Fault("slow", factor=2)
    assert script.describe() == [{"fault": "slow", "factor": 2}]


async def test_a_client_that_leaves_mid_stream_frees_its_blocks_within_a_step(start_engine: StartEngine) -> None:
    engine = await start_engine(speed=1.0)
    async with aiohttp.ClientSession() as http:
        response = await http.post(f"{engine.url}/v1/chat/completions", json=_body(stream=True, max_tokens=2_000))
        await response.content.readline()
        assert engine.blocks_used > 0
        response.close()
        start = time.monotonic()
        await wait_until(lambda: engine.blocks_used == 0)
        assert time.monotonic() - start < 0.2
    assert len(engine.engine.running) == 0
    await eventually(lambda: _aborted(engine, 1))


async def _aborted(engine: RunningEngine, count: int) -> bool:
    stats = await engine.stats()
    return (stats["aborted"], stats["open"]) == (count, 0)


async def test_clients_that_leave_while_waiting_are_forgotten(start_engine: StartEngine) -> None:
    engine = await start_engine(max_num_seqs=1, speed=1.0)
    asked = [asyncio.create_task(_chat(engine, max_tokens=2_000)) for _ in range(3)]
    await wait_until(lambda: engine.engine.waiting == 2)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await wait_until(lambda: not engine.engine.busy)
    await eventually(lambda: _aborted(engine, 3))


async def test_request_ids_are_counted_so_that_a_turn_that_ran_twice_shows(engine: RunningEngine) -> None:
    for request_id in ("one", "two", "two"):
        await engine.json("POST", "/v1/chat/completions", _body(max_tokens=1), headers={"x-request-id": request_id})
    assert (await engine.json("GET", "/fake/seen?id=two"))[1] == {"id": "two", "count": 2}
    assert (await engine.json("GET", "/fake/seen?id=none"))[1]["count"] == 0
    assert (await engine.json("GET", "/fake/seen"))[0] == 400
    stats = await engine.stats()
    assert (stats["served"], stats["doubled"], stats["doubled_ids"]) == (3, 1, ["two"])


def test_the_ledger_forgets_the_oldest_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fakes.engine.ledger.IDS_MAX", 10)
    ledger = Ledger()
    for number in range(2 * DOUBLED_SHOWN_MAX):
        ledger.opened(f"r{number}")
        ledger.opened(f"r{number}")
    assert (ledger.seen("r0"), ledger.seen(f"r{2 * DOUBLED_SHOWN_MAX - 1}")) == (0, 2)
    stats = ledger.stats()
    assert (stats["doubled"], len(stats["doubled_ids"])) == (2 * DOUBLED_SHOWN_MAX, DOUBLED_SHOWN_MAX)
