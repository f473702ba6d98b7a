"""The client's side of port 8080: parses requests, and gives each, one at a time, to whoever answers it.

One llhttp parser owns every connection. Chat completions become a `Turn` (`proxy`); the rare routes are coroutines
(`routes`). A request that is too large, too slow or malformed is refused here; what still comes on a connection that is
being closed is read and dropped for a while, so that the client gets to read why.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import cast

import httptools

from dataplane import errors
from dataplane.config import DataplaneConfig
from dataplane.fallback import RetryBudget, new_turn
from dataplane.proxy import Proxy
from dataplane.request import Answer, Chat, Request
from dataplane.routes import Routes
from dataplane.unread import Unread
from dataplane.work import RareWork, Work, as_answer, as_bytes

CLOSE_S_MAX = 10.0
"""How long a connection that is being closed may take to send, and to drop, what is left."""

AHEAD_BYTES_MAX = 64 * 1024
"""How much of further requests is read of a client that has not got its answers: a client that leaves is noticed only
while its connection is read."""

PARSED_BYTES_MAX = 16 * 1024
"""How much is parsed at once: a request takes many times the memory of its bytes, and one read may have thousands."""

_NO_UPGRADE = errors.malformed("a change of protocol (Upgrade) is not served")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Server:
    """What all client connections of a process share."""

    def __init__(self, proxy: Proxy, routes: Routes, config: DataplaneConfig) -> None:
        self.proxy = proxy
        self.retries = RetryBudget()
        self.routes = routes
        self.config = config
        self.connections: set[ClientConnection] = set()

    def connect(self) -> ClientConnection:
        """A protocol for one connection."""
        return ClientConnection(self)


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_ahead",
        "_body_came",
        "_closing",
        "_current",
        "_deadline",
        "_fault",
        "_held_back",
        "_loop",
        "_owes_continue",
        "_parser",
        "_served",
        "_server",
        "_transport",
        "_unread",
        "_waiting",
        "_work",
        "_write_paused",
        "write",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._current: Request | None = None
        """The request that is being parsed."""
        self._owes_continue = False
        """Whether its client waits for our word before it sends the body."""
        self._waiting: list[Request] = []
        """Whole requests that wait for their turn to be answered."""
        self._fault: errors.ApiError | None = None
        """Why nothing is parsed behind those that wait."""
        self._served: Request | None = None
        """The request that is being answered, by `_work`."""
        self._work: Work | None = None
        self._ahead = b""
        """What was read and is not parsed, since what came before it is not answered."""
        self._body_came = False
        """Whether what was parsed last had bytes of a body in it."""
        self._held_back = False
        """Whether reading is paused until more of what was read is parsed."""
        self._write_paused = False
        self._unread = Unread()
        self._closing = False
        self._deadline = math.inf
        """Loop time at which `sweep` ends what has taken too long; without meaning while there is work."""

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the transport; a client has as long to begin as between two requests."""
        self._transport = cast(asyncio.Transport, transport)
        self.write: Callable[[bytes], None] = self._transport.write
        self._deadline = self._loop.time() + self._server.config.idle_s
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """The client is gone, and what was done for it is called off."""
        self._closing = True
        self._server.connections.discard(self)
        if self._current is not None:
            self._current.end_body()
            self._waiting.append(self._current)
        for request in self._waiting:
            request.route = None  # it may hold the request
        self._parser = self._current = self._served = None
        self._waiting.clear()
        self._ahead = b""
        work, self._work = self._work, None
        if work is not None:
            work.client_left()

    def data_received(self, data: bytes) -> None:
        """Parses; whole requests are answered in their order. Not much is read of a client that is ahead of its
        answers."""
        if self._closing or self._parser is None:
            return
        goes_on_later = bool(self._ahead or self._waiting)
        self._ahead += data
        if not goes_on_later:
            self._next()
        if len(self._ahead) > AHEAD_BYTES_MAX and not (self._held_back or self._closing):
            self._held_back = True
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        """More is waiting to be sent than should be: the engine is read no further."""
        self._write_paused = True
        if self._work is not None:
            self._work.pause()

    def resume_writing(self) -> None:
        """The client has read it."""
        self._write_paused = False
        self._unread.took()
        if self._work is not None:
            self._work.resume()
        elif not self._closing:
            self._deadline = self._loop.time() + self._server.config.idle_s
            self._next()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._current = Request()
        self._deadline = self._loop.time() + self._server.config.header_s

    def on_url(self, part: bytes) -> None:
        """The target, or a part of it."""
        assert self._current is not None
        self._current.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. Those behind a chunked body, trailers, are nobody's."""
        assert self._current is not None
        if not self._current.method:
            self._current.add_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole: who answers, and whether the body is wanted at all."""
        request, parser, config = self._current, self._parser, self._server.config
        assert request is not None
        assert parser is not None
        request.end_head(
            parser.get_method().decode(),
            parser.get_http_version(),
            parser.should_keep_alive(),
            config,
        )
        if parser.should_upgrade():
            request.refusal = _NO_UPGRADE
            request.keep_alive = False
        if request.refusal is None:
            found = self._server.routes.find(request)
            if isinstance(found, errors.ApiError):
                request.refusal = found
            else:
                request.route = found
        self._owes_continue = request.expects_continue and request.refusal is None and not request.too_large
        if self._work is None and not self._waiting:
            self._write_continue()
        self._deadline = self._loop.time() + config.body_s

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        request = self._current
        assert request is not None
        self._body_came = True
        request.add_body(data, self._server.config.body_bytes_max)

    def on_chunk_header(self) -> None:
        """A chunk of the body begins."""
        assert self._current is not None
        self._current.chunk_count += 1

    def on_message_complete(self) -> None:
        """The request is whole."""
        request, self._current = self._current, None
        assert request is not None
        request.end_body()
        self._owes_continue = False
        self._deadline = math.inf
        excess = request.excess(self._server.config)
        if excess is not None and request.refusal is None:
            request.route = None
            request.refusal = excess
        self._waiting.append(request)

    # What the work calls.

    @property
    def takes_chunks(self) -> bool:
        """Whether the client understands chunked answers."""
        return self._served is not None and self._served.chunks

    def connection_line(self) -> bytes:
        """The last lines of an answer's head."""
        return b"\r\n" if self._served is not None and self._served.keep_alive else b"connection: close\r\n\r\n"

    def answer(self, answer: Answer) -> None:
        """Sends a whole answer to the request being served, and goes on to the next one."""
        self._send(answer)
        self.work_over()

    def answer_error(self, error: errors.ApiError, run_id: str) -> None:
        """As `answer`, with the error as its body and the run's id, where it is known."""
        self.answer(as_answer(error, run_id))

    def work_over(self) -> None:
        """The request is answered, whole: the next one, or the end."""
        served, self._served, self._work = self._served, None, None
        if served is None or not served.keep_alive:
            self.close()
            return
        self._deadline = self._loop.time() + self._server.config.idle_s
        if self._ahead or self._waiting or self._owes_continue or self._fault is not None:
            self._loop.call_soon(self._next)

    def close(self) -> None:
        """Closes the connection when all is sent. An answer that is not whole stays so."""
        self._closing = True
        self._served = self._work = None
        self._deadline = self._loop.time() + CLOSE_S_MAX
        self._transport.close()

    # What the process calls.

    def end(self) -> None:
        """The process ends: what is being answered is broken off."""
        work, self._work = self._work, None
        if work is not None:
            work.client_left()
        self.close()

    def sweep(self, now: float) -> None:
        """Called each second: ends what has taken too long, and treats a client that takes nothing of what waits for
        it as one that left."""
        if self._unread.look(self._transport.get_write_buffer_size(), now) >= self._server.config.unread_s:
            self._transport.abort()
            return
        if (self._work is not None or self._write_paused) and not self._closing:
            return
        if now < self._deadline:
            return
        current, config = self._current, self._server.config
        if self._closing:
            self._transport.abort()
        elif current is None:
            self.close()
        elif not current.method:
            self._refuse(errors.too_slow("head", config.header_s))
        else:
            self._refuse(errors.too_slow("body", config.body_s))

    def check(self) -> None:
        """Called each minute: see `Turn.check`."""
        if self._work is not None:
            self._work.check()

    # Its own steps.

    def _parse_ahead(self) -> None:
        """Parses what was read, until a request is whole, or nothing behind it will ever be."""
        ahead, at = self._ahead, 0
        while at < len(ahead) and not self._waiting and self._fault is None:
            self._parse(ahead[at : at + PARSED_BYTES_MAX])
            at += PARSED_BYTES_MAX
        self._ahead = ahead[at:]

    def _parse(self, data: bytes) -> None:
        assert self._parser is not None
        before = self._current
        was_past_head = before is not None and bool(before.method)
        self._body_came = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fault = _NO_UPGRADE
        except httptools.HttpParserError as error:
            self._fault = errors.malformed(str(error) or type(error).__name__)
        current = self._current
        if current is None or self._fault is not None:
            return
        # Where others ended in `data`, most of it may be theirs; what follows it will show a head without an end.
        if self._waiting or (current.method and (self._body_came or not was_past_head)):
            current.fed_bytes = 0
        else:
            current.fed_bytes += len(data)
        if self._body_came:
            current.count_kept()
            if current.caller is not None and current.refusal is None:
                current.refusal = self._server.routes.too_much_of(current.caller, current.kept_bytes)
        self._check_size(current)

    def _check_size(self, request: Request) -> None:
        """Finds what must be refused before the request is whole."""
        config = self._server.config
        if request.fed_bytes > config.header_bytes_max:
            self._fault = errors.head_too_large(config.header_bytes_max)
        elif (excess := request.excess(config)) is not None:
            self._fault = request.refusal or excess
        elif request.refusal is not None and request.expects_continue:
            self._fault = request.refusal

    def _next(self) -> None:
        """Answers the next request, once it is whole; behind the last one, tells why no more is parsed."""
        if self._work is not None or self._closing or self._write_paused:
            return
        self._parse_ahead()
        if self._waiting:
            self._serve(self._waiting.pop(0))
        elif self._fault is not None:
            self._refuse(self._fault)
        else:
            self._write_continue()
        if self._held_back and len(self._ahead) <= AHEAD_BYTES_MAX and not self._closing:
            self._held_back = False
            self._transport.resume_reading()

    def _write_continue(self) -> None:
        """To be called where all earlier requests are answered: it is an answer too, and they have an order."""
        if self._owes_continue:
            self._owes_continue = False
            self.write(_CONTINUE)

    def _serve(self, request: Request) -> None:
        self._served = request
        route, request.route = request.route, None  # it may hold the request
        if isinstance(route, Chat):
            crowd = self._server.routes.crowded_out(route.identity.caller)
            if crowd is not None:
                self.answer_error(crowd, route.identity.run_id or "")
                return
            turn = self._work = new_turn(
                self._server.proxy, self, self._server.retries, self._server.config.keep_alive_s
            )
            error = turn.begin(request, route.identity)
            if error is not None:
                self.answer_error(error, route.identity.run_id or "")
        elif route is not None:
            self._work = RareWork(self, route)
        else:
            assert request.refusal is not None
            self.answer_error(request.refusal, "")

    def _refuse(self, error: errors.ApiError) -> None:
        """Answers what cannot be served, and closes; the client may be in the middle of sending."""
        self._served = None
        self._send(as_answer(error, ""))
        self._closing = True
        self._deadline = self._loop.time() + CLOSE_S_MAX
        if self._transport.can_write_eof():  # not over TLS: there the head says that the answer is the last one
            self._transport.write_eof()
        if self._held_back:
            self._transport.resume_reading()

    def _send(self, answer: Answer) -> None:
        self._server.proxy.metrics.answers[answer.status] += 1
        head_only = self._served is not None and self._served.method == "HEAD"
        self.write(as_bytes(answer, self.connection_line(), head_only))
