"""Connections to engines: one `Endpoint` a replica, with a pool of kept ones. No knowledge of turns, runs or JSON.

An `Exchange` (see `proxy`) is one request and its reply; it is called back in the event loop and may call `abort`,
`pause` and `resume`. The bytes of a reply's body are handed on once per read, without their framing.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from typing import cast

import httptools

from dataplane import sockets
from dataplane.exchange import EngineError, Exchange, Reply
from dataplane.pump import Lane, Pump

CONNECT_S_MAX = 2.0
IDLE_S_MAX = 60.0
"""An unused connection is dropped after this long; engines usually drop it sooner."""
_IDLE_MAX = 256
"""Most unused connections kept to one engine."""
_JOIN_BYTES_MAX = 64 * 1024
"""A smaller request is sent as one string, so that it leaves in one packet."""

_FRESH_S = 1.0
"""Nobody closes a kept connection that was used so short a time ago for having been idle."""

_DRY_BYTES_MAX = 256 * 1024
"""Most bytes read of an engine without one byte of a body among them: a head, or trailers, without an end."""

_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
_OURS = frozenset((b"content-length", b"x-luftpause-run-id"))


class EngineConnection(asyncio.Protocol):
    """One connection to an engine: idle, or carrying one exchange."""

    __slots__ = (
        "_acked_bytes",
        "_at_chunk",
        "_at_chunk_end",
        "_complete",
        "_dry_bytes",
        "_endpoint",
        "_eof",
        "_exchange",
        "_fd",
        "_head_ready",
        "_keep",
        "_parser",
        "_parts",
        "_paused",
        "_read_error",
        "_reply",
        "_tokens",
        "_touched",
        "_transport",
        "idle_since",
        "lane",
        "reused",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._reply = Reply()
        self._parts: list[bytes] = []
        self._at_chunk = self._at_chunk_end = False
        self._head_ready = False
        self._complete = False
        self._dry_bytes = 0
        self._keep = False
        self._paused = False
        self._fd = -1
        """The socket, while the pump reads it; the transport only writes then."""
        self.lane: Lane | None = None
        """Where the next bytes go if they are an ordinary chunk."""
        self._read_error: Exception | None = None
        self._eof = False
        self.reused = False
        self._acked_bytes: int | None = None
        """What the engine had acknowledged when it got a request that may cross its closing; None: it cannot."""
        self._touched = False
        self._tokens = b""
        self.idle_since = 0.0

    # What the exchange calls.

    def send(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Sends a request; `exchange` hears of its reply."""
        assert self._exchange is None
        assert self._transport is not None
        self._exchange = exchange
        self._reply = Reply()
        self._complete = self._touched = self._head_ready = False
        self._dry_bytes = 0
        idle_s = asyncio.get_running_loop().time() - self.idle_since if self.reused else 0.0
        self._acked_bytes = sockets.acked_bytes(self._transport) if idle_s > _FRESH_S else None
        if self._fd < 0 and self._endpoint.pump is not None:
            self._give_to(self._endpoint.pump)
        if len(body) < _JOIN_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def abort(self) -> None:
        """Closes the connection at once, which stops the engine's generation; the exchange hears nothing more."""
        self._exchange = None
        if self._transport is not None:
            self._leave_pump()
            self._transport.abort()

    def pause(self) -> None:
        """Reads no more, until `resume`."""
        if self._transport is None:
            return
        self._paused = True
        if self._fd < 0:
            self._transport.pause_reading()
        else:
            self._leave_pump()

    def resume(self) -> None:
        """Reads on."""
        if self._paused and self._transport is not None:
            self._paused = False
            if self._fd < 0:
                self._transport.resume_reading()
            elif self._endpoint.pump is not None:
                self._endpoint.pump.add(self._fd, self)

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent, as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the transport; small writes leave at once (uvloop sets TCP_NODELAY)."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parses what came, then tells the exchange: once of the head, once of the body's bytes."""
        exchange = self._exchange
        if exchange is None or self._parser is None:
            self.abort()  # bytes that nobody asked for: it cannot be trusted with a request
            return
        lane = self.lane
        if lane is not None:
            if lane.takes(data):
                lane.write(data)
                return
            self.lane = None
        self._touched = True
        problem = self._parse(data)
        self._at_chunk = self._at_chunk_end and data.endswith(b"\r\n")
        parts = self._parts
        body = b""
        if parts:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            self._dry_bytes = 0
        fresh, self._head_ready = self._head_ready, False
        if self._complete:
            self._exchange = None
            self._endpoint.release(self, self._keep)
        if fresh:
            exchange.answered(self._reply)
        if self._complete:
            exchange.received(body, True)
        elif body or fresh:
            exchange.received(body, False)
        if problem and self._exchange is exchange:
            self.abort()
            exchange.lost(problem, untouched=False)
        elif self._at_chunk and self._exchange is exchange:
            # The parser need not see whole chunks: it waits for the next one as before.
            self.lane = exchange.lane()

    def reading_ended(self, error: Exception | None) -> None:
        """The pump has come to the end, or to an error; the transport does not look by itself."""
        self._eof = error is None
        self._read_error = error
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> None:
        """The engine will send no more; the transport closes itself."""
        self._eof = True

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone: the end of a reply that has no other end, else a loss."""
        self._leave_pump()
        error = error or self._read_error
        untouched = not error and self._is_untouched()
        self._transport = self._parser = self.lane = None
        self._endpoint.dropped(self)
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if self._reply.close_delimited and self._eof and error is None:
            exchange.received(b"", True)
        else:
            exchange.lost(sockets.reason(error) if error else "closed the connection", untouched)

    def _is_untouched(self) -> bool:
        """Whether the engine closed the connection before the request came there. What it sent in closing would have
        acknowledged the request, had it been there; a reset acknowledges nothing, so that it proves nothing."""
        before = self._acked_bytes
        return before is not None and self._eof and not self._touched and sockets.acked_bytes(self._transport) == before

    def _give_to(self, pump: Pump) -> None:
        assert self._transport is not None
        self._transport.pause_reading()
        self._fd = self._transport.get_extra_info("socket").fileno()
        pump.add(self._fd, self)

    def _leave_pump(self) -> None:
        if self._fd >= 0 and self._endpoint.pump is not None:
            self._endpoint.pump.remove(self._fd)

    def _parse(self, data: bytes) -> str:
        """Feeds the parser; says what is wrong, unless it is about what follows a whole reply, which is nobody's."""
        assert self._parser is not None
        assert self._transport is not None
        self._dry_bytes += len(data)
        problem = ""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            problem = "changed the protocol, which it was not asked to"
        except httptools.HttpParserError as error:
            problem = f"answered what is not HTTP: {error.__context__ or error}"
        if self._complete:
            # An engine that answered without reading the whole request may never read the rest.
            self._keep = self._keep and not problem and not self._transport.get_write_buffer_size()
            return ""
        if self._dry_bytes > _DRY_BYTES_MAX and not self._parts:
            return f"more than {_DRY_BYTES_MAX} bytes of head or trailers"
        return problem

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A second reply to one request: it is not used, nor is the connection again."""
        if self._complete:
            self._keep = False

    def on_status(self, reason: bytes) -> None:
        """The reason phrase, or a part of it."""
        if not self._complete:
            self._reply.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the reply. Trailers are not passed on."""
        reply = self._reply
        if reply.status:
            return  # a trailer, or what follows a whole reply
        lower = name.lower()
        if lower == b"content-length":
            reply.length = value
        elif lower == b"transfer-encoding":
            reply.chunked = b"chunked" in value.lower()
        elif lower == b"connection":
            self._tokens = value.lower()
        elif lower not in _HOP_BY_HOP and lower not in _OURS:
            reply.lines.append(b"%b: %b\r\n" % (name, value))
            if lower == b"content-type":
                reply.content_type = value
            elif lower == b"content-encoding":
                reply.encoded = value.lower() != b"identity"

    def on_headers_complete(self) -> None:
        """The head is whole. Interim answers (1xx) are not passed on."""
        parser, reply = self._parser, self._reply
        assert parser is not None
        if self._complete:
            return
        status = parser.get_status_code()
        if status < 100:
            raise ValueError(f"status {status}")
        if status < 200:
            self._reply = Reply()
            return
        if status == 204:
            reply.length = None
        reply.status = status
        self._keep = parser.should_keep_alive()
        reply.close_delimited = reply.length is None and not reply.chunked and status not in (204, 304)
        if self._tokens not in (b"", b"close", b"keep-alive"):
            named = {token.strip() for token in self._tokens.split(b",")}
            reply.lines = [line for line in reply.lines if line.partition(b":")[0].lower() not in named]
        self._tokens = b""
        self._head_ready = True

    def on_body(self, data: bytes) -> None:
        """A piece of the body; what follows a whole reply is nobody's."""
        if not self._complete:
            self._parts.append(data)

    def on_chunk_header(self) -> None:
        """A chunk begins, the last one too."""
        self._at_chunk_end = False

    def on_chunk_complete(self) -> None:
        """A chunk ends; where the bytes fed do too, the next ones begin another."""
        self._at_chunk_end = True

    def on_message_complete(self) -> None:
        """The reply is whole, or an interim one is."""
        self._at_chunk_end = False
        if self._reply.status:
            self._complete = True


