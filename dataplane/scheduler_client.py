"""The dataplane's side of the `Dispatch` stream: admissions out, placements in, reports kept until acknowledged.

It knows no HTTP. A turn is a `Ticket`; its owner is told of the placement by a plain call in the event loop. When the
stream is lost, the tickets stay: those held are admitted again, those in flight are named in the resync. What goes into
a resync is `runs` and `_resync_parts`, what into a message `outbox`.

A message costs sender and receiver some 0.1 ms each, more than all that it carries. So what nobody waits for travels
with something that somebody waits for, and tells how long ago it happened.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator

import grpc

from common.auth import bearer_metadata
from common.tls import PLAIN, Tls
from dataplane.held import HeldTurns
from dataplane.limits import LastTold
from dataplane.meter import Meter
from dataplane.outbox import BATCH_MAX, Outbox
from dataplane.runs import RunTable
from dataplane.tickets import Ticket
from protos import scheduler_pb2, scheduler_pb2_grpc, turn_pb2

log = logging.getLogger(__name__)


RECONNECT_S = 1.0
RENEW_S = 60.0
BUSY_FROM = 8
"""Turns here, held or in flight, from which on an admission does not go at once."""
SOON_S = 0.002
"""It waits this long for company, and so does a report that frees a slot while turns are held here."""
LATER_S = 0.005
"""Where none does, a report that frees a slot, or tells of rate limits: those of another dataplane may wait for it."""
LAZY_S = 0.5
"""A report that frees nothing (started, first token)."""
_LOOK_S = 0.02
"""How often it is looked whether all is done, at the end."""

_RESYNC_RUNS_MAX = 256
"""Runs in one part of a resync: below the limit of a message even if each has 64 tool call ids, all as long as can
be."""
_ERROR_CHARS_MAX = 300

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", 32 * 2**20),
    ("grpc.max_receive_message_length", 32 * 2**20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class SchedulerClient:
    """Keeps one stream to the scheduler for as long as `run` runs. All methods but `run` and `replicas` only queue."""

    def __init__(self, target: str, dataplane_id: str, token: str | None, tls: Tls = PLAIN) -> None:
        self._target = target
        self._tls = tls
        self._dataplane_id = dataplane_id
        self.metadata = bearer_metadata(token)
        self._runs = RunTable()
        self._held = HeldTurns()
        self._told = LastTold()
        self._in_flight: dict[str, Ticket] = {}
        self._outbox = Outbox()
        self._received = 0
        self._epoch = 0
        self._send = asyncio.Event()
        """Whether what is queued goes now."""
        self._timer: asyncio.TimerHandle | None = None
        """Sets `_send`."""
        self._channel: grpc.aio.Channel | None = None
        self.connected = False
        """Whether the scheduler has been told everything, so that turns are placed."""

    @property
    def epoch(self) -> int:
        """Streams to the scheduler opened since the start."""
        return self._epoch

    @property
    def held(self) -> int:
        """Turns that wait for their admission."""
        return len(self._held)

    @property
    def in_flight(self) -> int:
        """Turns placed and not ended."""
        return len(self._in_flight)

    @property
    def runs(self) -> int:
        """Runs remembered for a resync."""
        return len(self._runs)

    def admit(self, ticket: Ticket) -> None:
        """Asks for the turn's admission; its owner is told."""
        self._held.add(ticket)
        if self.connected:
            self._outbox.admit(ticket.message)
            if len(self._held) + len(self._in_flight) < BUSY_FROM:
                self._send.set()
            else:
                self._send_within(SOON_S)

    def abandon(self, ticket: Ticket) -> None:
        """The client left while the turn was held; its owner is told nothing more."""
        turn_id = ticket.turn_id
        ticket.owner = None
        if self._held.pop(turn_id) is not None and self.connected:
            self._outbox.abandon(turn_id)
            self._send.set()

    def started(self, ticket: Ticket) -> None:
        """The request was sent to the engine."""
        self._report_lazily(turn_pb2.REPORT_KIND_STARTED, ticket)

    def first_token(self, ticket: Ticket) -> None:
        """The first token arrived."""
        ticket.first_token = True
        self._report_lazily(turn_pb2.REPORT_KIND_FIRST_TOKEN, ticket)

    def ended(self, ticket: Ticket, reply: Meter) -> None:
        """The reply is whole. Call it before the last bytes are relayed, so that the next turn comes after the
        report."""
        usage = reply.usage
        now = time.monotonic()
        self._in_flight.pop(ticket.turn_id, None)
        self._outbox.ended(ticket)
        self._runs.ended(now, ticket.run_id, reply.has_tool_calls, reply.tool_call_ids)
        self._report(
            now,
            turn_pb2.Report(
                kind=turn_pb2.REPORT_KIND_ENDED,
                turn_id=ticket.turn_id,
                finish_reason=reply.finish_reason,
                has_tool_calls=reply.has_tool_calls,
                tool_call_ids=reply.tool_call_ids,
                prompt_tokens=usage.prompt_tokens if usage else None,
                completion_tokens=usage.completion_tokens if usage else None,
                cached_tokens=usage.cached_tokens if usage else None,
                traceparent=ticket.traceparent,
                limit_headers=ticket.take_limits(),
            ),
        )

    def failed(self, ticket: Ticket, error: str, status: int | None = None) -> None:
        """There will be no whole reply; `status` is the engine's, 0 where it could not be reached."""
        now = time.monotonic()
        self._in_flight.pop(ticket.turn_id, None)
        self._outbox.ended(ticket)
        self._runs.failed(now, ticket.run_id)
        self._report(
            now,
            turn_pb2.Report(
                kind=turn_pb2.REPORT_KIND_FAILED,
                turn_id=ticket.turn_id,
                error=error[:_ERROR_CHARS_MAX],
                traceparent=ticket.traceparent,
                status=status,
                limit_headers=ticket.take_limits(),
            ),
        )

    def held_of(self, caller: str) -> int:
        """Turns of one caller that wait for their admission."""
        return self._held.of(caller)

    def held_bytes_of(self, caller: str) -> int:
        """How large their requests' bodies are."""
        return self._held.bytes_of(caller)

    def limits_told(self, ticket: Ticket, headers: list[turn_pb2.LimitHeader]) -> None:
        """The head of the turn's answer told of its replica's rate limits: it is reported with what comes next."""
        ticket.limit_headers = headers
        self._told.take(time.monotonic(), ticket.replica, headers)

    def caller_of(self, run_id: str) -> str | None:
        """Whose run it is, as far as this process knows."""
        return self._runs.caller(run_id)

    def run_ended(self, run_id: str, caller: str) -> None:
        """The run will not be continued."""
        self._runs.forget(run_id, caller)
        report = turn_pb2.Report(kind=turn_pb2.REPORT_KIND_RUN_ENDED, run_id=run_id, caller=caller)
        self._report(time.monotonic(), report)

    def stub(self) -> scheduler_pb2_grpc.SchedulerAsyncStub | None:
        """The scheduler's methods, to be called with `metadata`; None while `run` does not run."""
        if self._channel is None:
            return None
        stub: scheduler_pb2_grpc.SchedulerAsyncStub = scheduler_pb2_grpc.SchedulerStub(self._channel)
        return stub

    async def replicas(self, timeout_s: float) -> list[scheduler_pb2.ReplicaStatus] | None:
        """The replicas as the scheduler sees them now; None where it does not answer in time."""
        stub = self.stub()
        if stub is None:
            return None
        call = stub.Watch(scheduler_pb2.WatchRequest(), timeout=timeout_s, metadata=self.metadata)
        try:
            async for status in call:
                return list(status.replicas)
        except grpc.aio.AioRpcError:
            return None
        finally:
            call.cancel()
        return None

    async def run(self) -> None:
        """Keeps the stream open until cancelled; connects again each second while it is lost."""
        async with self._tls.channel(self._target, _CHANNEL_OPTIONS) as channel:
            self._channel = channel
            sweeper = asyncio.create_task(self._sweep())
            try:
                while True:
                    await self._stream(channel)
                    await asyncio.sleep(RECONNECT_S)
            finally:
                self._channel = None
                sweeper.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Waits until the scheduler has acknowledged all reports, at most `timeout_s`: the last word of a process."""
        self._send.set()
        await _until(lambda: not (self.connected and self._outbox.owes), timeout_s)

    async def wait_for_turns(self, timeout_s: float) -> None:
        """Waits until no turn is in flight, at most `timeout_s`."""
        await _until(lambda: not self._in_flight, timeout_s)

    async def _stream(self, channel: grpc.aio.Channel) -> None:
        """One stream, from hello to its loss: when either direction ends, for whatever reason, both do."""
        await channel.channel_ready()
        stub: scheduler_pb2_grpc.SchedulerAsyncStub = scheduler_pb2_grpc.SchedulerStub(channel)
        call = stub.Dispatch(metadata=self.metadata)
        reader = asyncio.create_task(self._read(call))
        writer = asyncio.create_task(self._write(call.write))
        try:
            ended, _ = await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.connected = False
            call.cancel()
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
        self._tell_loss((reader if reader in ended else writer).exception())

    def _tell_loss(self, error: BaseException | None) -> None:
        if error is None:
            log.warning("scheduler closed the stream target=%s", self._target)
        elif isinstance(error, grpc.aio.AioRpcError):
            log.warning("scheduler lost target=%s code=%s detail=%r", self._target, error.code().name, error.details())
        elif isinstance(error, asyncio.InvalidStateError):
            log.warning("scheduler lost target=%s detail=%r", self._target, str(error))
        else:
            log.error("stream to the scheduler failed target=%s", self._target, exc_info=error)

    async def _read(self, responses: AsyncIterable[scheduler_pb2.DispatchResponse]) -> None:
        async for response in responses:
            self._take(response)

    async def _write(self, write: Callable[[scheduler_pb2.DispatchRequest], Awaitable[None]]) -> None:
        """Says hello, tells what is known, then sends whatever is queued as one message, again and again."""
        self._epoch += 1
        self._received = 0
        hello = scheduler_pb2.Hello(dataplane_id=self._dataplane_id, epoch=self._epoch)
        sequence = 1
        await write(scheduler_pb2.DispatchRequest(sequence=sequence, hello=hello))
        for part in self._resync_parts():
            sequence += 1
            await write(scheduler_pb2.DispatchRequest(sequence=sequence, resync=part))
        self._admit_again()
        self.connected = True
        log.info("scheduler connected target=%s epoch=%d", self._target, self._epoch)
        while True:
            await self._send.wait()
            sequence += 1
            batch = self._outbox.batch(sequence, self._received, time.monotonic())
            if not self._outbox:
                self._send.clear()
            await write(batch)

    def _admit_again(self) -> None:
        """After a resync: every held turn with the time it has waited."""
        now = time.monotonic()
        for ticket in self._held.tickets():
            ticket.message.held_ms = round((now - ticket.arrived_at) * 1000)
        self._outbox.queue_again(ticket.message for ticket in self._held.tickets())
        if self._outbox:
            self._send.set()

    def _resync_parts(self) -> Iterator[scheduler_pb2.ResyncRequest]:
        """All runs and all turns in flight, in parts; the last one says that it is the last."""
        now = time.monotonic()
        runs = list(self._runs.known(now))
        # Of the same moment as the runs.
        turns = [ticket.known(now) for ticket in (*self._in_flight.values(), *self._outbox.ended_tickets())]
        for start in range(0, len(runs), _RESYNC_RUNS_MAX):
            yield scheduler_pb2.ResyncRequest(runs=runs[start : start + _RESYNC_RUNS_MAX])
        for start in range(0, len(turns), BATCH_MAX):
            yield scheduler_pb2.ResyncRequest(turns=turns[start : start + BATCH_MAX])
        yield scheduler_pb2.ResyncRequest(limits=self._told.known(now), complete=True)

    def _take(self, response: scheduler_pb2.DispatchResponse) -> None:
        """Hands placements and refusals to their owners, and lets go of reports that arrived."""
        self._received = response.sequence
        self._outbox.acknowledge(response.acknowledged)
        for placement in response.placements:
            self._place(placement)
        for ended in response.ended_runs:
            self._runs.forget(ended.run_id, ended.caller, ended.sequence)
        for refusal in response.refusals:
            ticket = self._held.pop(refusal.turn_id)
            if ticket is not None:
                ticket.take_owner().refused(refusal)

    def _place(self, placement: turn_pb2.Placement) -> None:
        ticket = self._held.pop(placement.turn_id)
        if ticket is None:
            if placement.turn_id not in self._in_flight:
                # Abandoned while it was being placed.
                report = turn_pb2.Report(
                    kind=turn_pb2.REPORT_KIND_FAILED, turn_id=placement.turn_id, error="client left while held"
                )
                self._report(time.monotonic(), report)
            return
        ticket.placed_at = time.monotonic()
        ticket.run_id = placement.run_id
        ticket.replica = placement.replica
        ticket.sequence = placement.sequence
        self._in_flight[placement.turn_id] = ticket
        if placement.run_id:  # a one-shot turn has none
            self._runs.placed(ticket.placed_at, placement.run_id, ticket.message, placement)
        ticket.take_owner().placed(placement)

    def _report(self, at: float, report: turn_pb2.Report) -> None:
        self._outbox.report(at, report)
        self._send_within(SOON_S if self._held else LATER_S)

    def _report_lazily(self, kind: turn_pb2.ReportKind.ValueType, ticket: Ticket) -> None:
        limits = ticket.take_limits() if ticket.limit_headers else None
        report = turn_pb2.Report(
            kind=kind, turn_id=ticket.turn_id, traceparent=ticket.traceparent, limit_headers=limits
        )
        self._outbox.report(time.monotonic(), report)
        self._send_within(LATER_S if limits else LAZY_S)

    def _send_within(self, seconds: float) -> None:
        """What is queued goes then, or earlier with something else that goes."""
        if self._send.is_set():
            return
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._send_now)

    def _send_now(self) -> None:
        self._timer = None
        if self._outbox:
            self._send.set()

    async def _sweep(self) -> None:
        """Each minute: renews the turns in flight, forgets runs that are long idle."""
        while True:
            await asyncio.sleep(RENEW_S)
            self._runs.sweep(time.monotonic())
            if self.connected and self._in_flight:
                self._outbox.renew(self._in_flight)
                self._send.set()


async def _until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Looks every `_LOOK_S` whether `condition` holds; gives up after `timeout_s`."""
    for _ in range(round(timeout_s / _LOOK_S)):
        if condition():
            return
        await asyncio.sleep(_LOOK_S)
