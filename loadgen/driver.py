"""Performs a load: every agent works on one run after another, until the time is over or somebody stops it.

Theory of operation. `Load` owns one HTTP session and one task an agent. An agent plans a run, sends its turns one after
another, waits while the tool works, says that the run has ended, and begins the next one. A turn answered with 429 or
503 is sent again after its Retry-After; any other fault fails the turn and its run, and the agent begins a new one a
second later. At the end all tasks are cancelled; turns in flight then are neither counted nor errors. What was counted
is in `tallies`, one a group, at any time. It must not print; read `record` and `report` next.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec
import yarl

from loadgen.record import Tally, TurnRecord
from loadgen.reply import Reply, ReplyError
from loadgen.workload import Conversation, Group, plan_run

CONNECT_TIMEOUT_S = 5.0
ASIDE_TIMEOUT_S = 2.0
"""For requests that are not turns: a run's end, the list of models."""
KEEPALIVE_S = 4.0
"""Below the 5 s after which common servers close an idle connection, which would look like a failed turn."""
PAUSE_AFTER_FAULT_S = 1.0
START_S_MAX = 1.0
"""All agents have begun within this time."""
RETRY_S_DEFAULT = 1.0
RETRY_S_MAX = 60.0
MESSAGE_CHARS_MAX = 200
"""Of what a server says with a refusal."""


class LoadError(Exception):
    """The load cannot start; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the load goes, and how."""

    base_url: str
    """OpenAI base URL, without a trailing slash: `http://127.0.0.1:8080/v1`."""
    model: str
    token: str | None = None
    send_headers: bool = True
    """Whether run id, class and caller are told; without them a run is known by its tool call ids alone."""
    send_run_id: bool = True
    """Whether the run id is among those headers."""
    session_header: str = ""
    """A further header that tells the run id, for routers that listen to another one; empty: none."""
    end_runs: bool = True
    """Whether a run's end is told (`DELETE /v1/runs/{id}`)."""
    turn_timeout_s: float = 600.0
    """Most time for one attempt of a turn, holding included."""


