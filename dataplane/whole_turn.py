"""One turn whose reply is awaited whole, for what luftpause asks an engine itself: admit, send, read, report.

`proxy.Turn` relays; this one hands the reply over. Being cancelled means that the client left. Every way it can go ends
in one report, as there. Must not know what is asked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from dataplane import errors
from dataplane.exchange import EngineError, Reply
from dataplane.limits import reported_status
from dataplane.meter import ReplyMeter
from dataplane.proxy import STALL_S_MAX, Proxy
from dataplane.tickets import Ticket
from dataplane.turn_trace import TurnTrace, log_turn
from dataplane.upstream import Endpoint, EngineConnection
from protos import turn_pb2

log = logging.getLogger(__name__)

REPLY_BYTES_MAX = 4 * 2**20
"""An answer to a small question is small."""


@dataclass(frozen=True, slots=True)
class WholeReply:
    """What an engine answered, whatever its status."""

    replica: str
    head: Reply
    body: bytes


RequestLine = Callable[[Endpoint], bytes]
"""The first lines of the request to an endpoint: where it is POSTed to."""


async def perform(
    proxy: Proxy, turn: turn_pb2.Turn, line: RequestLine, body: bytes, trace: TurnTrace | None
) -> WholeReply | errors.ApiError:
    """The reply to one turn, sent to the replica that the scheduler chooses.

    An error where the turn is refused or there is no whole reply. The run of the turn's `new_run_id` ends with it.
    """
    return await WholeTurn(proxy, turn, line, body, trace).perform()


class WholeTurn:
    """A turn, from its admission to its report."""

    def __init__(
        self, proxy: Proxy, turn: turn_pb2.Turn, line: RequestLine, body: bytes, trace: TurnTrace | None
    ) -> None:
        self._proxy = proxy
        self._trace = trace
        self._meter: ReplyMeter | None = None
        self._line = line
        self._body = body
        self._ticket = Ticket(turn, self, len(body))
        loop = asyncio.get_running_loop()
        self._admitted: asyncio.Future[turn_pb2.Placement | turn_pb2.Refusal] = loop.create_future()

    async def perform(self) -> WholeReply | errors.ApiError:
        """See the function of this name."""
        scheduler, ticket = self._proxy.scheduler, self._ticket
        scheduler.admit(ticket)
        try:
            admitted = await self._admitted
            if isinstance(admitted, turn_pb2.Refusal):
                refusal = errors.refused(admitted)
                self._over("refused", refusal.message)
                return refusal
            return await self._exchange(admitted)
        except asyncio.CancelledError:
            if ticket.placed_at:
                self._failed("client left")
            else:
                scheduler.abandon(ticket)
                self._over("abandoned")
            raise

    # From the scheduler.

    def placed(self, placement: turn_pb2.Placement) -> None:
        """Lets `perform` go on, if it has not been cancelled in this moment."""
        if not self._admitted.done():
            self._admitted.set_result(placement)

    def refused(self, refusal: turn_pb2.Refusal) -> None:
        """As `placed`."""
        if not self._admitted.done():
            self._admitted.set_result(refusal)

    # Inner steps.

    async def _exchange(self, placement: turn_pb2.Placement) -> WholeReply | errors.ApiError:
        replica = placement.replica
        try:
            endpoint = self._proxy.endpoint(replica, placement.url)
        except ValueError as problem:
            log.warning("replica unusable replica=%s error=%r", replica, str(problem))
            error = errors.engine_failed(replica, "its key cannot be read")
        else:
            self._proxy.scheduler.started(self._ticket)
            try:
                async with asyncio.timeout(STALL_S_MAX):
                    head, body = await self._send(endpoint)
            except TimeoutError:
                error = errors.engine_silent(replica, STALL_S_MAX)
            except EngineError as problem:
                error = errors.engine_failed(replica, str(problem))
            else:
                return self._read(WholeReply(replica, head, body))
        self._failed(error.message)
        return error

    async def _send(self, endpoint: Endpoint) -> tuple[Reply, bytes]:
        """Head and body of the reply. Raises EngineError; a kept connection that turns out closed is replaced once."""
        lines = b"content-type: application/json\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            self._traceparent_line(),
            self._ticket.turn_id.encode(),
            len(self._body),
        )
        head = self._line(endpoint) + lines
        kept = endpoint.acquire()
        try:
            return await _exchanged(kept or await endpoint.connect(), head, self._body)
        except _UntouchedError:
            return await _exchanged(await endpoint.connect(), head, self._body)

    def _traceparent_line(self) -> bytes:
        if self._trace is not None:
            return self._trace.engine_line()
        told = self._ticket.traceparent
        return f"traceparent: {told}\r\n".encode("latin-1") if told else b""

    def _read(self, reply: WholeReply) -> WholeReply | errors.ApiError:
        """Reports how the turn ended."""
        self._proxy.read_limits(self._ticket, reply.head)
        self._meter = meter = ReplyMeter()
        meter.feed(reply.body)
        meter.finish()
        status = reply.head.status
        if reply.head.close_delimited and status < 300 and not meter.whole:
            error = errors.engine_failed(reply.replica, "closed the connection")
            self._failed(error.message)
            return error
        if status >= 300:
            self._failed(f"engine answered {status}", reported_status(status, meter.too_large))
        elif meter.error:
            self._failed("engine reported an error in its reply")
        else:
            self._proxy.scheduler.ended(self._ticket, meter)
            if meter.usage is not None:
                self._proxy.metrics.used(meter.usage)
            self._over("ended")
        self._proxy.metrics.bytes_out += len(reply.body)
        return reply

    def _failed(self, problem: str, status: int | None = None) -> None:
        self._proxy.scheduler.failed(self._ticket, problem, status)
        self._over("failed", problem)

    def _over(self, outcome: str, problem: str = "") -> None:
        ticket = self._ticket
        duration_s = time.monotonic() - ticket.arrived_at
        self._proxy.metrics.turn_over(ticket.message.run_class, outcome, duration_s)
        if self._trace is not None:
            self._trace.over(ticket, outcome, problem, self._meter)
        log_turn(ticket, outcome, duration_s)
        if ticket.message.new_run_id and outcome != "refused":
            self._proxy.scheduler.run_ended(ticket.message.new_run_id, ticket.message.caller)


class _UntouchedError(EngineError):
    """A kept connection had been closed before the request reached the engine."""


async def _exchanged(connection: EngineConnection, head: bytes, body: bytes) -> tuple[Reply, bytes]:
    """Head and body of the reply to a request. Raises EngineError; if cancelled, the connection is closed."""
    exchange = _Exchange()
    connection.send(exchange, head, body)
    try:
        return await exchange.whole
    except BaseException:
        if not exchange.is_over:
            connection.abort()
        raise
    finally:
        del exchange  # it has the error, whose traceback has this frame


class _Exchange:
    """Collects a reply."""

    def __init__(self) -> None:
        self.whole: asyncio.Future[tuple[Reply, bytes]] = asyncio.get_running_loop().create_future()
        self.is_over = False
        """Whether the connection belongs to somebody else by now, or to nobody."""
        self._reply = Reply()
        self._body = bytearray()

    def answered(self, reply: Reply) -> None:
        """The head is there."""
        self._reply = reply

    def received(self, data: bytes, complete: bool) -> None:
        """More of the body."""
        self._body += data
        self.is_over = complete
        if self.whole.done():
            return
        if len(self._body) > REPLY_BYTES_MAX:
            self.whole.set_exception(EngineError(f"its answer is larger than {REPLY_BYTES_MAX} bytes"))
        elif complete:
            self.whole.set_result((self._reply, bytes(self._body)))

    def lane(self) -> None:
        """There is no short way: everything is kept."""

    def lost(self, problem: str, untouched: bool) -> None:
        """There will be no more."""
        self.is_over = True
        if not self.whole.done():
            self.whole.set_exception((_UntouchedError if untouched else EngineError)(problem))
