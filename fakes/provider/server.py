"""The provider over HTTP: `/v1/chat/completions` (whole or streamed), `/v1/models`, `/health`; and, for tests,
`GET /fake/stats` with what was served and refused, and `POST /fake/failures` (`{"status": 503, "count": 2}`).

Read `windows` for what it allows.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

from aiohttp import web

from common.auth import Guard
from fakes.engine.errors import ApiError, bad_field
from fakes.engine.surface import json_response, read_body
from fakes.provider import headers
from fakes.provider.config import ProviderConfig
from fakes.provider.windows import TOKEN_BYTES, Bucket, Charge, Quota

_SIGMA = 0.4
"""Spread of the lengths of answers, which are lognormal."""
_CHUNK_TOKENS = 10
_DAY_S = 86400.0
_SHUTDOWN_S = 1.0


class ProviderServer:
    """`start` listens, `finish` ends it."""

    def __init__(self, config: ProviderConfig) -> None:
        self.port = config.port
        """The port listened on; after `start` never 0."""
        self._config = config
        self.quota = Quota(
            Bucket(config.window_tokens, config.period_s, config.fixed, at=time.time()),
            Bucket(config.window_requests, config.period_s, config.fixed, at=time.time()),
            config.says,
            Bucket(config.day_requests, _DAY_S, at=time.time()) if config.family == "groq" else None,
        )
        self._chance = random.Random(config.seed)
        self._failures: list[int] = []
        self._guard = Guard(config.key.get_secret_value() if config.key else None)
        application = web.Application()
        application.router.add_post("/v1/chat/completions", self._chat)
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/health", self._health)
        application.router.add_get("/fake/stats", self._stats)
        application.router.add_post("/fake/failures", self._add_failures)
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )

    async def start(self) -> None:
        """Listens. Raises OSError where the port is taken."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._config.host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def finish(self) -> None:
        """Stops listening."""
        await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if self._guard.admit(request.headers.get("authorization")) is None:
            return _refusal(ApiError(401, "wrong API key", kind="invalid_request_error"))
        raw = await read_body(request)
        try:
            asked = _read(raw, self._config.model)
        except ApiError as error:
            return _refusal(error)
        if self._failures:
            return _refusal(ApiError(self._failures.pop(0), "it is overloaded", kind="server_error"))
        now, max_tokens = time.time(), asked.get("max_tokens") or asked.get("max_completion_tokens")
        charge = self.quota.arrive(now, len(raw), max_tokens)
        told = headers.tell(self._config.family, self.quota, now)
        if not isinstance(charge, Charge):
            told |= headers.retry_after(self._config.retry_after, charge, now)
            message = self.quota.refusal(len(raw), max_tokens)
            return json_response(
                {"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}, 429, told
            )
        prompt = len(raw) // TOKEN_BYTES
        completion = round(self._config.reply_tokens * self._chance.lognormvariate(0, _SIGMA))
        completion = max(1, min(completion, max_tokens or completion))
        used = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        try:
            if asked.get("stream"):
                return await self._stream(request, told, used)
            await asyncio.sleep(completion * self._config.token_ms / 1000)
            choice = {"index": 0, "message": {"role": "assistant", "content": "word " * completion}}
            choices = [{**choice, "finish_reason": "stop"}]
            return json_response(
                {**self._head("chat.completion"), "choices": choices, "usage": used},
                200,
                told,
            )
        finally:
            self.quota.end(time.time(), charge, prompt + completion)

    async def _stream(self, request: web.Request, told: dict[str, str], used: dict[str, int]) -> web.StreamResponse:
        response = web.StreamResponse(headers={**told, "content-type": "text/event-stream"})
        await response.prepare(request)
        left = used["completion_tokens"]
        while left > 0:
            tokens = min(left, _CHUNK_TOKENS)
            left -= tokens
            await asyncio.sleep(tokens * self._config.token_ms / 1000)
            await response.write(self._chunk({"content": "word " * tokens}, None))
        await response.write(self._chunk({}, "stop"))
        await response.write(_event({**self._head("chat.completion.chunk"), "choices": [], "usage": used}))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _chunk(self, delta: dict[str, str], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": "chatcmpl-hosted", "object": kind, "created": int(time.time()), "model": self._config.model}

    async def _models(self, _request: web.Request) -> web.Response:
        return json_response({"object": "list", "data": [{"id": self._config.model, "object": "model"}]})

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _stats(self, _request: web.Request) -> web.Response:
        quota = self.quota
        return json_response(
            {
                "served": quota.served,
                "served_tokens": quota.served_tokens,
                "refused": quota.refused,
                "refused_tokens": quota.refused_tokens,
            }
        )

    async def _add_failures(self, request: web.Request) -> web.Response:
        asked = json.loads(await read_body(request))
        self._failures += [int(asked["status"])] * int(asked["count"])
        return json_response({"failures": self._failures})


def _read(raw: bytes, model: str) -> dict[str, Any]:
    try:
        asked = json.loads(raw)
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list) or not asked["messages"]:
        raise bad_field("messages", "a list that is not empty")
    if asked.get("model") != model:
        raise ApiError(404, f"there is no model '{asked.get('model')}'", "model", "invalid_request_error")
    for name in ("max_tokens", "max_completion_tokens"):
        if not isinstance(asked.get(name, 1), int) or asked.get(name, 1) < 1:
            raise bad_field(name, "a whole number above 0")
    return asked


def _refusal(error: ApiError) -> web.Response:
    return json_response(error.body, error.status)


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