class Load:
    """A load that runs within `async with`, for as long as its user waits there."""

    def __init__(self, target: Target, groups: Sequence[Group], seed: int) -> None:
        self.target = target
        self.groups = tuple(groups)
        self.seed = seed
        self.tallies = [Tally() for _ in groups]
        self._prefix = uuid.uuid4().hex[:12]
        self._turns_url = yarl.URL(f"{target.base_url}/chat/completions")
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Load:
        self._session = open_session(self.target.token)
        for number, group in enumerate(self.groups):
            self._tasks += [asyncio.create_task(self._agent(number, group, agent)) for agent in range(group.agents)]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    def raise_if_broken(self) -> None:
        """Raises the exception of an agent that ended: none should, since faults of turns are counted."""
        for task in self._tasks:
            if task.done():
                task.result()

    def forget_warmup(self) -> None:
        """Starts counting anew; runs under way are counted whole when they end."""
        self.tallies = [Tally() for _ in self.groups]

    async def _agent(self, number: int, group: Group, agent: int) -> None:
        # Agents that all start at the same moment stay in step for minutes.
        rng = random.Random(f"{self.seed}:{number}:{agent}")
        await asyncio.sleep(rng.uniform(0, min(START_S_MAX, group.workload.tool_s_max)))
        done = 0
        while True:
            run_id = f"load-{self._prefix}-{number}-{agent}-{done}"
            plan = plan_run(group.workload, self.seed, number, agent, done)
            done += 1
            headers = self._headers(group, run_id)
            try:
                fault = await self._run(number, Conversation(group.workload, plan, self.target.model), headers)
            finally:
                await self._end_run(run_id, headers)
            if fault is not None:
                self.tallies[number].add_error(fault.kind, fault.message)
                await asyncio.sleep(PAUSE_AFTER_FAULT_S)

    def _headers(self, group: Group, run_id: str) -> dict[str, str]:
        headers = {"content-type": "application/json"}
        if self.target.send_headers:
            headers["x-luftpause-class"] = group.run_class
            if self.target.send_run_id:
                headers["x-luftpause-run-id"] = run_id
                if self.target.session_header:
                    headers[self.target.session_header] = run_id
            if group.caller:
                headers["x-luftpause-caller"] = group.caller
        return headers

    async def _run(self, number: int, conversation: Conversation, headers: dict[str, str]) -> _TurnFailedError | None:
        """One run; the fault that ended it early, or None."""
        begun_s = time.perf_counter()
        while not conversation.is_over:
            try:
                turn, reply = await self._turn(number, conversation.body(), headers)
            except _TurnFailedError as fault:
                return fault
            self.tallies[number].add_turn(turn)
            tool_s = conversation.take_reply(reply.text, reply.tool_calls)
            if tool_s is not None:
                await asyncio.sleep(tool_s)
        self.tallies[number].add_run(time.perf_counter() - begun_s)
        return None

    async def _turn(self, number: int, body: bytes, headers: dict[str, str]) -> tuple[TurnRecord, Reply]:
        """One turn, retried while the answer is 429 or 503. Raises _TurnFailedError."""
        begun_s = time.perf_counter()
        while True:
            reply = Reply()
            try:
                # aiohttp's own total timeout would cost a tenth of the work for a chunk.
                async with (
                    asyncio.timeout(self.target.turn_timeout_s),
                    self._session.post(self._turns_url, data=body, headers=headers) as response,
                ):
                    if response.status in (429, 503):
                        self.tallies[number].retries[str(response.status)] += 1
                        wait_s = retry_after_s(response.headers.get("retry-after"))
                    elif response.status != 200:
                        raise _TurnFailedError(f"status {response.status}", message_of(await response.read()))
                    else:
                        while data := await response.content.readany():
                            reply.feed(data, time.perf_counter())
                        reply.finish()
                        return _record(reply, begun_s, time.perf_counter()), reply
            except (ReplyError, aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _TurnFailedError(fault_kind(error)) from None
            await asyncio.sleep(wait_s)

    async def _end_run(self, run_id: str, headers: dict[str, str]) -> None:
        if not (self.target.end_runs and self.target.send_headers and self.target.send_run_id):
            return
        # A courtesy: the scheduler forgets the run anyway, so a fault here is none of the load.
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            url = f"{self.target.base_url}/runs/{run_id}"
            async with asyncio.timeout(ASIDE_TIMEOUT_S), self._session.delete(url, headers=headers):
                pass


class _TurnFailedError(Exception):
    """A turn failed for good."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.message = message
        """What the server said, for people."""


def fault_kind(error: Exception) -> str:
    """In a word or two, what went wrong with a request, so that the like can be counted."""
    match error:
        case ReplyError():
            return str(error)
        case aiohttp.ClientConnectorError():
            return "no connection"
        case TimeoutError():
            return "timeout"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError() | ConnectionError():
            return "broken off"
        case _:
            return type(error).__name__


def _record(reply: Reply, begun_s: float, ended_s: float) -> TurnRecord:
    ttft_s = itl_s = None
    if reply.first_s is not None and reply.last_s is not None:
        ttft_s = reply.first_s - begun_s
        if reply.completion_tokens > 1:
            itl_s = (reply.last_s - reply.first_s) / (reply.completion_tokens - 1)
    return TurnRecord(
        turn_s=ended_s - begun_s,
        ttft_s=ttft_s,
        itl_s=itl_s,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cached_tokens=reply.cached_tokens,
    )


def retry_after_s(value: str | None) -> float:
    """Seconds to wait by a Retry-After header (seconds or an HTTP date), 0 to 60; 1 where absent or unreadable."""
    if value is None:
        return RETRY_S_DEFAULT
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return RETRY_S_DEFAULT
    return RETRY_S_DEFAULT if math.isnan(seconds) else min(max(seconds, 0.0), RETRY_S_MAX)


def open_session(token: str | None) -> aiohttp.ClientSession:
    """HTTP without a limit on connections or time, that shows the token."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        headers={"authorization": f"Bearer {token}"} if token else None,
        skip_auto_headers=("accept-encoding", "accept", "user-agent"),
    )


def _plain(error: Exception) -> str:
    """Why there was no answer. aiohttp's own text says "ssl:default" of http URLs too."""
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno or 0
        return os.strerror(number) if number > 0 else error.os_error.strerror or str(error.os_error)
    if isinstance(error, TimeoutError):
        return f"no answer within {ASIDE_TIMEOUT_S:.0f} s"
    return str(error) or type(error).__name__


def message_of(body: bytes) -> str:
    """What the body of a refusal says, in one line: its `error.message`, else its beginning."""
    try:
        text = msgspec.json.decode(body, type=_Refusal).error.message
    except msgspec.MsgspecError:
        text = body.decode(errors="replace")
    return " ".join(text.split())[:MESSAGE_CHARS_MAX]


class _Said(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Said


class _Named(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Named]


async def first_model(base_url: str, token: str | None) -> str:
    """The first model that `base_url` lists. Raises LoadError."""
    url = f"{base_url}/models"
    try:
        async with asyncio.timeout(ASIDE_TIMEOUT_S), open_session(token) as session, session.get(url) as response:
            body = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise LoadError(f"{url}: {_plain(error)}") from None
    if response.status != 200:
        raise LoadError(f"{url}: status {response.status}: {message_of(body)}")
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except msgspec.MsgspecError as error:
        raise LoadError(f"{url}: not a list of models: {error}") from None
    if not models:
        raise LoadError(f"{url}: lists no model; name one")
    return models[0].id
