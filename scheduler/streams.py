"""Dispatch: one stream a dataplane, which carries admissions, abandons, reports and renewals in batches.

A stream's life: hello, the resync's parts, then batches. Each message is checked by `wire`, decided as one batch, and
acknowledged with the next answer, or alone within ACKNOWLEDGE_S. Answers gather while one is being sent, so that all of
a moment go out as one message. A stream that reads too slowly, breaks the contract or is fenced by a newer one of its
dataplane is closed; when it ends, for whatever reason, the core is told once.
Must not decide anything about turns. Read next: `host`, `wire`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from common.ids import DataplaneId, TurnId
from protos import turn_pb2
from protos.scheduler_pb2 import DispatchRequest, DispatchResponse
from scheduler import admit_span, wire
from scheduler.effects import PlaceTurn, RefuseTurn, TellRunEnded
from scheduler.events import DataplaneResynced, Event, RunEnded, StreamLost, TurnAbandoned, TurnArrived, TurnsRenewed
from scheduler.host import Host
from scheduler.resync_parts import ResyncParts

ACKNOWLEDGE_S = 0.05
"""A message is acknowledged at most so long after it was performed, if nothing else goes out."""
ANSWERS_A_MESSAGE_MAX = 2_000
"""Keeps a message far below the 4 MiB that gRPC clients take by default: an answer is at most about 1 KiB."""
ANSWERS_WAITING_MAX = 100_000
"""A stream that has not read so many answers is closed."""

Context = grpc.aio.ServicerContext[Any, Any]
Verdict = tuple[grpc.StatusCode, str]
"""How a stream ends."""

log = logging.getLogger("scheduler.streams")


class Dispatch:
    """All open streams."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._streams: dict[DataplaneId, Stream] = {}
        self._unacknowledged: set[Stream] = set()

    async def serve(self, context: Context) -> None:
        """Serves one stream until it ends."""
        await Stream(self, context).run()

    def open(self, stream: Stream) -> Verdict | None:
        """Makes `stream` the one of its dataplane, closing an older one; or says why not."""
        older = self._streams.get(stream.dataplane)
        if older is not None:
            if older.epoch >= stream.epoch:
                problem = f"hello.epoch: expected more than {older.epoch}, the epoch of the dataplane's open stream"
                return grpc.StatusCode.FAILED_PRECONDITION, problem
            older.close(grpc.StatusCode.ABORTED, f"fenced by epoch {stream.epoch}")
        self._streams[stream.dataplane] = stream
        self.host.attach(stream.dataplane, stream)
        self.host.tally.streams_opened += 1
        self.host.tally.dataplanes = len(self._streams)
        log.info("event=dataplane_connected dataplane=%s epoch=%d", stream.dataplane, stream.epoch)
        return None

    def lose(self, stream: Stream) -> None:
        """`stream`, which was open, is no more. Its dataplane will admit its held turns again, in a new stream."""
        del self._streams[stream.dataplane]
        self.host.tally.dataplanes = len(self._streams)
        self._unacknowledged.discard(stream)
        self.host.detach(stream.dataplane)
        log.info("event=dataplane_lost dataplane=%s epoch=%d", stream.dataplane, stream.epoch)
        self.host.tell((StreamLost(self.host.now(), stream.dataplane),))

    def acknowledge_soon(self, stream: Stream) -> None:
        """Lets `stream` acknowledge what it performed, unless an answer does so before. One timer for all streams."""
        if not self._unacknowledged:
            asyncio.get_running_loop().call_later(ACKNOWLEDGE_S, self._acknowledge)
        self._unacknowledged.add(stream)

    def _acknowledge(self) -> None:
        for stream in self._unacknowledged:
            stream.acknowledge()
        self._unacknowledged.clear()


