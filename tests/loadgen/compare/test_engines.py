"""Engines of a comparison: real ones are idle and have forgotten before an arm's turn."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from loadgen.compare import engines
from loadgen.compare.processes import ProcessError
from tests.servers import web_server


class Busy:
    """An engine that runs a request less each time somebody looks."""

    def __init__(self, requests: int, reset_path: str) -> None:
        self.requests = requests
        self.resets: list[int] = []
        """Requests that ran at each reset."""
        self._reset_path = reset_path

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post(self._reset_path, self._reset)
        async with web_server(app) as origin:
            yield origin

    async def _metrics(self, _request: web.Request) -> web.Response:
        self.requests = max(self.requests - 1, 0)
        return web.Response(text=f"vllm:num_requests_running {self.requests}\nvllm:num_requests_waiting 0\n")

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})

    async def _reset(self, _request: web.Request) -> web.Response:
        self.resets.append(self.requests)
        return web.Response()


@pytest.mark.parametrize("reset_path", ["/reset_prefix_cache", "/flush_cache"])
async def test_an_engine_is_idle_and_forgets_before_an_arm_has_it(tmp_path: pathlib.Path, reset_path: str) -> None:
    engine = Busy(3, reset_path)
    async with engine.running() as url, aiohttp.ClientSession() as session:
        async with engines.fresh((url,), session, {}, tmp_path) as urls:
            assert urls == (url,)
        assert engine.resets == [0]
        assert await engines.served(session, url) == engines.Served("m", 4096)


async def test_an_engine_with_the_requests_of_others_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "IDLE_WITHIN_S", 0.0)
    async with Busy(9, "/flush_cache").running() as url, aiohttp.ClientSession() as session:
        with pytest.raises(ProcessError, match=f"engine {url} still has 8 requests"):
            async with engines.fresh((url,), session, {}, tmp_path):
                pass
