"""HTTP to tool servers, so that each failure of a request is told for what it is and never ends the MCP client.

The MCP client has no place for an exception of one request: it ends the whole client, with every call in flight. So
failures are given to it as JSON-RPC errors, whose data says whether the request may have reached the tool
(`failure_of`). Must not decide what follows from a failure; that is in `tool_connection`. Read next:
`tool_call_http`.
"""

from __future__ import annotations

import contextvars
import json
from collections.abc import AsyncIterator
from typing import Any, Literal, get_args

import aiohttp
import httpx2
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST

Failure = Literal["unreachable", "session-gone", "refused", "late", "lost"]
"""`unreachable`, `session-gone` and `refused`: the tool surely never ran. `late`: no answer in time.
`lost`: nobody knows."""

TRACEPARENT: contextvars.ContextVar[str | None] = contextvars.ContextVar("traceparent", default=None)
"""The `traceparent` header of requests made in this context."""

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Longest answer that is read, in bytes; a model could not read a thousandth of it."""

_CONNECT_S = 5.0
_SESSION = "mcp-session-id"
_KEY = "io.luftpause/failure"
_LATE = {408, 504, 524}
"""Statuses by which proxies say that the server did not answer in time."""
_LEFT = 499
"""4xx as well, and sent after the request was passed on: the proxy's client left."""


def client(headers: dict[str, str]) -> httpx2.AsyncClient:
    """An HTTP client that sends `headers` with every request. Has no limit on time: each call has its own."""
    return httpx2.AsyncClient(headers=headers, timeout=None, transport=_TellingTransport())


def failure_of(data: object) -> Failure | None:
    """The failure that the data of a JSON-RPC error tells, or None if the error is the server's own."""
    value = data.get(_KEY) if isinstance(data, dict) else None
    return value if value in get_args(Failure) else None


class _TellingTransport(httpx2.AsyncBaseTransport):
    """Carries requests over aiohttp, with which a call takes half the processor time that it takes by default."""

    def __init__(self) -> None:
        # Calls wait for minutes and hold a connection each, so a limit on connections would be one on parallel calls.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if traceparent := TRACEPARENT.get():
            request.headers["traceparent"] = traceparent
        try:
            response = await self._send(request)
            return await _told(request, response) if request.method == "POST" else response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            return _error(request, "unreachable", f"cannot connect: {error or type(error).__name__}")
        except (aiohttp.ClientError, OSError, httpx2.DecodingError) as error:
            return _error(request, "lost", f"connection lost: {error or type(error).__name__}")

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._session.request(
            request.method,
            str(request.url),
            headers=request.headers.multi_items(),
            data=request.content or None,
            allow_redirects=False,
        )
        return httpx2.Response(
            response.status, headers=list(response.raw_headers), stream=_Body(response), request=request
        )

    async def aclose(self) -> None:
        await self._session.close()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._response.content.iter_any():
            yield part

    async def aclose(self) -> None:
        # Not read to its end, the connection is closed, which is how a server learns that the call was cancelled.
        self._response.close()


async def _told(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """The response to a message, or an error that tells what happened in its place."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    status = response.status_code
    if status < 400:
        if status == 202 and _asks(request):
            await response.aclose()
            return _error(request, "lost", "the server answered 202 and will send no result")
        if status != 200 or kind == "text/event-stream":
            return response
        if kind != "application/json":
            await response.aclose()
            return _error(request, "lost", f"the server answered with content type '{kind}'")
    body = await read(response)
    if body is None:
        return _error(request, None, f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    if status == 404 and _SESSION in request.headers:
        return _error(request, "session-gone", "the server no longer knows the session")
    if status < 400 or _is_rpc_error(body):
        headers = {"content-type": kind, **{k: v for k, v in response.headers.items() if k == _SESSION}}
        return httpx2.Response(status, headers=headers, content=body, request=request)
    return _error(request, _failure_by(status), f"the server answered {status}")


def _failure_by(status: int) -> Failure:
    if status in _LATE:
        return "late"
    return "refused" if status < 500 and status != _LEFT else "lost"


async def read(response: httpx2.Response) -> bytes | None:
    """The decoded body, or None where it is too long; closes the response. Raises what the transport raises."""
    parts, size = [], 0
    try:
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > ANSWER_BYTES_MAX:
                return None
    finally:
        await response.aclose()
    return b"".join(parts)


def _asks(request: httpx2.Request) -> bool:
    """Whether the message is one that is answered (a notification is not)."""
    message = json.loads(request.content)
    return isinstance(message, dict) and "id" in message


def _is_rpc_error(body: bytes) -> bool:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and isinstance(message.get("error"), dict) and "code" in message["error"]


def _error(request: httpx2.Request, failure: Failure | None, message: str) -> httpx2.Response:
    codes = {"lost": CONNECTION_CLOSED, "late": CONNECTION_CLOSED, None: INTERNAL_ERROR}
    error: dict[str, Any] = {"code": codes.get(failure, INVALID_REQUEST), "message": message}
    if failure is not None:
        error["data"] = {_KEY: failure}
    return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)
