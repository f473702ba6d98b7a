"""The OpenAI surface of one engine: chat completions, models, `/classify`, with scripted faults. Read `server` next.

What is decided here is only when to write; what to say is `reply`'s, when it is due `driver`'s, what goes wrong
`faults`'. A client that leaves cancels its request's coroutine, which leaves its ticket's `with` block, which frees
its blocks.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, get_args

from aiohttp import hdrs, web

from fakes.engine import wire
from fakes.engine.batch import Request
from fakes.engine.chat import Chat, parse_chat
from fakes.engine.config import EngineConfig
from fakes.engine.driver import Driver, Ticket
from fakes.engine.errors import ApiError, bad_field
from fakes.engine.faults import Fault, Script
from fakes.engine.labels import classify, parse_classify
from fakes.engine.ledger import Ledger, Outcome
from fakes.engine.reply import FinishReason, compose
from fakes.engine.tokens import TOKEN_BYTES, block_hashes, padded, render_prompt

_STREAM_HEADERS = {hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8", hdrs.CACHE_CONTROL: "no-cache"}

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FaultedError(Exception):
    """The script ends this request; `response` is what the client gets, if its connection still stands."""

    def __init__(self, response: web.Response) -> None:
        super().__init__()
        self.response = response


class Surface:
    """Answers of one engine to its clients."""

    def __init__(self, config: EngineConfig, driver: Driver, script: Script, ledger: Ledger) -> None:
        self.ended: Counter[str] = Counter(dict.fromkeys(get_args(FinishReason), 0))
        """Whole replies by finish reason."""
        self._config = config
        self._rules = config.rules
        self._driver = driver
        self._script = script
        self._ledger = ledger
        self._profile = driver.engine.profile
        self._started = int(time.time())

    def answers(self) -> list[tuple[str, str, Answer]]:
        """What answers which method and path."""
        return [
            ("POST", "/v1/chat/completions", self._counted(self._chat)),
            ("POST", "/classify", self._counted(self._classify)),
            ("GET", "/v1/models", self._models),
        ]

    def _counted(self, answer: Answer) -> Answer:
        """`answer`, entered in the ledger, with refusals and faults as responses."""

        async def answer_counted(request: web.Request) -> web.StreamResponse:
            self._ledger.opened(request.headers.get("x-request-id"))
            outcome: Outcome = "aborted"
            try:
                response = await answer(request)
                outcome = "served"
                return response
            except ApiError as error:
                outcome = "refused"
                return json_response(error.body, error.status)
            except FaultedError as fault:
                outcome = "faulted"
                return fault.response
            except ConnectionError:
                return web.Response()  # goes nowhere: the client left between two writes
            finally:
                self._ledger.closed(outcome)

        return answer_counted

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        raw = await read_body(request)
        fault = self._script.take(raw)
        await self._fail_at_once(request, fault)
        chat = parse_chat(raw)
        self._check_model(chat.model)
        prompt = render_prompt(chat.messages, chat.tools)
        prompt_tokens = len(prompt) // TOKEN_BYTES
        reply = compose(chat, prompt, self._rules, self._room(chat, prompt_tokens))
        hashes = block_hashes(prompt + padded(reply.rendered), self._profile.block_tokens)
        work = Request(prompt_tokens, len(reply.tokens), hashes)
        writer = wire.Wire(chat, reply, uuid.uuid4().hex, int(time.time()))
        with self._driver.submit(work, fault.factor if fault else 1.0) as ticket:
            progress = self._progress(request, ticket, fault)
            if chat.stream:
                response = await self._stream(request, writer, progress, work)
            else:
                async for _tokens in progress:
                    pass
                response = json_response(writer.whole(_usage(work)))
        self.ended[reply.finish_reason] += 1
        return response

    async def _stream(
        self, request: web.Request, writer: wire.Wire, progress: AsyncIterator[int], work: Request
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(request)
        pending = [writer.role_chunk()]
        written = 0
        async for tokens in progress:
            pending += [writer.token_chunk(position) for position in range(written, tokens)]
            written = tokens
            if written == work.reply_tokens:
                pending.append(writer.end_chunks(_usage(work)))
            data = b"".join(pending)
            pending.clear()
            if data:
                await response.write(data)
        return response

    async def _progress(self, request: web.Request, ticket: Ticket, fault: Fault | None) -> AsyncIterator[int]:
        """How many tokens of the reply may be out, each time there are more; a fault strikes on the way."""
        trip = fault.after_tokens if fault else None
        tokens = 0
        while tokens < ticket.request.reply_tokens:
            tokens = await ticket.more()
            if fault is not None and trip is not None and tokens >= trip:
                if trip:
                    yield trip
                trip = None
                await self._strike(request, fault)
            yield tokens

    async def _classify(self, request: web.Request) -> web.StreamResponse:
        raw = await read_body(request)
        fault = self._script.take(raw)
        await self._fail_at_once(request, fault)
        asked = parse_classify(raw)
        self._check_model(asked.model)
        tokens = sum(max(1, len(padded(text.encode("utf-8", "replace"))) // TOKEN_BYTES) for text in asked.inputs)
        if tokens >= self._profile.max_model_len:
            raise bad_field("input", f"at most {self._profile.max_model_len - 1} tokens, these are {tokens}")
        with self._driver.submit(Request(tokens, 1), fault.factor if fault else 1.0) as ticket:
            async for _tokens in self._progress(request, ticket, fault):
                pass
        rows = classify(asked.inputs, self._config.labels, self._config.seed)
        return json_response(wire.classification(uuid.uuid4().hex, int(time.time()), asked.model, rows, tokens))

    async def _models(self, _request: web.Request) -> web.Response:
        model = {
            "id": self._config.model,
            "object": "model",
            "created": self._started,
            "owned_by": "luftpause",
            "max_model_len": self._profile.max_model_len,
        }
        return json_response({"object": "list", "data": [model]})

    def _check_model(self, model: str) -> None:
        if model != self._config.model:
            raise ApiError(404, f"The model '{model}' does not exist.", "model", "NotFoundError")

    def _room(self, chat: Chat, prompt_tokens: int) -> int:
        """Tokens left for the reply. Raises ApiError 400 where the request does not fit."""
        length = self._profile.max_model_len
        room = length - prompt_tokens
        if room < 1:
            raise bad_field("messages", f"less than {length} tokens with the tools, these are {prompt_tokens}")
        if chat.max_tokens is not None and chat.max_tokens > room:
            raise bad_field("max_tokens", f"at most {room}: {length} tokens less the prompt's {prompt_tokens}")
        return room

    async def _fail_at_once(self, request: web.Request, fault: Fault | None) -> None:
        """Faults that strike before the body is even parsed."""
        if fault is None or fault.after_tokens is not None or fault.fault == "slow":
            return
        if fault.fault == "status":
            body = {"error": {"message": "scripted fault", "code": fault.code}} if fault.body is None else fault.body
            headers: dict[str, str] = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            raise FaultedError(json_response(body, fault.code, headers))
        await self._strike(request, fault)

    async def _strike(self, request: web.Request, fault: Fault) -> None:
        if fault.fault == "stall":
            await asyncio.sleep(fault.seconds)
            return
        transport = request.transport
        if transport is not None and fault.reset:
            # Closing with unsent data dropped and no time to linger is what makes TCP send a reset.
            plug = transport.get_extra_info("socket")
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        elif transport is not None:
            transport.close()
        raise FaultedError(web.Response())


async def read_body(request: web.Request) -> bytes:
    """The whole body. Raises ApiError 413 where it is longer than the application allows."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise ApiError(413, f"the body is too long: {error.text}") from None


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """`body` as a response."""
    raw = wire.encode(body).encode()
    return web.Response(body=raw, status=status, headers=headers, content_type="application/json")


def _usage(work: Request) -> dict[str, object]:
    return wire.usage(work.prompt_tokens, work.reply_tokens, work.cached_tokens)
