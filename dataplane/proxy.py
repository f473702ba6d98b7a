"""One turn: identify, admit, relay, report. The whole of it is calls in the event loop; no task, but to connect.

A `Turn` stands between a client connection (`server`), the scheduler's client and an engine connection (`upstream`),
and each of the three calls it. Every way a turn can go ends in `_over`, exactly once; what the client sees for which
failure is the table in the README. What the bytes mean is left to `chat` and `meter`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from common.pool import Pool
from common.tracing import Tracer
from dataplane import chat, errors
from dataplane.exchange import EngineError, Reply
from dataplane.fresh_ids import id_source
from dataplane.identity import Identity
from dataplane.limits import reported_status
from dataplane.meter import Meter, ReplyMeter, StreamMeter
from dataplane.metrics import Metrics
from dataplane.pool_view import PoolView
from dataplane.pump import Lane, make_pump
from dataplane.request import Request
from dataplane.scheduler_client import SchedulerClient
from dataplane.tickets import Ticket
from dataplane.turn_trace import TurnTrace, log_turn, passed_on
from dataplane.upstream import Endpoint, EngineConnection
from dataplane.work import TurnClient
from protos import turn_pb2

log = logging.getLogger(__name__)

STALL_S_MAX = 600
"""An engine that sends no byte for this long has lost the turn: as long as the scheduler's own limit on silent
turns."""
CHECK_S = 60
"""How often turns are looked at for that."""

LAST_CHUNK = b"0\r\n\r\n"


class Proxy:
    """What all turns of a process share."""

    def __init__(self, scheduler: SchedulerClient, pool: Pool, tracer: Tracer | None = None) -> None:
        self.scheduler = scheduler
        self.tracer = tracer
        self.metrics = Metrics()
        self.new_run_id = id_source("run")
        self.new_turn_id = id_source("turn")
        self.pool = PoolView(pool)
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        self._pump = make_pump()

    def endpoint(self, replica: str, url: str) -> Endpoint:
        """The connections to `replica`. Raises PoolError where its key cannot be read."""
        endpoint = self._endpoints.get((replica, url))
        if endpoint is None:
            endpoint = self._endpoints[replica, url] = Endpoint(replica, url, self.pool.key(replica), self._pump)
        return endpoint

    def read_limits(self, ticket: Ticket, reply: Reply) -> None:
        """Takes in what an answer's head tells of its replica's rate limits, if any are kept."""
        headers = self.pool.told_limits(ticket.replica, reply.status, reply.lines)
        if headers:
            self.scheduler.limits_told(ticket, headers)

    def sweep(self, now: float) -> None:
        """Drops engine connections that were not used for long."""
        for endpoint in self._endpoints.values():
            endpoint.sweep(now)

    def close(self) -> None:
        """Closes the unused engine connections."""
        for endpoint in self._endpoints.values():
            endpoint.close()
        if self._pump is not None:
            self._pump.close()


class Turn:
    """One request for a chat completion."""

    __slots__ = (
        "_added_usage",
        "_body",
        "_chunked",
        "_client",
        "_connecting",
        "_ended",
        "_endpoint",
        "_engine",
        "_head",
        "_lane",
        "_lines",
        "_meter",
        "_proxy",
        "_relayed_before",
        "_reply",
        "_request",
        "_silent_s",
        "_ticket",
        "_trace",
        "_write",
    )

    def __init__(self, proxy: Proxy, client: TurnClient) -> None:
        self._proxy = proxy
        self._client = client
        self._write: Callable[[bytes], None] = client.write
        self._engine: EngineConnection | None = None
        self._endpoint: Endpoint | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._reply: Reply | None = None
        self._head = b""
        """The head of the answer, until it leaves together with the first bytes of the body."""
        self._chunked = False
        self._added_usage = False
        self._ended = False
        self._relayed_before = 0
        self._silent_s = 0
        self._lane = Lane(client.write)

    # From the client.

    def begin(self, request: Request, identity: Identity) -> errors.ApiError | None:
        """Asks for admission. Returns an error where the body is not a request; the turn is then over."""
        body = request.take_body()
        parsed = chat.parse(body)
        if isinstance(parsed, errors.ApiError):
            return parsed
        proxy = self._proxy
        proxy.metrics.bytes_in += len(body)
        self._body = body
        self._trace = trace = TurnTrace(proxy.tracer, request) if proxy.tracer is not None else None
        self._lines = request.lines
        self._request = parsed
        self._ticket = Ticket(
            turn_pb2.Turn(
                turn_id=proxy.new_turn_id(),
                run_id=identity.run_id or "",
                new_run_id="" if identity.run_id else proxy.new_run_id(),
                caller=identity.caller,
                run_class=identity.run_class,
                kind=turn_pb2.REPLICA_KIND_GENERATIVE,
                model=parsed.model,
                tool_call_ids=() if identity.run_id else parsed.tool_call_ids(),
                traceparent=trace.traceparent if trace is not None else passed_on(request),
            ),
            self,
            len(body),
        )
        proxy.pool.describe_limits(self._ticket.message, identity.limits, body, parsed.tokens_max)
        parsed.messages.clear()  # a held turn, or an open stream, needs them no longer
        proxy.scheduler.admit(self._ticket)
        return None

    def client_left(self) -> None:
        """The client's connection is gone: nothing more is generated for it."""
        if not self._ticket.placed_at:
            self._proxy.scheduler.abandon(self._ticket)
            self._over("abandoned")
            return
        self._drop_engine()
        if not self._ended:
            self._fail("client left")

    def pause(self) -> None:
        """The client reads more slowly than the engine sends."""
        if self._engine is not None:
            self._engine.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._engine is not None:
            self._engine.resume()

    def check(self) -> None:
        """Called each `CHECK_S`: gives up on an engine that has been silent for `STALL_S_MAX`."""
        relayed_bytes = self._lane.relayed_bytes
        if self._engine is None or relayed_bytes != self._relayed_before:
            self._relayed_before = relayed_bytes
            self._silent_s = 0
            return
        self._silent_s += CHECK_S
        if self._silent_s >= STALL_S_MAX:
            self._drop_engine()
            self._give_up(errors.engine_silent(self._ticket.replica, STALL_S_MAX))

    # From the scheduler.

    def placed(self, placement: turn_pb2.Placement) -> None:
        """Sends the request to the replica."""
        try:
            self._endpoint = self._proxy.endpoint(placement.replica, placement.url)
        except ValueError as error:
            log.warning("replica unusable replica=%s error=%r", placement.replica, str(error))
            self._give_up(errors.engine_failed(placement.replica, "its key cannot be read"))
            return
        self._added_usage = (
            self._request.stream is True
            and not self._request.wants_usage
            and self._proxy.pool.asks_usage(placement.replica)
        )
        model = self._proxy.pool.own_model(placement.replica, self._request.model)
        if model != self._request.model:
            self._body = chat.with_model(self._body, model)
        if self._added_usage:
            self._body = chat.ask_for_usage(self._body, self._request)
        self._proxy.scheduler.started(self._ticket)
        engine = self._endpoint.acquire()
        if engine is not None:
            self._send(engine)
        else:
            self._connect()

    def refused(self, refusal: turn_pb2.Refusal) -> None:
        """Tells the client."""
        self._over("refused", refusal.message)
        run_id = self._ticket.message.run_id
        self._answer_error(errors.refused(refusal), run_id)

    # From the engine.

    def answered(self, reply: Reply) -> None:
        """Makes our head of the reply's: with the run's id and our own framing. `received` follows at once."""
        self._proxy.read_limits(self._ticket, reply)
        self._body = b""
        self._lines = []
        self._reply = reply
        stream = reply.content_type.startswith(b"text/event-stream")
        hides = self._added_usage and stream
        self._meter: Meter = StreamMeter(hides) if stream else ReplyMeter()
        lines = reply.lines
        lines.insert(0, b"HTTP/1.1 %d %b\r\n" % (reply.status, reply.reason))
        lines.append(b"x-luftpause-run-id: %b\r\n" % self._ticket.run_id.encode())
        if reply.length is not None and not hides:
            lines.append(b"content-length: %b\r\n" % reply.length)
        elif reply.status not in (204, 304):
            self._chunked = self._client.takes_chunks
            if self._chunked:
                lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(self._client.connection_line())
        self._head = b"".join(lines)
        lines.clear()

    def received(self, data: bytes, complete: bool) -> None:
        """Relays bytes of the body, after reading what they tell. Reports go out before the bytes they follow from."""
        self._lane.relayed_bytes += len(data)
        meter = self._meter
        shown = meter.feed(data)
        if complete:
            self._finish(shown + meter.finish())
            return
        if meter.news:
            self._look()
        if shown and self._chunked:
            shown = b"%x\r\n%b\r\n" % (len(shown), shown)
        if self._head:
            shown, self._head = self._head + shown, b""
        if shown:
            self._write(shown)

    def lane(self) -> Lane | None:
        """The short way, once the reply is a stream of which an ordinary chunk has been seen."""
        template = self._meter.template
        if template is None or not self._chunked:
            return None
        self._lane.learn(*template)
        return self._lane

    def lost(self, problem: str, untouched: bool) -> None:
        """The engine's connection broke: once more if it was an old one, else a 502, or a close in mid-reply."""
        self._engine = None
        if untouched:
            self._connect()
        else:
            self._give_up(errors.engine_failed(self._ticket.replica, problem))

    # Inner steps.

    def _connect(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._send_on_new_connection())

    async def _send_on_new_connection(self) -> None:
        assert self._endpoint is not None
        try:
            engine = await self._endpoint.connect()
        except EngineError as error:
            self._connecting = None
            self._unreachable(errors.engine_failed(self._ticket.replica, str(error)))
        else:
            self._connecting = None
            self._send(engine)

    def _send(self, engine: EngineConnection) -> None:
        assert self._endpoint is not None
        self._engine = engine
        self._lines[0] = self._endpoint.request_line("/chat/completions")
        body = self._body
        self._lines[-1] = b"x-request-id: %b\r\n%bcontent-length: %d\r\n\r\n" % (
            self._ticket.turn_id.encode(),
            self._trace.engine_line() if self._trace is not None else b"",
            len(body),
        )
        engine.send(self, b"".join(self._lines), body)

    def _look(self) -> None:
        """The meter has read something: first token and end are reported as soon as they are known."""
        meter, ticket, proxy = self._meter, self._ticket, self._proxy
        meter.news = False
        if meter.first_token and not ticket.first_token:
            proxy.scheduler.first_token(ticket)
            ttft_s = time.monotonic() - ticket.arrived_at
            proxy.metrics.first_token(ticket.message.run_class, ttft_s)
            if self._trace is not None:
                self._trace.ttft_s = ttft_s
        if meter.done and not self._ended:
            self._report_end()

    def _report_end(self) -> None:
        """The turn ended well, or, where the reply says otherwise, did not."""
        reply, meter = self._reply, self._meter
        assert reply is not None
        self._ended = True
        if reply.status >= 300:
            self._fail(f"engine answered {reply.status}", reported_status(reply.status, meter.too_large))
        elif meter.error:
            self._fail("engine reported an error in its reply")
        else:
            self._proxy.scheduler.ended(self._ticket, meter)
            if meter.usage is not None:
                self._proxy.metrics.used(meter.usage)
            self._over("ended")

    def _finish(self, shown: bytes) -> None:
        """The body is whole: report first, then relay its last bytes, then the client may send its next request."""
        self._engine = None
        reply, meter = self._reply, self._meter
        assert reply is not None
        broken_off = reply.close_delimited and reply.status < 300 and not (meter.whole or reply.encoded)
        if not broken_off:
            if meter.news:
                self._look()
            if not self._ended:
                self._report_end()
        if self._chunked:
            shown = (b"%x\r\n%b\r\n" % (len(shown), shown) if shown else b"") + (b"" if broken_off else LAST_CHUNK)
        last, self._head = self._head + shown, b""
        if last:
            self._write(last)
        if broken_off:
            self._give_up(errors.engine_failed(self._ticket.replica, "closed the connection"))
        else:
            self._client.work_over()

    def _unreachable(self, error: errors.ApiError) -> None:
        """There is no connection to the engine."""
        self._fail(error.message, 0)
        self._answer_error(error, self._ticket.run_id)

    def _give_up(self, error: errors.ApiError) -> None:
        """No whole reply: the client gets `error`, or a broken off reply where it has begun."""
        if not self._ended:
            self._fail(error.message)
        if self._reply is None:
            self._answer_error(error, self._ticket.run_id)
        else:
            self._client.close()

    def _answer_error(self, error: errors.ApiError, run_id: str) -> None:
        self._client.answer_error(error, run_id)

    def _fail(self, problem: str, status: int | None = None) -> None:
        self._ended = True
        self._proxy.scheduler.failed(self._ticket, problem, status)
        self._over("failed", problem)

    def _drop_engine(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._engine is not None:
            self._engine.abort()
            self._engine = None

    def _over(self, outcome: str, problem: str = "") -> None:
        metrics, ticket = self._proxy.metrics, self._ticket
        duration_s = time.monotonic() - ticket.arrived_at
        metrics.turn_over(ticket.message.run_class, outcome, duration_s)
        metrics.bytes_out += self._lane.relayed_bytes
        if self._trace is not None:
            self._trace.over(ticket, outcome, problem, self._meter if self._reply is not None else None)
        log_turn(ticket, outcome, duration_s)
