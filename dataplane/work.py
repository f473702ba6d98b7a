"""What answers a request on a client's connection: a turn (`proxy`), or the coroutine of a rare route, run here."""

from __future__ import annotations

import asyncio
import http
import logging
import math
from collections.abc import Callable
from typing import Protocol

from dataplane import errors
from dataplane.identity import RUN_ID
from dataplane.request import Answer, Rare

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5
"""When a client that has too much waiting is told to come again."""

_REASONS = {int(status): status.phrase.encode() for status in http.HTTPStatus}


class Work(Protocol):
    """What answers a request: a turn, or the coroutine of a rare route."""

    def client_left(self) -> None:
        """The connection is gone; nothing may be written any more."""

    def pause(self) -> None:
        """The client does not read."""

    def resume(self) -> None:
        """The client reads again."""

    def check(self) -> None:
        """Called each minute."""


class TurnClient(Protocol):
    """The client's connection, as its turn sees it."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Sends bytes as they are."""

    @property
    def takes_chunks(self) -> bool:
        """Whether the client understands chunks; else the end of the connection ends the body."""

    def connection_line(self) -> bytes:
        """The last lines of an answer's head."""

    def answer_error(self, error: errors.ApiError, run_id: str) -> None:
        """Sends a whole answer; the turn is over."""

    def work_over(self) -> None:
        """The answer is whole; the turn is over."""

    def close(self) -> None:
        """Breaks off the answer; the turn is over."""


class RareClient(Protocol):
    """The client's connection, as its rare work sees it."""

    def answer(self, answer: Answer) -> None:
        """Sends a whole answer; the work is over."""


class RareWork:
    """The coroutine of a rare route, at work."""

    __slots__ = ("_client", "_task")

    def __init__(self, client: RareClient, route: Rare) -> None:
        self._client = client
        self._task: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._run(route))

    async def _run(self, route: Rare) -> None:
        try:
            answer = await route()
        except asyncio.CancelledError:
            self._task = None  # it has the error, whose traceback has this frame
            raise
        except Exception:  # a client that is not answered would wait for ever
            log.exception("request failed")
            answer = as_answer(errors.own_fault(), "")
        self._client.answer(answer)

    def client_left(self) -> None:
        """Nobody waits for the answer."""
        if self._task is not None:
            self._task.cancel()

    def pause(self) -> None:
        """Nothing: the answer is small."""

    def resume(self) -> None:
        """Nothing, as above."""

    def check(self) -> None:
        """Nothing: every rare route has a time limit of its own."""


def as_answer(error: errors.ApiError, run_id: str) -> Answer:
    """The error as an answer, with the run's id where it is known."""
    lines = b"%b: %b\r\n" % (RUN_ID, run_id.encode()) if run_id else b""
    if error.status == 401:
        lines += b"www-authenticate: Bearer\r\n"
    if error.retry_after_s is not None:
        after_ms = math.ceil(error.retry_after_s * 1000)
        lines += b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (math.ceil(after_ms / 1000), after_ms)
    elif error.status == 429:
        lines += b"retry-after: %d\r\n" % RETRY_AFTER_S
    return Answer(error.status, error.body(), lines=lines)


def as_bytes(answer: Answer, connection_line: bytes, head_only: bool) -> bytes:
    """The answer as it is sent; `connection_line`: the last lines of its head."""
    return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b%b" % (
        answer.status,
        _REASONS.get(answer.status, b""),
        answer.content_type,
        len(answer.body),
        answer.lines,
        connection_line,
        b"" if head_only else answer.body,
    )
