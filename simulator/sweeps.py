"""Measures turns on real engines, to fit a profile to: alone and together, short and long, unseen and cached.

One engine is measured at a time while the others are kept busy, since engines of one machine slow each other down in a
flood too: on two cores a step takes up to three times as long as beside an idle engine. Nothing else may run on them.
Must not fit: `fit` does.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import aiohttp

from fakes.engine.latency import Profile, Texts
from loadgen.compare.engines import Served
from loadgen.compare.processes import ProcessError, body_of
from loadgen.driver import fault_kind, message_of
from loadgen.reply import Reply, ReplyError
from loadgen.workload import Conversation, Workload, plan_run
from scheduler import metrics_text
from simulator.fit import Batch, SentTurn, line

SINGLE_CHARS = (250, 1_000, 2_000, 4_000, 8_000, 16_000)
"""Lengths of the prompts whose prefill is measured."""
TOGETHER_CHARS = (250, 8_000)
"""Lengths of the prompts of turns that decode together."""
TOGETHER = (1, 2, 4, 8, 16)
"""Turns that decode together, as far as the engine runs so many and its KV cache holds them."""
REPEATS = 3
"""Of each measurement, as far as there is time."""
SWEEP_S_MAX = 240.0
"""No repeat begins that would likely end later than this after the first one began."""
WAITING = 2
"""Turns more than its KV cache holds that a busy engine has: it never lacks one to begin with."""
CHARS_PER_TOKEN_LEAST = 3.0
"""Taken before it is known, so that no prompt is too long."""
_TURN_TIMEOUT_S = 120.0
_BLOCK_SIZE = re.compile(rb'^vllm:cache_config_info\{[^\n]*?\bblock_size="(\d+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine does not tell."""

    max_num_seqs: int
    token_budget: int


@dataclass(slots=True)
class Swept:
    """What was measured."""

    batches: list[Batch] = field(default_factory=list)
    lengths: list[tuple[float, float]] = field(default_factory=list)
    """Characters of contexts and tokens of the prompts that they made."""
    results: list[float] = field(default_factory=list)
    """Tokens that turns added to the conversation besides the reply."""

    def texts(self, growth_chars: int) -> Texts:
        """The tokeniser's figures. Raises ValueError where the measurements do not tell."""
        tokens_per_char, overhead = line(self.lengths)
        if tokens_per_char <= 0:
            raise ValueError("prompts do not grow with their texts")
        result = sum(self.results) / len(self.results) - growth_chars * tokens_per_char
        return Texts(1 / tokens_per_char, overhead, result)


async def outline(session: aiohttp.ClientSession, engine: str, serves: Served, limits: Limits) -> Profile:
    """What an engine tells of its sizes; times are all nought. Raises ProcessError."""
    try:
        body = await body_of(session, f"{engine}/metrics") or b""
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise ProcessError(f"engine {engine}: {fault_kind(error)}") from None
    kv_tokens = metrics_text.read(body).kv_tokens
    block = _BLOCK_SIZE.search(body)
    if kv_tokens is None or block is None:
        raise ProcessError(f"engine {engine}: GET /metrics does not tell vllm:cache_config_info, the size of its cache")
    return Profile(
        name="fitted",
        parameters=0.0,
        weights_bytes=0.0,
        kv_bytes_per_token=0.0,
        bandwidth_bytes_per_s=1.0,
        effective_flops=1.0,
        layers=0,
        kv_tokens=kv_tokens,
        block_tokens=int(block[1]),
        token_budget=limits.token_budget,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=min(serves.window_tokens, kv_tokens),
        request_s=0.0,
        step_overhead_s=0.0,
    )


