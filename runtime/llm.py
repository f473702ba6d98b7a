"""Model turns through the dataplane: sends, waits, tries again. What is sent and read is `chat`'s and `chat_stream`'s.

A 429 is waited out until the run is cancelled; a 5xx, a reply that breaks off or a dataplane that is not there gets
three more tries; every other answer fails the turn at once. Must not know the journal.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import aiohttp

from common.tls import PLAIN, Tls
from runtime import chat
from runtime.chat_stream import RefusedInStreamError, ReplyStream
from runtime.refusals import NoAnswerError
from runtime.run import RunState, conversation
from runtime.tool_specs import ToolSpec

TURN_LIMIT_S = 600.0
"""A turn that takes longer fails its run; being held counts."""
HELD_S_MAX = TURN_LIMIT_S / 2
"""Nor is a turn held for longer, so that its reply has time: one that would be, or was, is answered with the time to
come again, which is slept without holding a connection or a place."""
RETRY_PAUSES_S = (0.5, 1.0, 2.0)
"""Pauses before the tries that follow a failure; each is stretched by chance to at most twice its length."""
CONNECT_LIMIT_S = 5.0
ASK_LIMIT_S = 5.0
"""For all that is no turn."""
REPLY_BYTES_MAX = 16 * 1024 * 1024

log = logging.getLogger("runtime.llm")

T = TypeVar("T")
Read = Callable[[aiohttp.ClientResponse], Awaitable[T]]
"""Reads an answer with status 200. Raises BrokenReplyError, RefusedInStreamError or TurnFailedError."""


class TurnFailedError(Exception):
    """There will be no reply; the text says why."""

    def __init__(self, text: str, status: int = 0, said: str = "") -> None:
        super().__init__(text)
        self.status = status
        """Of the answer that said so; 0: there was none."""
        self.said = said
        """In its words."""


class _TriedError(Exception):
    """Another try may help; the text says why this one did not."""


class _LaterError(Exception):
    """To be tried again after a pause, which is no failure."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"in {wait_s:g} s")
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class TimedReply:
    """A reply and how long the turn took, tries and waits included."""

    reply: chat.Reply
    duration_s: float

    def after(self, first: TimedReply) -> TimedReply:
        """This reply, with what it took to get it: `first` too, which was of no use."""
        reply = replace(
            self.reply,
            prompt_tokens=first.reply.prompt_tokens + self.reply.prompt_tokens,
            completion_tokens=first.reply.completion_tokens + self.reply.completion_tokens,
            cached_tokens=first.reply.cached_tokens + self.reply.cached_tokens,
        )
        return TimedReply(reply, first.duration_s + self.duration_s)


