"""Continuous batching as vLLM v1 does it. Pure: no clock, no chance; time is an argument. Read `driver` for its host.

Theory of operation. Each step has one budget of tokens. Running requests come first, in order of admission: one that
decodes takes one token, one that prefills takes what it still lacks, or what is left of the budget (chunked prefill).
Where a running request needs a block and none is unused, the last admitted is preempted: it loses its blocks, goes to
the head of the waiting and will compute everything again, but for what the prefix cache still has. Then, if nobody
was preempted, waiting requests are admitted in order while budget, seats and blocks last; one is admitted only if its
whole input fits (vLLM's `scheduler_reserve_full_isl`). Whoever has computed all its tokens gets a next one; the last
token of a request ends it, and its blocks are released at the step's end.

What a request will say is known when it is submitted (`reply` decides that): here it is a number of tokens. Costs: a
step is proportional to the running requests; hashes come with the request, so nothing is hashed here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fakes.engine.kv_cache import KvCache
from fakes.engine.latency import CostModel, Profile


@dataclass(slots=True, eq=False)
class Request:
    """One request. The first three fields are given, the others are the engine's; read them, do not set them."""

    prompt_tokens: int
    reply_tokens: int
    """Tokens it will generate, at least 1."""
    hashes: Sequence[int] = ()
    """Chained hashes of the whole blocks of prompt and reply (see `tokens`); shorter: the rest is not cached."""

    number: int = -1
    """Order of submission."""
    submitted_at: float = 0.0
    admitted_at: float | None = None
    """Start of the first step that computed something for it."""
    generated: int = 0
    """Tokens of the reply so far."""
    computed: int = 0
    """Tokens whose KV is in its blocks."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at its first admission."""
    preemptions: int = 0
    committed: int = 0
    """Its leading blocks whose content is known to the cache."""
    blocks: list[int] = field(default_factory=list)
    running: bool = False
    calm: int = 0
    """Tokens that it will decode before it needs a block, fills one or ends: nothing but counting until then."""

    @property
    def finished(self) -> bool:
        """Whether the reply is whole."""
        return self.generated == self.reply_tokens


@dataclass(slots=True)
class Totals:
    """Counters that only grow."""

    steps: int = 0
    preemptions: int = 0
    cache_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    cache_hits: int = 0
    """Prompt tokens found there."""
    prompt_tokens: int = 0
    """Prompt tokens of requests that got their first token."""
    generation_tokens: int = 0
    finished: int = 0
    aborted: int = 0