class Stream:
    """One Dispatch stream. An outlet of the host while it is open."""

    def __init__(self, dispatch: Dispatch, context: Context) -> None:
        self.dataplane = DataplaneId("")
        self.epoch = 0
        self._dispatch = dispatch
        self._host = dispatch.host
        self._context = context
        self._verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._is_open = False
        self._resync: ResyncParts | None = ResyncParts()
        """What came of the resync so far; None: it is applied."""
        self._received = 0
        """Sequence of the last message received, which is performed when anybody looks."""
        self._acknowledged = 0
        """Highest sequence that an answer acknowledged."""
        self._sent = 0
        self._answers: list[DispatchResponse] = []
        """Waiting to be sent, oldest first; all but the last are full."""
        self._wake = asyncio.Event()
        self._traceparents: dict[TurnId, str] = {}
        """Of held turns that have one."""

    async def run(self) -> None:
        """Reads and writes until the stream is closed by either side."""
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        try:
            await asyncio.wait((reader, writer, self._verdict), return_when=asyncio.FIRST_COMPLETED)
            code, details = self._outcome(reader, writer)
        finally:
            # Nothing is awaited here: gRPC logs a call that is still busy when the server stops.
            self._lose()
            for task in (reader, writer):
                task.add_done_callback(_look_at)
                task.cancel()
        if code is not grpc.StatusCode.OK:
            log.warning("event=stream_closed dataplane=%s code=%s details=%r", self.dataplane, code.name, details)
            await self._context.abort(code, details)

    def close(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the stream at once as far as the core is concerned; its client is told as soon as it can be."""
        if not self._verdict.done():
            self._verdict.set_result((code, details))
        self._lose()

    def place(self, effect: PlaceTurn, url: str) -> None:
        """See `host.Outlet`."""
        traceparent = self._traceparents.pop(effect.turn_id, "") if self._traceparents else ""
        wire.write_placement(self._answer().placements.add(), effect, url, traceparent)
        if traceparent and self._host.tracer is not None:
            admit_span.placed(self._host.tracer, effect, traceparent)

    def refuse(self, effect: RefuseTurn) -> None:
        """See `host.Outlet`."""
        traceparent = self._traceparents.pop(effect.turn_id, "")
        message, after_s = self._answer().refusals.add(), effect.retry_after_s
        wire.write_refusal(message, effect.turn_id, effect.reason, effect.message, traceparent, retry_after_s=after_s)
        if traceparent and self._host.tracer is not None:
            admit_span.refused(self._host.tracer, effect, traceparent)

    def end_run(self, event: RunEnded | TellRunEnded) -> None:
        """See `host.Outlet`."""
        self._answer().ended_runs.add(run_id=event.run_id, caller=event.caller, sequence=self._host.state.sequence)

    def acknowledge(self) -> None:
        """Sends an acknowledgement if one is due and nothing else waits to carry it."""
        if self._acknowledged < self._received and not self._answers:
            self._answers.append(DispatchResponse())
            self._wake.set()

    def _lose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._answers.clear()
            self._dispatch.lose(self)

    def _outcome(self, reader: asyncio.Task[Verdict], writer: asyncio.Task[None]) -> Verdict:
        """How the stream ends, once one of its parts has."""
        if self._verdict.done():
            return self._verdict.result()
        ended: asyncio.Task[Any] = reader if reader.done() else writer
        error = ended.exception()
        if error is None:
            return reader.result()
        if isinstance(error, DecodeError):
            return grpc.StatusCode.INVALID_ARGUMENT, "expected a DispatchRequest"
        raise error

    def _answer(self) -> DispatchResponse:
        """The message that the next answer goes into."""
        answers = self._answers
        if not answers:
            self._wake.set()
            answers.append(DispatchResponse())
        last = answers[-1]
        if len(last.placements) + len(last.refusals) + len(last.ended_runs) < ANSWERS_A_MESSAGE_MAX:
            return last
        if len(answers) * ANSWERS_A_MESSAGE_MAX >= ANSWERS_WAITING_MAX and not self._verdict.done():
            self._verdict.set_result((grpc.StatusCode.RESOURCE_EXHAUSTED, "the stream's answers are not read"))
        last = DispatchResponse()
        answers.append(last)
        return last

    async def _write(self) -> None:
        context, answers = self._context, self._answers
        while True:
            await self._wake.wait()
            while answers:
                answer = answers.pop(0)
                self._sent += 1
                answer.sequence = self._sent
                answer.acknowledged = self._acknowledged = self._received
                await context.write(answer)
            self._wake.clear()

    async def _read(self) -> Verdict:
        context = self._context
        while True:
            request = await context.read()
            if not isinstance(request, DispatchRequest):
                return grpc.StatusCode.OK, ""
            verdict = self._take(request)
            if verdict is not None:
                return verdict

    def _take(self, request: DispatchRequest) -> Verdict | None:
        """Performs one message, or says how it ends the stream."""
        if request.sequence != self._received + 1:
            return _invalid(f"sequence: expected {self._received + 1}")
        if self._received == 0:
            verdict = self._take_hello(request)
            if verdict is not None:
                return verdict
        elif request.HasField("hello"):
            return _invalid("hello: expected in the first message only")
        events: list[Event] = []
        at = self._host.now()
        if request.HasField("resync") or self._resync is not None:
            verdict = self._take_resync(request, at, events)
            if verdict is not None:
                return verdict
        self._collect(request, at, events)
        self._received += 1
        if self._is_open:
            self._host.tell(events)
            self._dispatch.acknowledge_soon(self)
        return None

    def _take_hello(self, request: DispatchRequest) -> Verdict | None:
        if not request.HasField("hello"):
            return _invalid("hello: expected in the first message")
        dataplane = wire.read_dataplane_id(request.hello.dataplane_id)
        if isinstance(dataplane, wire.Fault):
            return _invalid(f"hello.{dataplane.message}")
        self.dataplane, self.epoch = dataplane, request.hello.epoch
        verdict = self._dispatch.open(self)
        self._is_open = verdict is None
        return verdict

    def _take_resync(self, request: DispatchRequest, at: float, events: list[Event]) -> Verdict | None:
        if self._resync is None:
            return _invalid("resync: expected no part after the complete one")
        faults = self._resync.add(request.resync)
        self._report_faults(faults)
        if self._resync.is_too_large:
            return grpc.StatusCode.RESOURCE_EXHAUSTED, self._resync.limit
        if request.resync.complete:
            runs, turns = self._resync.whole()
            events.append(DataplaneResynced(at, self.dataplane, runs, turns, self._resync.limits()))
            self._resync = None
        elif request.admits or request.abandons or request.reports or request.renewals:
            return _invalid("resync: expected a complete one before admits, abandons, reports and renewals")
        return None

    def _collect(self, request: DispatchRequest, at: float, events: list[Event]) -> None:
        """Appends the events of a batch. A run's reports come before its next turn, so they go first."""
        for report in request.reports:
            event = wire.read_report(report, at)
            if isinstance(event, wire.Fault):
                self._report_faults((event,))
            else:
                events.append(event)
        dataplane = self.dataplane
        for turn in request.admits:
            asked = wire.read_turn(turn)
            traceparent = wire.read_traceparent(turn)
            if isinstance(asked, wire.Fault):
                self._refuse_invalid(turn, asked, traceparent)
                continue
            if traceparent:
                self._traceparents[asked.turn_id] = traceparent
            events.append(TurnArrived(at, dataplane, asked, wire.read_age_s(turn.held_ms)))
        for text in request.abandons:
            turn_id = wire.read_turn_id(text)
            if turn_id is not None:
                self._traceparents.pop(turn_id, None)
                events.append(TurnAbandoned(at, dataplane, turn_id))
        if request.renewals:
            known = tuple(turn_id for text in request.renewals if (turn_id := wire.read_turn_id(text)) is not None)
            events.append(TurnsRenewed(at, known))

    def _refuse_invalid(self, turn: turn_pb2.Turn, fault: wire.Fault, traceparent: str) -> None:
        self._host.tally.invalid += 1
        refusal = self._answer().refusals.add()
        wire.write_refusal(refusal, turn.turn_id[: wire.ID_CHARACTERS_MAX], None, fault.message, traceparent)

    def _report_faults(self, faults: Sequence[wire.Fault]) -> None:
        """Counts and logs what cannot be answered. No reason to close the stream: it would come again."""
        if faults:
            self._host.tally.invalid += len(faults)
            log.warning("event=ignored dataplane=%s faults=%d first=%r", self.dataplane, len(faults), faults[0].message)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Takes note of how `task` ended, which matters no longer, so that asyncio does not complain."""
    if not task.cancelled():
        task.exception()


def _invalid(problem: str) -> Verdict:
    return grpc.StatusCode.INVALID_ARGUMENT, problem
