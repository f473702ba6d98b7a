"""Agents, a scheduler and hosted providers in virtual time: the scheduler's real core, everything else simulated.

A provider charges a request when it arrives, by its own estimate (a token each 4 bytes, and all of `max_tokens`), and
corrects that at the end, as hosted ones do. It counts its 429s. An agent that gets one waits and asks again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from common.ids import Caller, DataplaneId, Model, ReplicaName, RunId, TurnId
from common.pool import Replica
from fakes.provider import headers
from fakes.provider.windows import Bucket, Charge, Quota
from scheduler.beginning import initial
from scheduler.budgets.headers import LimitsTold, read
from scheduler.core import decide
from scheduler.effects import PlaceTurn, RefuseTurn
from scheduler.events import (
    Event,
    ReplicaProbed,
    Request,
    RunClass,
    RunEnded,
    Ticked,
    TurnArrived,
    TurnEnded,
    TurnFailed,
)
from scheduler.invariants import check
from scheduler.state import State

DATAPLANE = DataplaneId("d")


@dataclass
class Provider:
    """A hosted endpoint, which notes when it refused."""

    tokens: Bucket
    requests: Bucket
    says: float = 1.0
    family: headers.Family = "openai"
    refused_at: list[float] = field(default_factory=list)
    charges: dict[TurnId, Charge] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_day = Bucket(14400, 86400.0) if self.family == "groq" else None
        self.quota = Quota(self.tokens, self.requests, self.says, by_day)

    @property
    def served_tokens(self) -> int:
        return self.quota.served_tokens

    def arrive(self, at: float, turn: TurnId, body_bytes: int, max_tokens: int) -> LimitsTold | None:
        """Takes a request (None), or refuses it with what its 429 tells."""
        charge = self.quota.arrive(at, body_bytes, max_tokens)
        if isinstance(charge, Charge):
            self.charges[turn] = charge
            return None
        self.refused_at.append(at)
        return self.tell(at, headers.retry_after("seconds", charge, at))

    def end(self, at: float, turn: TurnId, tokens: int) -> None:
        self.quota.end(at, self.charges.pop(turn), tokens)

    def tell(self, at: float, more: dict[str, str] | None = None) -> LimitsTold:
        told = headers.tell(self.family, self.quota, at)
        return read([*told.items(), *(more or {}).items()], {})


@dataclass
class Agent:
    """A run of `steps` turns; its context grows from `first_tokens` to `last_tokens`."""

    name: str
    steps: int
    first_tokens: int
    last_tokens: int
    completion: Callable[[random.Random, int], int]
    max_tokens: int = 200
    tool_s: float = 1.0
    done: int = 0

    def prompt_tokens(self) -> int:
        share = self.done / max(1, self.steps - 1)
        return round(self.first_tokens + share * (self.last_tokens - self.first_tokens))


@dataclass
class World:
    """Plays agents against providers through a scheduler."""

    providers: dict[str, Provider]
    agents: list[Agent]
    seed: int = 1
    pool: tuple[Replica, ...] = ()
    checked: bool = False
    way_s: Callable[[random.Random], float] = lambda _: 0.02
    """How long a request is on its way to the provider, and an answer on its way back where that is `uneven`."""
    uneven: bool = False
    at: float = 10.0
    turns: int = 0
    covered: int = 0
    predicted: int = 0
    waits_s: list[float] = field(default_factory=list)
    retries: int = 0
    started_at: float = 0.0
    ended_at: float = 0.0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.asked: dict[TurnId, Agent] = {}
        if not self.pool:
            self.pool = tuple(
                Replica(
                    ReplicaName(name),
                    f"http://{name}",
                    models=("m",),
                    limits={"tokens_per_minute": p.tokens.limit, "requests_per_minute": p.requests.limit},
                )
                for name, p in self.providers.items()
            )
        self.state: State = initial(self.pool, 0.0, 1)
        self.ticks_at = float("inf")
        self.tell(Ticked(3.0))
        for replica in self.pool:
            self.tell(ReplicaProbed(3.0, replica.name, healthy=True))

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.at + delay_s, self.order, call))

    def tell(self, event: Event) -> None:
        self.state, effects = decide(self.state, event)
        if self.checked:
            check(self.state)
        for effect in effects:
            if isinstance(effect, PlaceTurn):
                self.placed(effect)
            else:
                assert not isinstance(effect, RefuseTurn), effect
        due = min(self.state.dry.values(), default=float("inf"))
        if due < self.ticks_at:
            self.ticks_at = max(due, self.at + 1e-3)
            self.later(self.ticks_at - self.at, self.tick)

    def tick(self) -> None:
        if self.at < self.ticks_at - 1e-9:
            return  # an earlier one has come meanwhile
        self.ticks_at = float("inf")
        self.tell(Ticked(self.at))

    def run(self, until: float = float("inf")) -> None:
        self.started_at = self.at
        for agent in self.agents:
            self.later(self.chance.random() * 0.5, lambda agent=agent: self.ask(agent))  # type: ignore[misc]
        while self.queue and self.queue[0][0] <= until:
            self.at, _, call = heapq.heappop(self.queue)
            call()
        assert until < float("inf") or not self.state.turns, "turns are left"

    def ask(self, agent: Agent) -> None:
        self.turns += 1
        turn_id = TurnId(f"t{self.turns}")
        self.asked[turn_id] = agent
        body = self.body_bytes(agent)
        request = Request(
            turn_id, RunId(agent.name), RunId(""), Caller("c"), RunClass.BATCH, Model("m"),
            prompt_bytes=body, max_tokens=agent.max_tokens,
        )  # fmt: skip
        self.tell(TurnArrived(self.at, DATAPLANE, request))

    def body_bytes(self, agent: Agent) -> int:
        return agent.prompt_tokens() * 4 + 120

    def placed(self, effect: PlaceTurn) -> None:
        agent = self.asked.pop(effect.turn_id)
        self.waits_s.append(effect.held_s)
        self.later(self.way_s(self.chance), lambda: self.arrive(agent, effect))

    def arrive(self, agent: Agent, effect: PlaceTurn) -> None:
        provider = self.providers[effect.replica]
        refusal = provider.arrive(self.at, effect.turn_id, self.body_bytes(agent), agent.max_tokens)
        if refusal is not None:
            self.retries += 1
            self.tell(TurnFailed(self.at, effect.turn_id, 429, refusal))
            self.later(refusal.retry_after_s or 1.0, lambda: self.ask(agent))
            return
        told = provider.tell(self.at)
        prompt, completion = agent.prompt_tokens(), min(agent.max_tokens, agent.completion(self.chance, self.turns))
        turn = self.state.turns[effect.turn_id]
        if turn.reservation is not None:
            need = turn.reservation.need
            self.predicted += 1
            self.covered += prompt + completion <= need.prompt + need.completion
        self.later(0.3 + completion * 0.01, lambda: self.answer(agent, effect, prompt, completion, told))

    def answer(self, agent: Agent, effect: PlaceTurn, prompt: int, completion: int, told: LimitsTold) -> None:
        self.providers[effect.replica].end(self.at, effect.turn_id, prompt + completion)
        back_s = self.way_s(self.chance) if self.uneven else 0.0
        self.later(back_s, lambda: self.end(agent, effect, prompt, completion, told))

    def end(self, agent: Agent, effect: PlaceTurn, prompt: int, completion: int, told: LimitsTold) -> None:
        agent.done += 1
        self.ended_at = self.at
        going_on = agent.done < agent.steps
        self.tell(TurnEnded(self.at, effect.turn_id, going_on, (), prompt, completion, 0, told))
        if going_on:
            self.later(agent.tool_s, lambda: self.ask(agent))
        else:
            self.tell(RunEnded(self.at, RunId(agent.name), Caller("c")))

    @property
    def wall_s(self) -> float:
        return self.ended_at - self.started_at
