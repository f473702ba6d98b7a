"""A streamed turn whose client hears a comment now and then until its reply begins, so that no proxy on the way takes a
connection on which nothing moves for a dead one.

With the first comment the head is out, and it says 200: whatever fails from then on cannot be a status any more, and is
the stream's last event, `error`, with the body that the answer would have had and its status in it. Must not begin
before its time: a turn that is answered sooner, and every one that is not streamed, is as `proxy` has it.
"""

from __future__ import annotations

import asyncio

from dataplane import errors
from dataplane.exchange import Reply
from dataplane.identity import RUN_ID, Identity
from dataplane.proxy import LAST_CHUNK, Proxy, Turn
from dataplane.request import Request
from dataplane.work import TurnClient

COMMENT = b": held\n\n"
REFUSAL_BYTES_MAX = 64 * 1024
"""A longer answer of a failure is cut off; they are a few hundred bytes."""
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\n"  # a comment that nginx keeps in its buffer keeps nothing alive
)


class KeptAliveTurn(Turn):
    """See the module."""

    __slots__ = ("_every_s", "_is_open", "_refusal", "_timer")

    def __init__(self, proxy: Proxy, client: TurnClient, every_s: float) -> None:
        """`every_s`: seconds between comments; 0: there are none."""
        super().__init__(proxy, client)
        self._every_s = every_s
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        """Whether the head is out."""
        self._refusal: bytearray | None = None
        """The body of an answer that is to become an event, as far as it is there."""

    def begin(self, request: Request, identity: Identity) -> errors.ApiError | None:
        """As `Turn.begin`."""
        error = super().begin(request, identity)
        if error is None and self._every_s and self._request.stream is True:
            self._wait()
        return error

    def answered(self, reply: Reply) -> None:
        """As `Turn.answered`; where the head is out, only a stream may still follow it."""
        self._stop()
        if not self._is_open:
            super().answered(reply)
        elif reply.status < 300 and reply.content_type.startswith(b"text/event-stream") and not reply.encoded:
            reply.length = None  # the head that is out has none
            super().answered(reply)
            self._head = b""
        else:
            self._proxy.read_limits(self._ticket, reply)
            self._reply = reply
            self._refusal = bytearray()

    def received(self, data: bytes, complete: bool) -> None:
        """As `Turn.received`, or collects what is to become an event."""
        if self._refusal is None:
            super().received(data, complete)
            return
        self._refusal = (self._refusal + data)[:REFUSAL_BYTES_MAX]
        if complete:
            reply = self._reply
            assert reply is not None
            self._engine = None
            if not self._ended:
                self._fail(f"engine answered {reply.status}", reply.status)
            body = b"" if reply.encoded else bytes(self._refusal)
            self._end_with(errors.event(reply.status, body, _retry_after(reply)))

    def _answer_error(self, error: errors.ApiError, run_id: str) -> None:
        if self._is_open:
            self._proxy.metrics.answers[error.status] += 1
            self._end_with(errors.event(error.status, error.body(), error.retry_after()))
        else:
            super()._answer_error(error, run_id)

    def _give_up(self, error: errors.ApiError) -> None:
        if self._refusal is not None:
            self._reply = None  # nothing of it was told yet
        super()._give_up(error)

    def _over(self, outcome: str, problem: str = "") -> None:
        self._stop()
        super()._over(outcome, problem)

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._comment)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _comment(self) -> None:
        comment = self._framed(COMMENT)
        if not self._is_open:
            self._is_open = True
            # Which run it is may be known at its placement alone, where its client did not name it.
            run_id = self._ticket.run_id or self._ticket.message.run_id
            lines = b"%b: %b\r\n" % (RUN_ID, run_id.encode()) if run_id else b""
            coding = b"transfer-encoding: chunked\r\n" if self._client.takes_chunks else b""
            comment = _HEAD + lines + coding + self._client.connection_line() + comment
        self._write(comment)
        self._wait()

    def _end_with(self, event: bytes) -> None:
        self._write(self._framed(event) + (LAST_CHUNK if self._client.takes_chunks else b""))
        self._client.work_over()

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._client.takes_chunks else data


def _retry_after(reply: Reply) -> str:
    headers = (line.partition(b":") for line in reply.lines)
    return next((value.strip().decode("latin-1") for name, _, value in headers if name.lower() == b"retry-after"), "")
