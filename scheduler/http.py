"""The HTTP surface: `GET /status` (JSON, see `wire.status_json`), `/metrics`, `/health`, and `/`, the page.

Must not decide anything. `/status` and the page need the token; health and metrics, which name no caller, are open.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import re

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST

from common.auth import UNAUTHENTICATED, is_authorized
from scheduler import exposition, wire
from scheduler.host import Host

PAGE = pathlib.Path(__file__).with_name("page.html")
SHUTDOWN_LIMIT_S = 1.0

_OPEN_PATHS = frozenset(("/health", "/metrics"))


async def start(host: Host, address: str, port: int, token: str | None) -> tuple[web.AppRunner, int]:
    """Serves on `address`:`port`; returns what to clean up, and the port. Raises OSError if it cannot listen."""
    app = web.Application(middlewares=(_guard(token),))
    app.add_routes(_routes(host, PAGE.read_text(encoding="utf-8")))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_LIMIT_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port).start()
    except BaseException:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])


def _routes(host: Host, page: str) -> list[web.RouteDef]:
    page_headers = {"Content-Security-Policy": _page_policy(page), "Cache-Control": "no-store"}

    async def status(_request: web.Request) -> web.Response:
        return _json(200, wire.status_json(host.summary()))

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(
            body=exposition.render(host.summary(), host.tally), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def health(_request: web.Request) -> web.Response:
        reason = host.unready_reason()
        return _json(200, {"ready": True}) if reason is None else _json(503, {"ready": False, "reason": reason})

    async def index(_request: web.Request) -> web.Response:
        return web.Response(text=page, content_type="text/html", headers=page_headers)

    return [
        web.get("/status", status),
        web.get("/metrics", metrics),
        web.get("/health", health),
        web.get("/", index),
    ]


def _guard(token: str | None) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, answer: Handler) -> web.StreamResponse:
        if request.path not in _OPEN_PATHS and not is_authorized(token, request.headers.get("Authorization")):
            return _error(401, UNAUTHENTICATED, {"WWW-Authenticate": "Bearer"})
        try:
            response = await answer(request)
        except web.HTTPException as refusal:
            response = _error(refusal.status, f"{refusal.reason}: expected GET /, /status, /metrics or /health")
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return guard


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return _json(status, {"error": {"message": message}}, headers)


def _json(status: int, body: object, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def _page_policy(page: str) -> str:
    """A policy that lets the page run its own script and style, and ask its own server, and nothing else."""

    def allowed(tag: str) -> str:
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {allowed('script')}; style-src {allowed('style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
