"""The HTTP surface: `GET /status` (JSON, see `wire.status_json`), `/metrics`, `/health`, and `/`, the page.

Must not decide anything. `/status` and the page need the token, which a browser shows as a password; health and
metrics, which name no caller, are open.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import logging
import pathlib
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST
from yarl import URL

from common.auth import NOT_BOUND, UNAUTHENTICATED, Guard
from common.grants import ANYTHING
from common.tls import PLAIN, Tls
from scheduler import exposition, wire
from scheduler.host import Host

PAGE = pathlib.Path(__file__).with_name("page.html")
SHUTDOWN_LIMIT_S = 1.0

_ORIGIN = re.compile(r"https?://(\[[0-9a-fA-F:]+\]|[\w.-]+)(:[0-9]{1,5})?(?=/|$)", re.ASCII)
_CLIENTS_FAULTS = (HttpProcessingError, web.RequestPayloadError)
_OPEN_PATHS = frozenset(("/health", "/metrics"))


def _is_ours(record: logging.LogRecord) -> bool:
    """Keeps what a client sent that is no HTTP, a token perhaps, out of the log: the client was told, with 400."""
    return record.exc_info is None or not isinstance(record.exc_info[1], _CLIENTS_FAULTS)


_log = logging.getLogger("scheduler.http")
_log.addFilter(_is_ours)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]) -> web.BaseRequest:
    """`CONNECT` without a target is parsed to a request without a URL, on which aiohttp's own task would die, and the
    client would wait for ever."""
    right = message if message.url is not None else message._replace(url=URL("*"))
    return web.BaseRequest(right, payload, protocol, writer, task, asyncio.get_running_loop())


async def start(host: Host, address: str, port: int, guard: Guard, tls: Tls = PLAIN) -> tuple[web.ServerRunner, int]:
    """Serves on `address`:`port`; returns what to clean up, and the port. Raises OSError if it cannot listen."""
    server = web.Server(
        _surface(host, PAGE.read_text(encoding="utf-8"), guard),
        request_factory=_request,
        access_log=None,
        logger=_log,
        auto_decompress=False,  # no body is wanted
    )
    runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_LIMIT_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, address, port, ssl_context=tls.server_context()).start()
    except BaseException:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])


def _surface(host: Host, page: str, guard: Guard) -> Callable[[web.BaseRequest], Awaitable[web.Response]]:
    """What answers every request."""
    own_policy = _page_policy(page)

    def shown_page(runtime: str) -> web.Response:
        """The page, which may ask the runtime too whose URL it was given."""
        origin = _ORIGIN.match(runtime)
        policy = own_policy.replace("connect-src 'self'", f"connect-src 'self' {origin[0]}") if origin else own_policy
        return web.Response(text=page, content_type="text/html", headers={"Content-Security-Policy": policy})

    def metrics() -> web.Response:
        host.tally.spans_lost = host.tracer.lost if host.tracer is not None else 0
        host.tally.tasks = len(asyncio.all_tasks())
        body = exposition.render(host.summary(), host.tally)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def health() -> web.Response:
        reason = host.unready_reason()
        return _json(200, {"ready": True}) if reason is None else _json(503, {"ready": False, "reason": reason})

    answers: dict[str, Callable[[], web.Response]] = {
        "/status": lambda: _json(200, wire.status_json(host.summary())),
        "/metrics": metrics,
        "/health": health,
    }

    async def answer(request: web.BaseRequest) -> web.Response:
        known = answers.get(request.path)
        if request.path == "/":
            known = functools.partial(shown_page, request.query.get("runtime", ""))
        reads = request.method in ("GET", "HEAD")
        shown = request.headers.getall("Authorization", [])  # nobody means two
        admitted = guard.admit(shown[0] if len(shown) == 1 else None, basic=reads)
        grant = ANYTHING if request.path in _OPEN_PATHS else admitted
        if grant is None:
            response = _error(401, UNAUTHENTICATED, {"WWW-Authenticate": "Bearer"})
            if reads:
                response.headers.add("WWW-Authenticate", 'Basic realm="luftpause", charset="UTF-8"')
        elif grant.is_bound:
            response = _error(403, NOT_BOUND)
        elif known is None:
            response = _error(404, f"nothing here; expected one of /, {', '.join(answers)}")
        elif not reads:
            response = _error(405, f"method {request.method}: expected GET", {"Allow": "GET, HEAD"})
        else:
            response = known()
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Cache-Control"] = "no-store"
        return response

    return answer


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return _json(status, {"error": {"message": message}}, headers)


def _json(status: int, body: object, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(body),
        content_type="application/json",
        headers=headers,
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
