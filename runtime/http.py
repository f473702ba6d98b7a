"""The HTTP surface: `/mcp`, `GET /status` (JSON), `GET /health`, and the token before the first two.

Must not decide anything. Read next: `mcp_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from common.auth import NOT_BOUND, UNAUTHENTICATED, Guard
from common.grants import ANYTHING
from runtime import exposition, reports
from runtime.mcp_server import tool_servers
from runtime.origins import Served
from runtime.service import Runtime

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Of one request: a task of the greatest length, in the worst encoding, with room for the rest."""
STOP_GRACE_S = 1
"""How long open streams have when the runtime is told to end: some clients keep one as long as they live."""
_OPEN_PATHS = ("/health", "/metrics")
RUNS_MAX = 2000
"""Most runs in a status, the latest."""

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class Server(uvicorn.Server):
    """uvicorn without its own ideas about signals: who runs it sets `should_exit`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def build(runtime: Runtime, mcp: MCPServer, host: str, guard: Guard, served: Served) -> App:
    """The application. `host` is what it will listen on."""

    async def status(request: Request) -> Response:
        response = JSONResponse(status_of(runtime))
        origin = request.headers.get("origin")
        if origin is not None:
            # The scheduler's page reads it from its own port. Its origin is one of `served`, else it had not come here.
            response.headers.update({"Access-Control-Allow-Origin": origin, "Vary": "Origin"})
        return response

    async def health(_request: Request) -> Response:
        reason = runtime.unready_reason()
        if reason is not None:
            return JSONResponse({"ready": False, "reason": reason}, status_code=503)
        return JSONResponse({"ready": True})

    async def metrics(_request: Request) -> Response:
        return Response(metrics_of(runtime), headers={"Content-Type": CONTENT_TYPE_LATEST})

    mcp.custom_route("/status", methods=["GET"])(status)
    mcp.custom_route("/health", methods=["GET"])(health)
    mcp.custom_route("/metrics", methods=["GET"])(metrics)
    app = mcp.streamable_http_app(
        host=host,
        max_request_body_size=BODY_BYTES_MAX,
        # Looked at in `_guarded`, for all paths.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return _guarded(app, guard, served, runtime)


def metrics_of(runtime: Runtime) -> bytes:
    """The exposition for Prometheus."""
    observer = runtime.observer
    return exposition.render(
        observer.metrics,
        (journal.run for journal in runtime.tree),
        runtime.tools(),
        writable=runtime.unready_reason() is None,
        spans_lost=observer.spans_lost,
        tasks=len(asyncio.all_tasks()),
    )


def status_of(runtime: Runtime) -> dict[str, Any]:
    """How many runs are where, and the latest of them with their own and their subtree's usage, parents first."""
    tree, now = runtime.tree, time.time()
    latest = list(tree)[-RUNS_MAX:]
    return {
        "states": reports.counts(journal.run for journal in tree),
        "runs": [reports.listing(journal.run, tree.usage(journal), now) for journal in latest],
        "servers": tool_servers(runtime),
    }


def _guarded(app: App, guard: Guard, served: Served, runtime: Runtime) -> App:
    """`app` behind the token; health and the server's own life are open."""

    async def guarded(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        # Whitespace around a value is not of it (RFC 9110, 5.5), and the HTTP parser leaves what trails.
        scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        foreign = served.refusal(headers.get(b"host", ""), headers.get(b"origin"))
        if foreign is not None and scope["path"] not in _OPEN_PATHS:
            await _refusal(*foreign)(scope, receive, send)
            return
        shown = headers.get(b"authorization")
        grant = ANYTHING if scope["path"] in _OPEN_PATHS else guard.admit(shown)
        if grant is None:
            await _refusal(401, UNAUTHENTICATED, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        if grant.is_bound and scope["path"] != "/mcp":
            await _refusal(403, NOT_BOUND)(scope, receive, send)
            return
        try:
            await app(scope, _whole(receive), send)
        except ClientDisconnect:
            pass  # nobody is to be told
        except asyncio.CancelledError:
            if not runtime.is_closing:
                raise
            # A stream that its client keeps open for as long as it lives: it is ended like any other answer.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return guarded


def _whole(receive: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """`receive` that raises ClientDisconnect when a client leaves in the middle of its body. The SDK, told of it,
    would take it for a fault of its own and log it whole."""
    is_whole = False

    async def received() -> Any:
        nonlocal is_whole
        message = await receive()
        if message["type"] == "http.disconnect" and not is_whole:
            raise ClientDisconnect
        is_whole = is_whole or not message.get("more_body", False)
        return message

    return received


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=status, headers=headers)