class Endpoint:
    """One replica: where it is, what it is shown, and its connections."""

    def __init__(self, replica: str, url: str, key: str | None, pump: Pump | None) -> None:
        """`pump` reads the connections, where it can: TLS has no socket with the bytes in it."""
        parts = urllib.parse.urlsplit(url)
        self.replica = replica
        self._host = parts.hostname or ""
        self._tls = parts.scheme == "https"
        self.pump = None if self._tls else pump
        self._port = parts.port or (443 if self._tls else 80)
        self._base = parts.path.rstrip("/") or "/v1"
        authorization = f"authorization: Bearer {key}\r\n" if key else ""
        self._lines = f"host: {parts.netloc}\r\n{authorization}".encode()
        self._idle: list[EngineConnection] = []

    def request_line(self, path: str, *, versioned: bool = True) -> bytes:
        """The first lines of a POST to `path` below the API's base (or beside its /v1): request line, host, key."""
        base = self._base if versioned else self._base.removesuffix("/v1")
        return f"POST {base}{path} HTTP/1.1\r\n".encode() + self._lines

    def acquire(self) -> EngineConnection | None:
        """The connection that was used last and is still open, or None."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def connect(self) -> EngineConnection:
        """A new connection within `CONNECT_S_MAX`. Raises EngineError."""
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: EngineConnection(self),
                    self._host,
                    self._port,
                    ssl=sockets.tls_context() if self._tls else None,
                )
        except TimeoutError:
            raise EngineError(f"no connection within {CONNECT_S_MAX:g} s") from None
        except OSError as error:
            sockets.log_shortage(error)
            raise EngineError(sockets.reason(error)) from None
        return connection

    def release(self, connection: EngineConnection, keep: bool) -> None:
        """The exchange is over: the connection is kept for the next one, or closed."""
        if not keep or len(self._idle) >= _IDLE_MAX or not connection.is_open:
            connection.abort()
            return
        connection.resume()
        connection.reused = True
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def dropped(self, connection: EngineConnection) -> None:
        """The connection is gone."""
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Closes connections that were not used for long; the list is in the order of their last use."""
        while self._idle and now - self._idle[0].idle_since > IDLE_S_MAX:
            self._idle.pop(0).abort()

    def close(self) -> None:
        """Closes the unused connections."""
        while self._idle:
            self._idle.pop().abort()