class Sweep:
    """Measurements on `engines`, which serve `model`; texts are drawn from `seed`."""

    def __init__(
        self, session: aiohttp.ClientSession, engines: Sequence[str], model: str, profile: Profile, seed: int
    ) -> None:
        self._session = session
        self._engines = tuple(engines)
        self._model = model
        self._profile = profile
        self._seed = seed
        self._texts = 0
        self._swept = Swept()

    async def run(self, workload: Workload, tell: Callable[[str], None]) -> Swept:
        """Measures all, within five minutes; `workload` is that of the floods. Raises ProcessError."""
        tell("warm-up")
        await asyncio.gather(*(self._whole_run(workload, engine) for engine in self._engines))
        self._swept = Swept()
        begun_s = time.perf_counter()
        # All again and again, not each again and again: a slow moment of the machine then spoils one of each at most.
        for number in range(1, REPEATS + 1):
            for at, engine in enumerate(self._engines, 1):
                others = [other for other in self._engines if other != engine]
                async with self._busy(others, workload):
                    await self._all(workload, engine, partial(_numbered, tell, number, at))
            gone_s = time.perf_counter() - begun_s
            if gone_s * (number + 1) / number > SWEEP_S_MAX:
                break
        return self._swept

    async def _all(self, workload: Workload, engine: str, tell: Callable[[str], None]) -> None:
        window_chars = CHARS_PER_TOKEN_LEAST * self._profile.max_model_len
        tell("prompts")
        for chars in (chars for chars in SINGLE_CHARS if chars < window_chars):
            await self._single(chars, engine)
        tell("a run")
        await self._whole_run(workload, engine)
        for chars in TOGETHER_CHARS:
            for count in self._counts(chars, workload.max_tokens):
                tell(f"{count} turns together at {chars} characters")
                await self._together(workload, chars, count, engine)

    @asynccontextmanager
    async def _busy(self, engines: Sequence[str], workload: Workload) -> AsyncIterator[None]:
        """Keeps `engines` as busy as a flood does that finds nothing cached, from here to the end of the block."""
        first_turn = replace(workload, turns=1, sessions=())
        over = asyncio.Event()

        async def turn_after_turn(engine: str, begun: asyncio.Event) -> None:
            try:
                while not over.is_set():
                    await self._send(engine, self._conversation(first_turn))
                    begun.set()
            finally:
                begun.set()

        count = self._fitting(workload.context_chars, workload.max_tokens) + WAITING
        begun = [asyncio.Event() for _ in engines]
        tasks = [
            asyncio.create_task(turn_after_turn(engine, event))
            for engine, event in zip(engines, begun, strict=True)
            for _ in range(count)
        ]
        try:
            for event in begun:
                await event.wait()
            yield
        finally:
            over.set()
            await asyncio.gather(*tasks)

    def _fitting(self, chars: int, reply_tokens: int) -> int:
        """How many turns of `chars` characters run on an engine at once."""
        profile = self._profile
        tokens = chars / CHARS_PER_TOKEN_LEAST + reply_tokens
        return max(1, min(profile.max_num_seqs, int(profile.kv_tokens / (tokens + profile.block_tokens))))

    def _counts(self, chars: int, reply_tokens: int) -> list[int]:
        """TOGETHER as far as it fits, and the most that does."""
        most = min(self._fitting(chars, reply_tokens), TOGETHER[-1])
        return [count for count in TOGETHER if count < most] + [most]

    def _conversation(self, workload: Workload) -> Conversation:
        self._texts += 1
        return self._same_text(workload, self._texts)

    def _same_text(self, workload: Workload, number: int) -> Conversation:
        return Conversation(workload, plan_run(workload, self._seed, number), self._model)

    async def _single(self, chars: int, engine: str) -> None:
        turn, _ = await self._send(engine, self._conversation(Workload(1, chars, max_tokens=1)))
        self._swept.lengths.append((chars, turn.prompt_tokens))
        self._swept.batches.append(Batch(f"prefill {chars} chars", (turn,)))

    async def _whole_run(self, workload: Workload, engine: str) -> None:
        conversation = self._conversation(workload)
        before: SentTurn | None = None
        number = 0
        while not conversation.is_over:
            turn, reply = await self._send(engine, conversation)
            number += 1
            self._swept.batches.append(Batch(f"turn {number} of a run", (turn,)))
            if before is None:
                self._swept.lengths.append((workload.context_chars, turn.prompt_tokens))
            else:
                self._swept.results.append(turn.prompt_tokens - before.prompt_tokens - before.reply_tokens)
            before = turn
            conversation.take_reply(reply.text, reply.tool_calls)

    async def _together(self, workload: Workload, chars: int, count: int, engine: str) -> None:
        """Turns whose prompts are cached as far as they can be, so that they decode together almost from the start."""
        shape = replace(workload, context_chars=chars, turns=2, sessions=())
        numbers = range(self._texts + 1, self._texts + 1 + count)
        self._texts += count
        for number in numbers:
            await self._send(engine, self._same_text(replace(shape, max_tokens=1), number))
        sent = await asyncio.gather(*(self._send(engine, self._same_text(shape, number)) for number in numbers))
        self._swept.batches.append(Batch(f"{count} together, {chars} chars", tuple(turn for turn, _ in sent)))

    async def _send(self, engine: str, conversation: Conversation) -> tuple[SentTurn, Reply]:
        reply = Reply()
        body = conversation.body()
        begun_s = time.perf_counter()
        try:
            async with (
                asyncio.timeout(_TURN_TIMEOUT_S),
                self._session.post(
                    f"{engine}/v1/chat/completions", data=body, headers={"content-type": "application/json"}
                ) as response,
            ):
                if response.status != 200:
                    said = message_of(await response.read())
                    raise ProcessError(f"engine {engine}: status {response.status}: {said}")
                while data := await response.content.readany():
                    reply.feed(data, time.perf_counter())
            reply.finish()
        except (ReplyError, aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProcessError(f"engine {engine}: {fault_kind(error)}") from None
        if reply.prompt_tokens is None:
            raise ProcessError(f"engine {engine}: tells no usage")
        seconds = time.perf_counter() - begun_s
        return SentTurn(reply.prompt_tokens, reply.cached_tokens or 0, reply.completion_tokens, seconds), reply


def _numbered(tell: Callable[[str], None], number: int, engine: int, what: str) -> None:
    tell(f"{number} of {REPEATS}, engine {engine}: {what}")
