"""Tokens and replica keys, planted and then looked for in everything that the services print, answer and export."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from typing import Any

import aiohttp
import grpc
from aiohttp import web

from common.auth import bearer_metadata
from loadgen.ports import free_ports
from protos import runtime_pb2 as pb
from protos import runtime_pb2_grpc, scheduler_pb2
from protos.scheduler_pb2_grpc import SchedulerStub
from tests.servers import web_server
from tests.stack import answers, started
from tests.waiting import wait_until

KEY, TOKEN, ALICE, WRONG = (f"planted-{name}-7f3a9c" for name in ("key", "token", "alice", "wrong"))
CHAT = {"model": "fake-1b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@contextlib.asynccontextmanager
async def collector(seen: bytearray) -> Any:
    """Takes whatever is exported to it; gives its URL."""

    async def take(request: web.Request) -> web.Response:
        seen.extend(await request.read())
        return web.Response()

    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", take)
    async with web_server(app) as origin:
        yield origin


async def use_http(bases: dict[str, str], seen: bytearray) -> None:
    """Right requests and wrong ones to everything that answers HTTP."""
    async with aiohttp.ClientSession() as session:
        for token in (TOKEN, ALICE, WRONG):
            headers = {"Authorization": f"Bearer {token}"}
            for name, path in (
                ("dataplane", "/v1/models"), ("dataplane", "/metrics"), ("dataplane", "/health"), ("dataplane", "/no"),
                ("status", "/status"), ("status", "/metrics"), ("status", "/"), ("status", "/no"),
                ("runtime", "/status"), ("runtime", "/health"), ("runtime", "/no"),
            ):  # fmt: skip
                async with session.get(bases[name] + path, headers=headers) as answer:
                    seen += repr(answer.headers).encode() + await answer.read()
            for body in (CHAT, {**CHAT, "stream": True}, {**CHAT, "model": "unknown"}, {**CHAT, "model": 7}):
                more = {**headers, "x-luftpause-caller": "bob" if body.get("stream") else "alice"}
                async with session.post(bases["dataplane"] + "/v1/chat/completions", json=body, headers=more) as answer:
                    seen += repr(answer.headers).encode() + await answer.read()


async def use_grpc(scheduler: int, runtime: int, seen: bytearray) -> None:
    """The same to everything that answers gRPC."""
    for token in (TOKEN, ALICE, WRONG):
        metadata = bearer_metadata(token)
        async with (
            grpc.aio.insecure_channel(f"127.0.0.1:{scheduler}") as one,
            grpc.aio.insecure_channel(f"127.0.0.1:{runtime}") as other,
        ):
            stub: Any = SchedulerStub(one)
            make: Any = runtime_pb2_grpc.RunsStub
            calls = [
                stub.Admit(scheduler_pb2.AdmitRequest(), metadata=metadata),
                stub.Report(iter([scheduler_pb2.ReportRequest()]), metadata=metadata),
                make(other).Spawn(pb.SpawnRequest(task="hello", max_tokens=2), metadata=metadata),
                make(other).Get(pb.GetRequest(handle="none"), metadata=metadata),
                make(other).List(pb.ListRequest(), metadata=metadata),
            ]
            for call in calls:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    seen += str(await call).encode()
                seen += f"{await call.details()} {await call.trailing_metadata()}".encode()


async def test_no_secret_is_in_a_log_an_answer_a_status_a_metric_or_a_span(tmp_path: pathlib.Path) -> None:
    engine, refusing, scheduler, status, dataplane, runtime, runtime_grpc = free_ports(7)
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "pool.toml").write_text(
        f'[[replica]]\nname = "a"\nurl = "http://127.0.0.1:{engine}"\nkey_file = "key"\n'
        f'[[replica]]\nname = "b"\nurl = "http://127.0.0.1:{refusing}"\nkey_env = "B_KEY"\nmodels = ["none"]\n'
    )
    (tmp_path / "tokens.toml").write_text('[[token]]\nname = "alice"\nsecret_env = "ALICE_TOKEN"\ncaller = "alice"\n')
    seen = bytearray()
    async with contextlib.AsyncExitStack() as opened:
        settings = {
            "LUFTPAUSE_LOG_LEVEL": "debug",
            "LUFTPAUSE_TOKEN": TOKEN,
            "LUFTPAUSE_TOKENS": str(tmp_path / "tokens.toml"),
            "ALICE_TOKEN": ALICE,
            "B_KEY": KEY,
            "LUFTPAUSE_POOL": str(tmp_path / "pool.toml"),
            "LUFTPAUSE_STATE": str(tmp_path / "state"),
            "LUFTPAUSE_ENGINE_PORTS": str(engine),
            "LUFTPAUSE_ENGINE_KEY": KEY,
            "LUFTPAUSE_SCHEDULER_PORT": str(scheduler),
            "LUFTPAUSE_SCHEDULER_STATUS_PORT": str(status),
            "LUFTPAUSE_DATAPLANE_PORT": str(dataplane),
            "LUFTPAUSE_DATAPLANE_SCHEDULER": f"127.0.0.1:{scheduler}",
            "LUFTPAUSE_RUNTIME_PORT": str(runtime),
            "LUFTPAUSE_RUNTIME_GRPC_PORT": str(runtime_grpc),
            "LUFTPAUSE_RUNTIME_DATAPLANE": f"http://127.0.0.1:{dataplane}",
            "OTEL_EXPORTER_OTLP_ENDPOINT": await opened.enter_async_context(collector(seen)),
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        services = [
            opened.enter_context(started(module, settings, tmp_path / f"{module}.log"))
            for module in ("fakes.engine", "scheduler", "dataplane", "runtime")
        ]
        bases = {
            name: f"http://127.0.0.1:{port}"
            for name, port in (("status", status), ("dataplane", dataplane), ("runtime", runtime))
        }
        for base in bases.values():
            await wait_until(functools.partial(answers, f"{base}/health"), what=base)
        await wait_until(lambda: answers(f"{bases['dataplane']}/v1/models", TOKEN))
        await use_http(bases, seen)
        await use_grpc(scheduler, runtime_grpc, seen)
    said = bytes(seen) + "".join(service.text() for service in services).encode()
    assert b"luftpause_" in said
    assert b"chat.completion" in said, "a turn went through"
    for secret in (KEY, TOKEN, ALICE, WRONG):
        assert secret.encode() not in said, secret
