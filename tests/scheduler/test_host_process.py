"""`python -m scheduler` as a process: start, end, wrong settings, health and reflection."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from common.auth import Guard
from common.ids import ReplicaName
from common.pool import Replica
from loadgen.ports import free_ports
from protos.scheduler_pb2 import AdmitRequest, WatchRequest
from protos.scheduler_pb2_grpc import SchedulerStub
from scheduler.__main__ import _serve, main
from scheduler.config import SchedulerConfig
from tests import stack
from tests.scheduler.running_host import DispatchClient, turn
from tests.scheduler.scripted_engine import scripted_engine
from tests.waiting import wait_until, wait_until_sync

TOKEN = "secret"
BEARER = (("authorization", f"Bearer {TOKEN}"),)


def settings(folder: pathlib.Path, pool: str, **more: str) -> tuple[dict[str, str], int, int]:
    """Settings on free ports with this pool file, and the ports."""
    path = folder / "pool.toml"
    path.write_text(pool)
    port, status_port = free_ports(2)
    values = {
        "LUFTPAUSE_POOL": str(path),
        "LUFTPAUSE_SCHEDULER_PORT": str(port),
        "LUFTPAUSE_SCHEDULER_STATUS_PORT": str(status_port),
        **more,
    }
    return values, port, status_port


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_serves_places_a_turn_and_ends_cleanly_with_calls_open(
    tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    async with scripted_engine() as engine:
        pool = f'[[replica]]\nname = "a"\nurl = "{engine.url}"\nmodels = ["m"]\nmax_in_flight = 1\n'
        values, port, status_port = settings(tmp_path, pool)
        service = stack.start("scheduler", values, tmp_path / "log")
        try:
            ready = f"http://127.0.0.1:{status_port}/health"
            await asyncio.to_thread(wait_until_sync, lambda: stack.answers(ready), 20)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = SchedulerStub(channel)
                client = DispatchClient(stub.Dispatch())
                await client.open()
                await client.send(admits=[turn("t1")])
                assert (await client.placement("t1")).url == engine.url
                held = stub.Admit(AdmitRequest(turn=turn("t2")))
                watch = stub.Watch(WatchRequest())
                await anext(aiter(watch))
                service.process.send_signal(number)
                assert (await client.end())[0] is grpc.StatusCode.UNAVAILABLE
                assert await held.code() is grpc.StatusCode.UNAVAILABLE
                assert await asyncio.to_thread(service.process.wait, 5) == 0
        finally:
            service.kill()
    lines = service.text().splitlines()
    assert f"event=listening host=127.0.0.1 port={port} status_port={status_port} replicas=1" in service.text()
    assert len([line for line in lines if "event=no_token" in line]) == 1
    assert "Traceback" not in service.text()
    assert all("level=" in line for line in lines)


def reflection_stub(channel: grpc.aio.Channel) -> Any:
    """A stub for reflection, whose stubs know no asyncio."""
    return reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]


async def calls_without_token(channel: grpc.aio.Channel) -> AsyncIterator[grpc.aio.Call]:
    """One call of each arity, without the token."""
    stub = SchedulerStub(channel)
    yield stub.Admit(AdmitRequest(turn=turn("t1")))
    yield stub.Report(iter(()))
    yield stub.Watch(WatchRequest())
    yield stub.Dispatch()
    reflection = reflection_stub(channel)
    yield reflection.ServerReflectionInfo()


async def test_health_is_open_and_all_else_needs_the_token(tmp_path: pathlib.Path) -> None:
    pool = '[[replica]]\nname = "a"\nurl = "http://127.0.0.1:1"\n'
    values, port, _ = settings(tmp_path, pool, LUFTPAUSE_TOKEN=TOKEN)
    service = stack.start("scheduler", values, tmp_path / "log")
    try:
        await wait_until(lambda: "event=listening" in service.text(), 20)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for name in ("", "luftpause.v1.Scheduler"):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            async for call in calls_without_token(channel):
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            reflection = reflection_stub(channel).ServerReflectionInfo(metadata=BEARER)
            await reflection.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            listed = (await reflection.read()).list_services_response.service
            assert "luftpause.v1.Scheduler" in [each.name for each in listed]
            reflection.cancel()
        assert service.stop() == 0
    finally:
        service.kill()
    assert "event=no_token" not in service.text()
    assert TOKEN not in service.text()


@pytest.mark.parametrize("field", ["port", "status_port"])
def test_a_taken_port_is_one_line_that_names_the_setting(field: str, capfd: pytest.CaptureFixture[str]) -> None:
    pool = (Replica(ReplicaName("a"), "http://127.0.0.1:1"),)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = SchedulerConfig(**{"port": 0, "status_port": 0, field: port})
        assert asyncio.run(_serve(config, Guard(), pool, asyncio.Event())) == 1
    setting = f"LUFTPAUSE_SCHEDULER_{field.upper()}"
    line = f"cannot listen on 127.0.0.1:{port} (Address already in use): change {setting}\n"
    assert capfd.readouterr().err == line


@pytest.mark.parametrize(
    ("pool", "more", "line"),
    [
        (None, {}, "setting LUFTPAUSE_POOL: expected"),
        (None, {"LUFTPAUSE_POOL": "/nowhere/pool.toml"}, "pool file /nowhere/pool.toml: No such file or directory"),
        ('[[replica]]\nname = "a"\nurl = "x"\n', {}, ", line 3: 'url' must be"),
        ('[[replica]]\nname = "a"\nurl = "http://a"\nkey_env = "NO_SUCH_KEY"\n', {}, "NO_SUCH_KEY, which is not set"),
        (None, {"LUFTPAUSE_SCHEDULER_PROT": "1"}, "unknown setting LUFTPAUSE_SCHEDULER_PROT"),
        (None, {"LUFTPAUSE_SCHEDULER_PORT": "70000"}, "setting LUFTPAUSE_SCHEDULER_PORT: Input should be less"),
    ],
)
def test_a_wrong_setting_or_pool_file_is_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, pool: str | None, more: dict[str, str], line: str
) -> None:
    monkeypatch.delenv("LUFTPAUSE_POOL", raising=False)
    if pool is not None:
        path = tmp_path / "pool.toml"
        path.write_text(pool)
        monkeypatch.setenv("LUFTPAUSE_POOL", str(path))
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main()
    said = ended.value.code
    assert isinstance(said, str)
    assert line in said
    assert "\n" not in said
