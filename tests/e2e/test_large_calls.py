"""gRPC messages that cost their sender little, at scheduler and runtime: their memory does not follow."""

from __future__ import annotations

import asyncio
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from common.auth import bearer_metadata
from loadgen.ports import free_ports
from protos import runtime_pb2, runtime_pb2_grpc, turn_pb2
from protos.scheduler_pb2 import AdmitRequest
from protos.scheduler_pb2_grpc import SchedulerStub
from tests.stack import Service, running_stack, started, wait_healthy

MESSAGE_BYTES = 30 * 2**20
"""Of one character: some 30 KB on the wire, compressed."""
CALLS = 4
GROWTH_MIB_MAX = 60.0
"""Unpacked, the calls would take 240 MiB, as bytes and as text."""


@dataclass
class Services:
    scheduler: Service
    scheduler_target: str
    runtime: Service
    runtime_target: str


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("large")
    port, grpc_port = free_ports(2)
    token = {"LUFTPAUSE_TOKEN": "shared"}
    with running_stack(folder, 1, token) as stack:
        settings = {
            **token,
            "LUFTPAUSE_STATE": str(folder / "state"),
            "LUFTPAUSE_RUNTIME_PORT": str(port),
            "LUFTPAUSE_RUNTIME_GRPC_PORT": str(grpc_port),
            "LUFTPAUSE_RUNTIME_DATAPLANE": stack.base_url.removesuffix("/v1"),
        }
        with started("runtime", settings, folder / "runtime.log") as runtime:
            wait_healthy(runtime, (f"http://127.0.0.1:{port}/health",))
            scheduler = stack.services["scheduler"]
            yield Services(scheduler, stack.scheduler_target, runtime, f"127.0.0.1:{grpc_port}")


def most_mib(service: Service) -> float:
    """The most memory that it ever had, in MiB."""
    status = pathlib.Path(f"/proc/{service.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


async def codes(services: Services, name: str, token: str, compression: grpc.Compression) -> set[grpc.StatusCode]:
    """How several calls at once with large messages end, each on a connection of its own."""
    text = "a" * MESSAGE_BYTES
    target = services.scheduler_target if name == "scheduler" else services.runtime_target

    async def one() -> grpc.StatusCode:
        unlimited = (("grpc.max_send_message_length", -1),)
        async with grpc.aio.insecure_channel(target, compression=compression, options=unlimited) as channel:
            metadata = bearer_metadata(token)
            call: Any
            if name == "scheduler":
                call = SchedulerStub(channel).Admit(AdmitRequest(turn=turn_pb2.Turn(turn_id=text)), metadata=metadata)
            else:
                make: Any = runtime_pb2_grpc.RunsStub
                call = make(channel).Spawn(runtime_pb2.SpawnRequest(task=text), metadata=metadata)
            code: grpc.StatusCode = await call.code()
            return code

    async with asyncio.timeout(120):
        return set(await asyncio.gather(*(one() for _ in range(CALLS))))


@pytest.mark.parametrize("name", ["scheduler", "runtime"])
async def test_a_message_without_a_token_is_not_read_and_a_compressed_one_never_unpacked(
    services: Services, name: str
) -> None:
    service = services.scheduler if name == "scheduler" else services.runtime
    before = most_mib(service)
    plain, packed = grpc.Compression.NoCompression, grpc.Compression.Gzip
    assert await codes(services, name, "wrong", plain) == {grpc.StatusCode.UNAUTHENTICATED}
    assert await codes(services, name, "wrong", packed) == {grpc.StatusCode.UNIMPLEMENTED}
    assert await codes(services, name, "shared", packed) == {grpc.StatusCode.UNIMPLEMENTED}
    assert most_mib(service) - before < GROWTH_MIB_MAX
