"""The HTTP surface: `/mcp`, `GET /status` (JSON), `GET /health`, and the token before the first two.

Must not decide anything. Read next: `mcp_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import h11
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from common.auth import NOT_BOUND, UNAUTHENTICATED, Guard
from common.grants import ANYTHING, Grant
from common.tls import PLAIN, Tls
from runtime import exposition, reports
from runtime.mcp_server import tool_servers
from runtime.origins import Served
from runtime.service import Runtime
from runtime.sessions import Sessions

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Of one request: a task of the greatest length, in the worst encoding, with room for the rest."""
HEAD_BYTES_MAX = 64 * 1024
"""Of a request's head, its trailers and each line of its framing."""
STOP_GRACE_S = 1
"""How long open streams have when the runtime is told to end: some clients keep one as long as they live."""
TWO_LENGTHS = "expected Content-Length or Transfer-Encoding, not both"
NO_SESSION_LEFT = "too many MCP sessions of this token, all of them in use: end some (DELETE /mcp)"
STOPPING = "the runtime is stopping; try again when it is back"
_SESSION = b"mcp-session-id"
_SINGLE = (_SESSION, b"mcp-protocol-version")
TWO_HEADERS = "expected one MCP-Session-Id and one MCP-Protocol-Version at most"
_WITH_SESSIONS = ("", *HANDSHAKE_PROTOCOL_VERSIONS)
"""Versions of the protocol that have sessions; a client that names none is taken for one of these."""
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


class _Protocol(H11Protocol):
    """HTTP/1.1 by h11, which limits what it keeps of a head or of trailers, and reads no request ahead of an answer."""

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP; where an answer has begun already, or is whole, closing says it."""
        if self.cycle is not None:
            # The request whose body is no HTTP may be at work, or not have begun: it is told that its client has left.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            with contextlib.suppress(h11.LocalProtocolError):  # the answer to a HEAD has no body
                super().send_400_response(msg)
        self.transport.close()


def settings(app: App, tls: Tls = PLAIN) -> uvicorn.Config:
    """How `app` is served."""
    return uvicorn.Config(
        app,
        http=_Protocol,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=STOP_GRACE_S,
        lifespan="on",
        ssl_certfile=tls.certificate,
        ssl_keyfile=tls.key,
    )


def build(
    runtime: Runtime,
    mcp: MCPServer,
    host: str,
    guard: Guard,
    served: Served,
    *,
    sessions: Sessions,
    session_idle_s: float,
) -> App:
    """The application. `host` is what it will listen on; an MCP session ends after `session_idle_s` without a request
    or a stream."""

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
        session_idle_timeout=session_idle_s,
        max_sessions=None,  # `sessions` limits those of each token
        # Looked at in `_guarded`, for all paths.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return _guarded(_with_few_sessions(app, sessions), guard, served, runtime)


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
        if b"content-length" in headers and b"transfer-encoding" in headers:
            await _refusal(400, TWO_LENGTHS, {"Connection": "close"})(scope, receive, send)
            return
        # Who reads the first of two and who reads the last would see different requests.
        names = [name for name, _ in scope["headers"]]
        if any(names.count(single) > 1 for single in _SINGLE):
            await _refusal(400, TWO_HEADERS)(scope, receive, send)
            return
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        # Two of them nobody means: who reads the first and who reads the last would see different callers.
        grant = ANYTHING if scope["path"] in _OPEN_PATHS else guard.admit(shown[0] if len(shown) == 1 else None)
        if grant is None:
            await _refusal(401, UNAUTHENTICATED, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
            return
        if grant.is_bound and scope["path"] != "/mcp":
            await _refusal(403, NOT_BOUND)(scope, receive, send)
            return
        scope["user"] = _user(grant)
        has_begun = False

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await app(scope, _whole(receive), watched)
        except ClientDisconnect:
            pass  # nobody is to be told
        except asyncio.CancelledError:
            if not runtime.is_closing:
                raise
            if has_begun:
                # A stream that its client keeps open for as long as it lives: it is ended like any other answer.
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await _refusal(503, STOPPING, {"Retry-After": "5"})(scope, receive, send)

    return guarded


def _with_few_sessions(app: App, sessions: Sessions) -> App:
    """`app` that ends the idlest MCP session of a token which opens too many, and refuses where none is idle."""

    async def limited(scope: Scope, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http" or headers.get(b"mcp-protocol-version", b"").decode("latin-1") not in _WITH_SESSIONS:
            await app(scope, receive, send)
            return
        token: str = scope["user"].access_token.client_id
        session = headers.get(_SESSION, b"").decode("latin-1")
        if not session and scope["method"] == "POST" and not sessions.has_room(token):
            await _refusal(503, NO_SESSION_LEFT, {"Retry-After": "60"})(scope, receive, send)
            return
        status = 0

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                made = dict(message["headers"]).get(_SESSION, b"").decode("latin-1")
                if not session and made and status < 400:
                    idlest = sessions.opened(token, made)
                    if idlest is not None:
                        await app(*_deletion(scope, idlest))
            await send(message)

        sessions.began(token, session)
        try:
            await app(scope, receive, watched)
        finally:
            is_gone = status == 404 or (scope["method"] == "DELETE" and status < 300)
            sessions.ended(token, session, is_gone=is_gone)

    return limited


def _deletion(
    scope: Scope, session: str
) -> tuple[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]]:
    """A request that ends `session`, of the client that sent `scope`; nobody gets its answer."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(_message: Any) -> None:
        pass

    return {**scope, "method": "DELETE", "headers": [(_SESSION, session.encode("latin-1"))]}, receive, send


def _user(grant: Grant) -> AuthenticatedUser:
    """Whom the SDK keeps a session for: to all others it does not exist. It knows tokens by name, never a secret."""
    return AuthenticatedUser(AccessToken(token="", client_id=grant.name, scopes=[]))


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
