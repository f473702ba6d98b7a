"""Probes of real HTTP engines that behave well, badly, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import aiohttp
import pytest

from common.ids import ReplicaName
from common.pool import PoolError, Replica
from scheduler import replicas
from scheduler.events import ReplicaProbed
from tests.scheduler.scripted_engine import Answer, ScriptedEngine, scripted_engine
from tests.waiting import wait_until


@contextlib.asynccontextmanager
async def probe_of(engine: ScriptedEngine, **fields: Any) -> AsyncIterator[replicas.Probe]:
    """A probe of `engine`."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=replicas.PROBE_LIMIT_S)) as session:
        yield replicas.Probe(Replica(**{"name": ReplicaName("a"), "url": engine.url, **fields}), session)


async def probed(engine: ScriptedEngine, **fields: Any) -> ReplicaProbed:
    """What one probe tells."""
    async with probe_of(engine, **fields) as probe:
        return await probe.ask()


async def test_a_healthy_engine_tells_its_load_and_its_models() -> None:
    async with scripted_engine() as engine:
        engine.answers["/metrics"] = Answer(body=b"vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n")
        engine.answers["/v1/models"] = Answer(body=b'{"object":"list","data":[{"id":"m"},{"id":"n"},{"id":"m"}]}')
        told = await probed(engine)
        assert (told.healthy, told.running, told.waiting, told.kv_usage) == (True, 2, 1, None)
        assert told.models == ("m", "n")


async def test_an_engine_without_metrics_is_healthy_and_tells_no_load() -> None:
    async with scripted_engine() as engine:
        told = await probed(engine, models=("m",))
        assert (told.healthy, told.running, told.waiting, told.models) == (True, None, None, None)
        assert "/v1/models" not in [path for path, _ in engine.asked]


@pytest.mark.parametrize("status", [301, 404, 500, 503])
async def test_only_2xx_is_healthy_and_redirects_are_not_followed(status: int) -> None:
    async with scripted_engine() as engine:
        engine.answers["/health"] = Answer(status, headers={"Location": "/ok"})
        engine.answers["/ok"] = Answer()
        assert not (await probed(engine)).healthy
        assert "/ok" not in [path for path, _ in engine.asked]


async def test_a_replica_may_name_its_own_health_path_and_api_base() -> None:
    async with scripted_engine() as engine:
        engine.answers = {"/ready": Answer(204), "/base/models": Answer(body=b'{"data":[{"id":"m"}]}')}
        told = await probed(engine, health_path="/ready", url=engine.url + "/base/")
        assert (told.healthy, told.models) == (True, ("m",))


async def test_a_silent_engine_is_unhealthy_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "PROBE_LIMIT_S", 0.2)
    async with scripted_engine() as engine:
        engine.answers["/health"] = Answer(hangs=True)
        async with asyncio.timeout(2):
            assert not (await probed(engine)).healthy


async def test_an_engine_that_is_gone_is_unhealthy() -> None:
    async with scripted_engine() as engine:
        pass
    assert not (await probed(engine)).healthy


async def test_metrics_that_hang_or_are_huge_leave_a_healthy_replica_without_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicas, "PROBE_LIMIT_S", 0.3)
    monkeypatch.setattr(replicas, "METRICS_BYTES_MAX", 10_000)
    async with scripted_engine() as engine:
        load = b"vllm:num_requests_running 2\n"
        for scripted in (Answer(hangs=True), Answer(body=load + b"#" * 20_000), Answer(500, load)):
            engine.answers["/metrics"] = scripted
            told = await probed(engine)
            assert (told.healthy, told.running) == (True, None)


async def test_the_load_of_a_router_is_read_from_the_engines_behind_it() -> None:
    async with scripted_engine() as router, scripted_engine() as first, scripted_engine() as second:
        router.answers["/metrics"] = Answer(body=b"vllm:num_requests_running 100\n")
        for engine in (first, second):
            engine.answers["/metrics"] = Answer(body=b"vllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n")
        told = await probed(router, load_from=(first.url, second.url + "/"))
        assert (told.running, told.kv_usage) == (4, 0.5)


async def test_the_key_goes_to_the_replica_and_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "secret")
    async with scripted_engine() as engine, scripted_engine() as behind:
        await probed(engine, key_env="ENGINE_KEY", load_from=(behind.url,))
        assert {shown for _, shown in engine.asked} == {"Bearer secret"}
        assert behind.asked == [("/metrics", None)]


async def test_a_key_that_is_missing_is_an_error_at_once() -> None:
    replica = Replica(ReplicaName("a"), "http://127.0.0.1:1", key_env="LUFTPAUSE_TEST_NO_SUCH_KEY")
    with pytest.raises(PoolError, match="LUFTPAUSE_TEST_NO_SUCH_KEY, which is not set"):
        await replicas.probe_all((replica,), lambda _told: None)


async def test_models_are_asked_for_until_known_and_then_rarely() -> None:
    async with scripted_engine() as engine, probe_of(engine) as probe:
        engine.answers["/v1/models"] = Answer(503)
        assert (await probe.ask()).models is None
        engine.answers["/v1/models"] = Answer(body=b'{"data":[{"id":"m"}]}')
        assert (await probe.ask()).models == ("m",)
        assert (await probe.ask()).models is None
        assert [path for path, _ in engine.asked].count("/v1/models") == 2


async def test_silent_replicas_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "PROBE_S", 0.3)
    # So long that whoever waits for a silent one does not come back in time, on a slow machine too.
    monkeypatch.setattr(replicas, "PROBE_LIMIT_S", 120.0)
    async with scripted_engine() as silent, scripted_engine() as engine:
        silent.answers["/health"] = Answer(hangs=True)
        pool = [Replica(ReplicaName(f"silent-{number}"), silent.url, models=("m",)) for number in range(200)]
        pool.append(Replica(ReplicaName("last"), engine.url, models=("m",)))
        told: list[ReplicaProbed] = []
        probing = asyncio.create_task(replicas.probe_all(pool, told.append))
        try:
            await wait_until(lambda: sum(each.replica == "last" for each in told) >= 3, timeout_s=30)
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
        assert all(each.healthy for each in told if each.replica == "last")


async def test_a_replica_is_seen_to_fall_ill_and_to_recover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "PROBE_S", 0.05)
    async with scripted_engine() as engine:
        told: list[ReplicaProbed] = []
        pool = (Replica(ReplicaName("a"), engine.url, models=("m",)),)
        probing = asyncio.create_task(replicas.probe_all(pool, told.append))
        try:
            for status in (200, 500, 200):
                engine.answers["/health"] = Answer(status)
                wanted = status == 200
                await wait_until(partial(_told_health, told, wanted))
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)


def _told_health(told: list[ReplicaProbed], wanted: bool) -> bool:
    return bool(told) and told[-1].healthy is wanted


async def test_what_keeps_turns_waiting_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replicas, "PROBE_S", 0.02)
    caplog.set_level("INFO")
    async with scripted_engine() as engine:
        engine.answers["/v1/models"] = Answer(404)
        told: list[ReplicaProbed] = []
        probing = asyncio.create_task(replicas.probe_all((Replica(ReplicaName("a"), engine.url),), told.append))
        try:
            await wait_until(lambda: len(told) > 3)
            engine.answers["/health"] = Answer(500)
            await wait_until(partial(_told_health, told, False))
            await wait_until(lambda: len(told) > 8)
        finally:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
    events = [record.getMessage().split()[0] for record in caplog.records if record.name == replicas.log.name]
    assert events == ["event=models_unknown", "event=replica_unhealthy"]
