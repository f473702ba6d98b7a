"""The engines of a comparison: real ones, idle and without a cache before each turn of an arm, or fake ones, new ones.

What an arm left in a cache helps none after it in any case, since no two measurements have texts in common. Read
`contest` next.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pathlib
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp
import msgspec

from loadgen.compare.processes import HOST, ProcessError, body_of, started
from loadgen.driver import fault_kind
from loadgen.ports import free_ports
from scheduler import metrics_text

IDLE_WITHIN_S = 120.0
_LOOK_INTERVAL_S = 0.5
_QUIET_S = 3.0
"""Waited for an engine that tells no load: long enough for it to see that its clients have gone."""
_RESET_PATHS = ("/reset_prefix_cache", "/flush_cache")
"""Of vLLM (in its development mode) and SGLang."""
WINDOW_TOKENS = 8_192
"""Taken for an engine that does not tell how long its prompts may be."""


@dataclass(frozen=True, slots=True)
class Fakes:
    """Fake engines to start."""

    count: int
    profile: str


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine serves."""

    model: str
    window_tokens: int
    """Most tokens of a prompt and its reply."""


async def served(session: aiohttp.ClientSession, engine: str) -> Served:
    """The first model of an engine. Raises ProcessError."""
    body = await _get(session, engine, "/v1/models")
    try:
        model = msgspec.json.decode(body or b"", type=_Models).data[0]
    except (msgspec.MsgspecError, IndexError):
        raise ProcessError(f"engine {engine}: GET /v1/models does not list a model") from None
    return Served(model.id, model.max_model_len or WINDOW_TOKENS)


@contextlib.asynccontextmanager
async def fresh(
    engines: tuple[str, ...] | Fakes,
    session: aiohttp.ClientSession,
    environment: Mapping[str, str],
    folder: pathlib.Path,
) -> AsyncIterator[tuple[str, ...]]:
    """Origins of the engines while the block runs: nothing runs on them, and they remember nothing where they can
    forget. Raises ProcessError."""
    if not isinstance(engines, Fakes):
        await asyncio.gather(*(_settle(session, engine) for engine in engines))
        yield engines
        return
    ports = free_ports(engines.count)
    urls = tuple(f"http://{HOST}:{port}" for port in ports)
    settings = {"LUFTPAUSE_ENGINE_PROFILE": engines.profile, "LUFTPAUSE_ENGINE_PORTS": ",".join(map(str, ports))}
    words = [sys.executable, "-P", "-m", "fakes.engine"]
    async with started("engines", words, {**environment, **settings}, folder) as process:
        for url in urls:
            await process.wait_ready(functools.partial(body_of, session, f"{url}/v1/models"))
        yield urls


async def _settle(session: aiohttp.ClientSession, engine: str) -> None:
    """Waits until the engine is idle, then has it forget its prefixes. Raises ProcessError."""
    deadline = time.monotonic() + IDLE_WITHIN_S
    while (busy := await _requests(session, engine)) != 0:
        if busy is None:
            await asyncio.sleep(_QUIET_S)
            break
        if time.monotonic() > deadline:
            raise ProcessError(f"engine {engine} still has {busy} requests after {IDLE_WITHIN_S:.0f} s: not ours")
        await asyncio.sleep(_LOOK_INTERVAL_S)
    for path in _RESET_PATHS:
        try:
            async with session.post(engine + path) as answer:
                if answer.ok:
                    return
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ProcessError(f"engine {engine}: {fault_kind(error)}") from None


async def _requests(session: aiohttp.ClientSession, engine: str) -> int | None:
    """Requests that run or wait on an engine; None where it does not tell. Raises ProcessError."""
    body = await _get(session, engine, "/metrics")
    load = metrics_text.read(body or b"")
    return None if load.running is None else load.running + (load.waiting or 0)


async def _get(session: aiohttp.ClientSession, engine: str, path: str) -> bytes | None:
    """As `body_of`. Raises ProcessError where the engine does not answer."""
    try:
        return await body_of(session, engine + path)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ProcessError(f"engine {engine}: {fault_kind(error)}") from None
