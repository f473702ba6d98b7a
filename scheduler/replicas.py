"""Probes: asks each replica every PROBE_S whether it is healthy, how loaded its engines are, which models it serves.

One task a replica, spread over the interval, so that a thousand of them are a steady trickle and a silent one delays
no other. Whatever a replica answers, a probe ends within PROBE_LIMIT_S with an event. Must not decide what follows.
Read next: `metrics_text`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import aiohttp

from common.ids import Model
from common.model_list import read_models
from common.pool import Replica
from scheduler import metrics_text
from scheduler.events import ReplicaProbed

log = logging.getLogger(__name__)

PROBE_S = 2.0
PROBE_LIMIT_S = 2.0
MODELS_S = 30.0
"""How often learned models are asked for again."""
FIRST_PROBES_APART_S = 0.02
"""At most; less where there are many, so that all are probed within one interval."""
METRICS_BYTES_MAX = 4 * 1024 * 1024
MODELS_BYTES_MAX = 1024 * 1024

_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
"""What a request can end with: refused, broken off, too late, or an answer that is no HTTP."""


async def probe_all(replicas: Sequence[Replica], tell: Callable[[ReplicaProbed], None]) -> None:
    """Probes `replicas` until cancelled. Raises PoolError at once if a configured key cannot be read."""
    loop = asyncio.get_running_loop()
    timeout = aiohttp.ClientTimeout(total=PROBE_LIMIT_S)
    # No limit on connections: replicas that are silent must not keep others from being asked.
    connector = aiohttp.TCPConnector(limit=0)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        cookie_jar=jar,
        auto_decompress=False,
        headers={"Accept-Encoding": "identity"},
    ) as session:
        probes = [Probe(replica, session) for replica in replicas]
        apart_s = min(FIRST_PROBES_APART_S, PROBE_S / max(1, len(probes)))
        start = loop.time()
        async with asyncio.TaskGroup() as group:
            for number, probe in enumerate(probes):
                group.create_task(_probe_forever(probe, start + number * apart_s, tell))


async def _probe_forever(probe: Probe, first_at: float, tell: Callable[[ReplicaProbed], None]) -> None:
    clock = asyncio.get_running_loop().time
    due_at = first_at
    while True:
        await asyncio.sleep(max(0.0, due_at - clock()))
        tell(await probe.ask())
        due_at = max(due_at + PROBE_S, clock())


class Probe:
    """Asks one replica."""

    def __init__(self, replica: Replica, session: aiohttp.ClientSession) -> None:
        """Raises PoolError if the replica's key cannot be read."""
        self._replica = replica
        self._session = session
        key = replica.key()
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._load_urls = tuple(url.rstrip("/") + "/metrics" for url in replica.load_from or (replica.origin,))
        self._models_due_at = float("-inf")
        self._told = (True, True)
        """Whether it was healthy and its models readable, as the log has it."""

    async def ask(self) -> ReplicaProbed:
        """One probe, of at most PROBE_LIMIT_S. Never raises for what the replica does."""
        clock = asyncio.get_running_loop().time
        learns = self._replica.models is None and clock() >= self._models_due_at
        healthy, models, loads = await asyncio.gather(
            self._is_healthy(),
            self._models() if learns else _nothing(),
            asyncio.gather(*(self._load(url) for url in self._load_urls)),
        )
        if models is not None:
            models = tuple(map(Model, self._replica.served(models)))
            self._models_due_at = clock() + MODELS_S
        self._log_changes(healthy, learns and models is None)
        load = metrics_text.combine([each for each in loads if each is not None])
        return ReplicaProbed(
            at=clock(),
            replica=self._replica.name,
            healthy=healthy,
            running=load.running,
            waiting=load.waiting,
            kv_usage=load.kv_usage,
            kv_tokens=load.kv_tokens,
            models=models,
        )

    def _log_changes(self, healthy: bool, models_missing: bool) -> None:
        """One line where a replica falls ill or recovers, or its models cannot be read."""
        name = self._replica.name
        was_healthy, had_models = self._told
        if healthy != was_healthy:
            level = logging.INFO if healthy else logging.WARNING
            log.log(level, "event=replica_%s replica=%s", "healthy" if healthy else "unhealthy", name)
        if healthy and models_missing and had_models:
            url = self._replica.api_base + "/models"
            log.warning(
                "event=models_unknown replica=%s url=%s turns for other models do not wait for it for long", name, url
            )
        self._told = (healthy, not models_missing if healthy else had_models)

    async def _is_healthy(self) -> bool:
        url = self._replica.origin + self._replica.health_path
        try:
            async with self._session.get(url, headers=self._headers_for(url), allow_redirects=False) as answer:
                return 200 <= answer.status < 300
        except _FAILURES:
            return False

    async def _models(self) -> tuple[Model, ...] | None:
        text = await self._get(self._replica.api_base + "/models", MODELS_BYTES_MAX)
        return None if text is None else read_models(text)

    async def _load(self, url: str) -> metrics_text.Load | None:
        text = await self._get(url, METRICS_BYTES_MAX)
        return None if text is None else metrics_text.read(text)

    async def _get(self, url: str, bytes_max: int) -> bytes | None:
        """The body at `url`, or None where there is none to be had, or one too large."""
        try:
            async with self._session.get(url, headers=self._headers_for(url), allow_redirects=False) as answer:
                if answer.status != 200:
                    return None
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > bytes_max:
                        return None
                return bytes(body)
        except _FAILURES:
            return None

    def _headers_for(self, url: str) -> dict[str, str]:
        """The replica's key goes to its own origin only, not to the engines behind a router."""
        parts = urlsplit(url)
        return self._headers if f"{parts.scheme}://{parts.netloc}" == self._replica.origin else {}


async def _nothing() -> None:
    return None