class Engine:
    """One engine. The caller submits, then calls `step` again and again, at the time the last step ended."""

    def __init__(self, profile: Profile, cost: CostModel | None = None) -> None:
        """`cost` unset: that of the profile."""
        if profile.max_model_len > profile.kv_tokens:
            raise ValueError(f"max_model_len {profile.max_model_len} does not fit into kv_tokens {profile.kv_tokens}")
        self.profile = profile
        self.cache = KvCache(profile.kv_tokens // profile.block_tokens)
        self.totals = Totals()
        self._cost = CostModel(profile) if cost is None else cost
        self._running: list[Request] = []
        self._waiting: OrderedDict[int, Request] = OrderedDict()
        self._ending: list[Request] = []
        """Requests that get their last token in the step that is being performed."""
        self._submitted = 0
        self._pairs = 0
        """Pairs of a prefilled token and a token before it, in the step that is being performed."""

    @property
    def running(self) -> Sequence[Request]:
        """Admitted requests, in order of admission."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait for admission."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._running or self._waiting)

    def submit(self, request: Request, now: float) -> None:
        """Queues a new request. Raises ValueError if it is longer than `max_model_len` or empty."""
        length = request.prompt_tokens + request.reply_tokens
        if request.prompt_tokens < 1 or request.reply_tokens < 1 or length > self.profile.max_model_len:
            raise ValueError(f"prompt {request.prompt_tokens} + reply {request.reply_tokens} tokens do not fit")
        request.number = self._submitted
        request.submitted_at = now
        self._submitted += 1
        self._waiting[request.number] = request

    def abort(self, request: Request) -> None:
        """Forgets a request and releases its blocks at once; does nothing if it has ended or was aborted."""
        if request.running:
            self._running.remove(request)
        elif self._waiting.pop(request.number, None) is None:
            return
        self._release(request)
        self.totals.aborted += 1

    def step(self, now: float) -> tuple[float, list[Request]]:
        """Performs one step that starts at `now`: its length in seconds, and the requests that got a token at its end.

        An engine with nothing to do returns (0.0, []).
        """
        if not self.busy:
            return 0.0, []
        budget = self.profile.token_budget
        produced: list[Request] = []
        preempted = self.totals.preemptions
        self._pairs = 0
        left, context = self._step_running(budget, produced)
        if preempted == self.totals.preemptions and self._waiting:
            left, context = self._admit(left, context, produced, now)
        requests = len(self._running)
        for request in self._ending:
            self._running.remove(request)
            self._release(request)
        totals = self.totals
        totals.finished += len(self._ending)
        self._ending.clear()
        totals.steps += 1
        totals.generation_tokens += len(produced)
        return self._cost.step_s(budget - left, context, requests, self._pairs), produced

    def _step_running(self, budget: int, produced: list[Request]) -> tuple[int, int]:
        """Computes for the running requests: the budget left and the context read."""
        context = 0
        for request in self._running:  # which may lose its tail on the way, by preemption
            if budget == 0:
                break
            if request.calm:
                request.calm -= 1
                request.generated += 1
                request.computed = end = request.computed + 1
                produced.append(request)
                budget -= 1
                context += end
                continue
            tokens = min(request.prompt_tokens + request.generated - request.computed, budget)
            missing = -(-(request.computed + tokens) // self.profile.block_tokens) - len(request.blocks)
            if missing > 0 and not self._make_room(request, missing):
                break
            budget -= tokens
            self._compute(request, tokens, produced)
            context += request.computed
        return budget, context

    def _make_room(self, request: Request, missing: int) -> bool:
        """Allocates for a running request, preempting the last admitted; False if that was the request itself."""
        while not self.cache.allocate(missing, request.blocks):
            victim = self._running.pop()
            self._release(victim)
            victim.preemptions += 1
            self.totals.preemptions += 1
            self._waiting[victim.number] = victim
            self._waiting.move_to_end(victim.number, last=False)
            if victim is request:
                return False
        return True

    def _admit(self, budget: int, context: int, produced: list[Request], now: float) -> tuple[int, int]:
        """Admits waiting requests in order: the budget left and the context read, those of the admitted included."""
        block_tokens = self.profile.block_tokens
        cache = self.cache
        while self._waiting and budget > 0 and len(self._running) < self.profile.max_num_seqs:
            request = next(iter(self._waiting.values()))
            total = request.prompt_tokens + request.generated
            # At least one token has to be computed, else there is nothing to sample the next one from.
            found = cache.match(request.hashes, (total - 1) // block_tokens)
            if -(-total // block_tokens) - len(found) > cache.unused - cache.unused_among(found):
                break
            del self._waiting[request.number]
            self._running.append(request)
            request.running = True
            cache.share(found)
            request.blocks.extend(found)
            request.committed = len(found)
            request.computed = len(found) * block_tokens
            if request.admitted_at is None:
                request.admitted_at = now
                request.cached_tokens = request.computed
                self.totals.cache_queries += request.prompt_tokens
                self.totals.cache_hits += request.computed
            tokens = min(total - request.computed, budget)
            room = cache.allocate(-(-(request.computed + tokens) // block_tokens) - len(found), request.blocks)
            assert room, "the whole input fits, so a part of it does"
            budget -= tokens
            self._compute(request, tokens, produced)
            context += request.computed
        return budget, context

    def _compute(self, request: Request, tokens: int, produced: list[Request]) -> None:
        """Computes `tokens` of a request that has the blocks for them; after the last there is, the next comes out."""
        block_tokens = self.profile.block_tokens
        if tokens > 1:
            self._pairs += tokens * (2 * request.computed + tokens) // 2
        request.computed += tokens
        full = request.computed // block_tokens
        for position in range(request.committed, min(full, len(request.hashes))):
            self.cache.commit(request.blocks[position], request.hashes[position])
        request.committed = full
        if request.computed < request.prompt_tokens + request.generated:
            return
        if request.generated == 0:
            self.totals.prompt_tokens += request.prompt_tokens
        request.generated += 1
        produced.append(request)
        to_edge = len(request.blocks) * block_tokens - request.computed
        request.calm = max(0, min(to_edge, request.reply_tokens - request.generated) - 1)
        if request.finished:
            self._ending.append(request)

    def _release(self, request: Request) -> None:
        self.cache.release(request.blocks)
        request.running = False
        request.computed = 0
        request.committed = 0
        request.calm = 0