class Model:
    """The dataplane as the runtime sees it. `async with` opens and closes its connections."""

    def __init__(self, dataplane_url: str, token: str | None, tls: Tls = PLAIN) -> None:
        self._tls = tls
        self._url = dataplane_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # As many connections as there are turns: a held turn is a connection that waits.
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls.client_context())
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=limits, headers={"Accept-Encoding": "identity"}, auto_decompress=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def turn(
        self, run: RunState, tools: Sequence[ToolSpec], traceparent: str | None, *, may_call: bool = True
    ) -> TimedReply:
        """The reply to the run's conversation. Raises TurnFailedError."""
        messages = conversation(run)
        headers = self._run_headers(run) | {"Content-Type": "application/json"}
        headers["x-luftpause-class"] = run.order.run_class
        headers["x-luftpause-wait-s-max"] = f"{HELD_S_MAX:g}"
        if traceparent:
            headers["traceparent"] = traceparent
        began = time.monotonic()
        body = chat.request(run.order, messages, tools, may_call=may_call)
        try:
            reply = await self._answer("chat/completions", body, headers, _read_reply)
        except TurnFailedError as error:
            if not chat.refuses_stream(error.status, error.said):
                raise
            body = chat.request(run.order, messages, tools, may_call=may_call, stream=False)
            reply = await self._answer("chat/completions", body, headers, _read_reply)
        return TimedReply(reply, time.monotonic() - began)

    async def ask(self, path: str, body: bytes, headers: dict[str, str], read: Callable[[bytes], T]) -> T:
        """What `read` makes of the answer to a turn of no run, tried and limited as those of runs are.

        `path` is below the API's base; `read` raises BrokenReplyError. Raises TurnFailedError.
        """
        headers = self._headers | {"Content-Type": "application/json"} | headers

        async def read_whole(answer: aiohttp.ClientResponse) -> T:
            return read(await _read(answer))

        try:
            async with asyncio.timeout(TURN_LIMIT_S):
                return await self._answer(path, body, headers, read_whole)
        except TimeoutError:
            raise _took_too_long() from None

    async def end_run(self, run: RunState) -> None:
        """Tells the dataplane that the run will not be continued. That it failed is only logged: runs are forgotten."""
        url = f"{self._url}/v1/runs/{urllib.parse.quote(run.run_id)}"
        try:
            async with asyncio.timeout(ASK_LIMIT_S), self._open.delete(url, headers=self._run_headers(run)) as answer:
                answer.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as error:
            log.debug("event=run_end_not_told run=%s error=%s", run.run_id, str(error) or type(error).__name__)

    async def first_served(self) -> str:
        """The first model that the dataplane lists. Raises NoAnswerError where it lists none, or does not answer."""
        advice = "try again, or name a model"
        try:
            async with asyncio.timeout(ASK_LIMIT_S):
                async with self._open.get(f"{self._url}/v1/models", headers=self._headers) as answer:
                    status, body = answer.status, await _read(answer)
        except (aiohttp.ClientError, TimeoutError, TurnFailedError) as error:
            log.info("event=models_not_told error=%s", str(error) or type(error).__name__)
            raise NoAnswerError(f"the dataplane at {self._url} does not answer; {advice}") from None
        if status != 200:
            raise NoAnswerError(f"the dataplane at {self._url} tells of no models: {chat.read_error(body)}; {advice}")
        found = chat.read_first_model(body)
        if found is None:
            raise NoAnswerError(f"the dataplane at {self._url} serves no model yet; {advice}")
        return found

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "opened by 'async with'"
        return self._session

    def _run_headers(self, run: RunState) -> dict[str, str]:
        return self._headers | {"x-luftpause-run-id": run.run_id, "x-luftpause-caller": run.caller}

    async def _answer(self, path: str, body: bytes, headers: dict[str, str], read: Read[T]) -> T:
        pauses = list(RETRY_PAUSES_S)
        while True:
            try:
                return await self._try(path, body, headers, read)
            except _LaterError as later:
                pause_s = later.wait_s
            except _TriedError as tried:
                if not pauses:
                    raise TurnFailedError(f"{tried} ({len(RETRY_PAUSES_S) + 1} tries)") from None
                pause_s = pauses.pop(0) * random.uniform(1, 2)
            await asyncio.sleep(pause_s)

    async def _try(self, path: str, body: bytes, headers: dict[str, str], read: Read[T]) -> T:
        """An answer. Raises _LaterError, _TriedError, or TurnFailedError where no other try helps."""
        url = f"{self._url}/v1/{path}"
        request = self._open.post(url, data=body, headers=headers, allow_redirects=False)
        try:
            async with asyncio.timeout(TURN_LIMIT_S), request as answer:
                if answer.status == 200:
                    coding = answer.headers.get("Content-Encoding", "identity")
                    if coding != "identity":
                        raise TurnFailedError(f"the model's reply is in the coding '{coding}', which nobody asked for")
                    return await read(answer)
                said = chat.read_error(await _read(answer))
                raise _failure(answer.status, said, answer.headers.get("Retry-After"))
        except RefusedInStreamError as refused:
            raise _failure(refused.status, refused.said, refused.retry_after) from None
        except (aiohttp.ClientError, chat.BrokenReplyError) as error:
            raise _TriedError(f"the model's turn failed: {str(error) or type(error).__name__}") from None
        except TimeoutError:
            raise _took_too_long() from None


def _failure(status: int, said: str, retry_after: str | None) -> Exception:
    """What an answer with an error status means for its turn."""
    if status == 429:
        return _LaterError(chat.retry_after_s(retry_after, time.time()))
    problem = f"the model's turn failed with status {status}: {said}"
    return TurnFailedError(problem, status, said) if status < 500 else _TriedError(problem)


def _took_too_long() -> TurnFailedError:
    return TurnFailedError(f"the model's turn took longer than {TURN_LIMIT_S:g} s")


def _too_large() -> TurnFailedError:
    return TurnFailedError(f"the model's reply is larger than {REPLY_BYTES_MAX} bytes")


async def _read_reply(answer: aiohttp.ClientResponse) -> chat.Reply:
    """The reply, streamed or, as some engines answer whatever they are asked, whole. Raises as `Read` does."""
    if answer.content_type != "text/event-stream":
        return chat.read_reply(await _read(answer))
    stream = ReplyStream()
    async for part in answer.content.iter_any():
        stream.feed(part)
        if stream.size > REPLY_BYTES_MAX:
            raise _too_large()
    return stream.reply()


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    received = bytearray()
    async for part in answer.content.iter_any():
        received += part
        if len(received) > REPLY_BYTES_MAX:
            raise _too_large()
    return bytes(received)
