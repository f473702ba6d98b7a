"""TLS on all ports, and between the services, as real processes."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import ssl
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.tls import Tls, TlsError
from loadgen.ports import free_ports
from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc
from tests.certificates import certificate
from tests.stack import started
from tests.waiting import wait_until

CHAT = {"model": "fake-1b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


async def test_services_speak_tls_with_clients_and_with_each_other(tmp_path: pathlib.Path) -> None:
    pem = certificate(tmp_path)
    engine, scheduler, status, dataplane, runtime, runtime_grpc = free_ports(6)
    (tmp_path / "pool.toml").write_text(f'[[replica]]\nname = "a"\nurl = "http://127.0.0.1:{engine}"\n')
    settings = {
        "LUFTPAUSE_TLS_CERT": str(pem),
        "LUFTPAUSE_TLS_KEY": str(pem),
        "LUFTPAUSE_TLS_CA": str(pem),
        "LUFTPAUSE_TOKEN": "secret",
        "LUFTPAUSE_POOL": str(tmp_path / "pool.toml"),
        "LUFTPAUSE_STATE": str(tmp_path / "state"),
        "LUFTPAUSE_ENGINE_PORTS": str(engine),
        "LUFTPAUSE_SCHEDULER_PORT": str(scheduler),
        "LUFTPAUSE_SCHEDULER_STATUS_PORT": str(status),
        "LUFTPAUSE_DATAPLANE_PORT": str(dataplane),
        "LUFTPAUSE_DATAPLANE_BODY_BYTES_MAX": "100000",
        "LUFTPAUSE_DATAPLANE_SCHEDULER": f"127.0.0.1:{scheduler}",
        "LUFTPAUSE_RUNTIME_PORT": str(runtime),
        "LUFTPAUSE_RUNTIME_GRPC_PORT": str(runtime_grpc),
        "LUFTPAUSE_RUNTIME_DATAPLANE": f"https://127.0.0.1:{dataplane}",
    }
    trust = ssl.create_default_context(cafile=pem)
    async with contextlib.AsyncExitStack() as opened:
        for module in ("fakes.engine", "scheduler", "dataplane", "runtime"):
            opened.enter_context(started(module, settings, tmp_path / f"{module}.log"))
        connector = aiohttp.TCPConnector(ssl=trust)
        headers = {"Authorization": "Bearer secret"}
        http = await opened.enter_async_context(aiohttp.ClientSession(connector=connector, headers=headers))

        async def fetched(url: str, body: object = None) -> bytes:
            async with http.request("GET" if body is None else "POST", url, json=body) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.read()

        for port in (status, runtime):
            await wait_until(functools.partial(fetched, f"https://127.0.0.1:{port}/health"))
        url = f"https://127.0.0.1:{dataplane}/v1/chat/completions"
        for body in (CHAT, {**CHAT, "stream": True}):
            assert await wait_until(functools.partial(fetched, url, body))
        async with http.post(url, data=b"x" * 200_000) as answer:
            assert answer.status == 413

        root = grpc.ssl_channel_credentials(pem.read_bytes())
        for port in (scheduler, runtime_grpc):
            channel = await opened.enter_async_context(grpc.aio.secure_channel(f"127.0.0.1:{port}", root))
            health: Any = health_pb2_grpc.HealthStub
            assert (await health(channel).Check(health_pb2.HealthCheckRequest())).status == 1
        runs: Any = runtime_pb2_grpc.RunsStub
        bearer = {"metadata": (("authorization", "Bearer secret"),)}
        handle = (await runs(channel).Spawn(pb.SpawnRequest(task="hello", max_tokens=2), **bearer)).handle
        [run] = (await runs(channel).Await(pb.AwaitRequest(handles=[handle]), **bearer)).runs
        assert run.state == pb.RUN_STATE_COMPLETED

        async with aiohttp.ClientSession() as plain:
            for port in (dataplane, status, runtime):
                with pytest.raises(aiohttp.ClientError):
                    await plain.get(f"http://127.0.0.1:{port}/health")


def test_files_that_cannot_be_used_are_told_in_one_line(tmp_path: pathlib.Path) -> None:
    pem, missing, wrong = certificate(tmp_path), tmp_path / "missing.pem", tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    Tls(pem, pem, pem).check()
    for tls, said in (
        (Tls(certificate=pem), "LUFTPAUSE_TLS_CERT and LUFTPAUSE_TLS_KEY: expected both or neither"),
        (Tls(missing, pem), f"{missing} cannot be used: No such file or directory"),
        (Tls(wrong, pem), f"{wrong} cannot be used: "),
        (Tls(authorities=missing), f"setting LUFTPAUSE_TLS_CA: {missing} cannot be used: No such file or directory"),
        (Tls(authorities=wrong), f"setting LUFTPAUSE_TLS_CA: {wrong} cannot be used: "),
    ):
        with pytest.raises(TlsError) as told:
            tls.check()
        assert said in str(told.value)
        assert "\n" not in str(told.value)
