"""The core's invariants on histories made by chance, and the core against a model that is slow and obvious."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler import admission, placement, ways
from scheduler import state as state_module
from scheduler.beginning import initial
from scheduler.core import decide
from scheduler.events import DataplaneResynced
from scheduler.invariants import check, check_step
from tests.scheduler.histories import POOL, History
from tests.scheduler.model import Model
from tests.scheduler.model_records import Replica as ModelReplica

STEPS = 60
FOUND = (399, 1035, 3012, 4935, 6736, 6783, 7326, 8080)
"""Seeds by which faults were found: of turns in a pool whose runs' home tells other models, and of a clock that stood
still."""


def play(chance: random.Random) -> None:
    """One history with every kind of event, all invariants checked after each."""
    state = initial(POOL, 0.0, 100)
    history = History(chance, resyncs=True)
    for _ in range(STEPS):
        event = history.next(state)
        before = state
        state, effects = decide(state, event)
        check(state)
        if not isinstance(event, DataplaneResynced):
            check_step(before, effects, state)


def compare(chance: random.Random) -> None:
    """One history without resyncs: the core and the model answer the same."""
    state = initial(POOL, 0.0, 100)
    replicas = {r.name: ModelReplica(r.name, r.kind == "one-shot", r.models, r.max_in_flight) for r in POOL}
    model = Model(replicas, opens_at=2.0, sequence=100)
    history = History(chance, resyncs=False)
    for _ in range(STEPS):
        event = history.next(state)
        state, effects = decide(state, event)
        expected = model.apply(event)
        assert effects == expected, event
        assert {t: turn.replica for t, turn in state.turns.items()} == {t: o.replica for t, o in model.turns.items()}


@pytest.fixture(params=[0, state_module.COMPARED_MAX], ids=["pools-in-order", "pools-compared"], autouse=True)
def compared_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of choosing in a pool; batch turns starve, trials end and seats are seen soon enough for a short
    history."""
    monkeypatch.setattr(state_module, "COMPARED_MAX", request.param)
    monkeypatch.setattr(admission, "SEATS_SEEN", 1)
    for module in (admission, placement, state_module):
        monkeypatch.setattr(module, "STARVES_AFTER", 2)
    for name in ("SETTLING_TURNS", "PART_TURNS", "TRIED_TURNS"):
        monkeypatch.setattr(ways, name, 1)


def test_every_invariant_holds_after_every_event(request: pytest.FixtureRequest) -> None:
    for seed in (*range(request.config.getoption("--histories")), *FOUND):
        try:
            play(random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_core_decides_as_the_obvious_model_does(request: pytest.FixtureRequest) -> None:
    for seed in (*range(request.config.getoption("--histories")), *FOUND):
        try:
            compare(random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_invariants_hold_where_hypothesis_looks(chance: random.Random) -> None:
    play(chance)
