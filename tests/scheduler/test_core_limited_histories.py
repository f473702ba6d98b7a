"""The core's invariants on histories made by chance, where replicas have rate limits, prices and fallbacks."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from common.ids import ReplicaName
from common.pool import Replica
from scheduler.beginning import initial
from scheduler.budgets.headers import Dimension, LimitsTold, Seen
from scheduler.core import decide
from scheduler.events import DataplaneResynced, Event, FirstTokenSeen, KnownLimits, TurnArrived, TurnEnded, TurnFailed
from scheduler.invariants import check, check_step
from scheduler.money import run_key
from scheduler.state import State
from tests.scheduler.histories import History

POOL = (
    Replica(ReplicaName("a"), "http://a", models=("m",), limits={"tokens_per_minute": 6000, "requests_per_minute": 5}),
    Replica(ReplicaName("b"), "http://b", models=("m", "n"), limits={}, price={"m": {"input": 1.0, "output": 5.0}}),
    Replica(ReplicaName("c"), "http://c", models=("m",), max_in_flight=2, fallback=("a", "b")),
    Replica(ReplicaName("k"), "http://k", kind="one-shot", models=("m",), limits={"requests_per_second": 1}),
)
PLAIN = (
    Replica(ReplicaName("a"), "http://a", models=("m",)),
    Replica(ReplicaName("b"), "http://b", models=("m", "n"), max_in_flight=2),
    Replica(ReplicaName("k"), "http://k", kind="one-shot", models=("m",)),
)
"""Without limits, so that a budget comes and goes with a 429."""
STEPS = 80


class LimitedHistory:
    """As `History`, with what turns ask for and answers tell where there are limits."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._plain = History(chance, resyncs=True)

    def next(self, state: State) -> Event:
        """The next event after `state`."""
        chance = self._chance
        event = self._plain.next(state)
        match event:
            case TurnArrived() if event.request.turn_id not in state.turns:
                request = replace(
                    event.request,
                    prompt_bytes=chance.choice((0, 400, 4000, 30_000)),
                    max_tokens=chance.choice((None, 50, 4000)),
                    wait_s_max=chance.choice((None, None, None, 5.0)),
                    deadline_s=chance.choice((None, None, None, 60.0)),
                    budget_usd=chance.choice((None, None, 0.01)),
                    fallbacks=chance.choice(((), (), (), (ReplicaName("b"), ReplicaName("a")))),
                )
                return replace(event, request=request)
            case TurnEnded():
                prompt, completion = (None, None) if chance.random() < 0.2 else (chance.randrange(3000), 80)
                return replace(
                    event, prompt_tokens=prompt, completion_tokens=completion, cached_tokens=0, limits=self._told()
                )
            case TurnFailed():
                return replace(event, status=chance.choice((None, 0, 400, 429, 429, 503)), limits=self._told())
            case FirstTokenSeen():
                return replace(event, limits=self._told())
            case DataplaneResynced():
                known = KnownLimits(ReplicaName(chance.choice("abc")), self._told() or LimitsTold(), 3.0)
                return replace(event, limits=(known,))
            case _:
                return event

    def _told(self) -> LimitsTold | None:
        chance = self._chance
        if chance.random() < 0.5:
            return None
        seen = Seen(
            chance.choice((Dimension.TOKENS, Dimension.REQUESTS)),
            chance.choice(("", "", "day")),
            chance.choice((None, 0.0, 10.0, 6000.0)),
            chance.choice((None, 0.0, 3.0, 5000.0)),
            chance.choice((None, 0.0, 2.0, 40.0, 5000.0)),
        )
        return LimitsTold((seen,), chance.choice((None, 0.0, 7.0)))


def play(chance: random.Random, pool: tuple[Replica, ...]) -> None:
    """One history, all invariants checked after each event."""
    state = initial(pool, 0.0, 100)
    history = LimitedHistory(chance)
    for _ in range(STEPS):
        event = history.next(state)
        before = state
        state, effects = decide(state, event)
        check(state)
        if not isinstance(event, DataplaneResynced):
            check_step(before, effects, state)
    for run, spend in state.spends.limited.young.items():
        reserved = [turn.reserved_usd or 0.0 for turn in state.turns.values() if run_key(turn) == run]
        assert spend.reserved == pytest.approx(sum(reserved)), "money that no turn holds"


@pytest.mark.parametrize("pool", [POOL, PLAIN], ids=["limited", "plain"])
def test_every_invariant_holds_with_limits(request: pytest.FixtureRequest, pool: tuple[Replica, ...]) -> None:
    for seed in range(request.config.getoption("--histories")):
        try:
            play(random.Random(seed), pool)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
