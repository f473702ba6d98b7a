"""The way that batch work goes, by what the ways were seen to give."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from common.ids import ReplicaName
from common.pool import Replica as PoolReplica
from scheduler.beginning import initial
from scheduler.core import decide
from scheduler.economy import Economy, Way
from scheduler.events import ReplicaProbed
from scheduler.ways import (
    DOUBT,
    NEW_TRIAL,
    NOTHING_GIVEN,
    PART_TURNS,
    REMEMBERED_S,
    SETTLING_TURNS,
    TRIED_TURNS,
    Given,
    Givens,
    Trial,
    looked_at,
    next_way,
    with_turn,
)

POOL = {"a": ("m",), "b": ("m",), "c": ("other",)}
KV_TOKENS = 16_384
NOW = 5_000.0
CONTEXT = 2_000.0
ECONOMY = Economy(
    turns=100,
    prompt_tokens=CONTEXT - 48,
    completion_tokens=48,
    fresh_tokens=500,
    computed_tokens=800,
    turn_gap_s=0.4,
    prefill_s=300e-6,
    token_s=3e-3,
    in_flight=5,
    pause_s=1.25,
)
"""Predicted: kept 2.5, partly 1.9, anew 1.3 turns a second, about."""


def ended(trial: Trial, turns: int, gap_s: float, *, turn_s: float = 2.0, is_interactive: bool = False) -> Trial:
    """`trial` with so many turns more, one every `gap_s`."""
    begun = trial.began_at
    for number in range(1, turns + 1):
        trial = with_turn(trial, begun + number * gap_s, turn_s, is_interactive=is_interactive)
    return trial


def given(rate: float, interactive_s: float = 1.0, context_tokens: float = CONTEXT, at: float = NOW) -> Given:
    return Given(TRIED_TURNS, rate, 10, interactive_s, context_tokens, at)


def known(**rates: float) -> Givens:
    return tuple(given(rates[way.name.lower()]) if way.name.lower() in rates else Given() for way in Way)


def chosen(givens: Givens, now: Way, interactive_tokens: float = 0.0) -> Way:
    return next_way(givens, ECONOMY, KV_TOKENS, interactive_tokens, now, at=NOW)


def test_turns_right_after_a_change_do_not_count() -> None:
    trial = ended(NEW_TRIAL, SETTLING_TURNS, 0.5)
    assert trial == Trial(SETTLING_TURNS, SETTLING_TURNS * 0.5)
    trial = ended(trial, PART_TURNS, 0.25)
    after, givens = looked_at(trial, NOTHING_GIVEN, Way.ANEW, ECONOMY, trial.began_at + PART_TURNS * 0.25, is_full=True)
    assert (after.turns, givens[Way.ANEW].turns) == (SETTLING_TURNS, PART_TURNS)
    assert givens[Way.ANEW].rate == pytest.approx(4.0)
    assert (givens[Way.KEPT], givens[Way.PARTLY]) == (Given(), Given())


def test_what_a_replica_does_that_is_not_full_is_no_measure() -> None:
    trial = ended(Trial(SETTLING_TURNS, 10.0), PART_TURNS, 0.25)
    assert looked_at(trial, NOTHING_GIVEN, Way.KEPT, ECONOMY, 20.0, is_full=False) == (
        Trial(SETTLING_TURNS, 20.0),
        NOTHING_GIVEN,
    )


def test_parts_of_a_trial_make_a_mean_and_the_latest_count() -> None:
    givens = NOTHING_GIVEN
    for gap_s in (0.5, 0.25):
        trial = ended(Trial(SETTLING_TURNS, 0.0), PART_TURNS, gap_s, turn_s=4 * gap_s, is_interactive=True)
        _, givens = looked_at(trial, givens, Way.KEPT, ECONOMY, PART_TURNS * gap_s, is_full=True)
    assert givens[Way.KEPT].rate == pytest.approx(3.0)
    assert givens[Way.KEPT].interactive_s == pytest.approx(1.5)
    for _ in range(200):
        trial = ended(Trial(SETTLING_TURNS, 0.0), PART_TURNS, 1.0)
        _, givens = looked_at(trial, givens, Way.KEPT, ECONOMY, float(PART_TURNS), is_full=True)
    assert givens[Way.KEPT].rate == pytest.approx(1.0, rel=0.01)


def test_a_way_is_not_left_before_it_is_known() -> None:
    assert chosen(known(kept=2.0), Way.PARTLY) is Way.PARTLY


def test_what_was_seen_beats_what_is_predicted() -> None:
    assert chosen(NOTHING_GIVEN, Way.ANEW) is Way.KEPT
    assert chosen(known(kept=1.7, partly=1.75, anew=1.95), Way.KEPT) is Way.ANEW
    assert chosen(known(kept=1.95, partly=1.75, anew=1.7), Way.ANEW) is Way.KEPT


def test_a_way_that_may_be_better_is_tried_and_one_that_cannot_be_is_not() -> None:
    assert chosen(known(kept=2.0), Way.KEPT) is Way.PARTLY
    assert DOUBT * 0.6 > 1
    assert chosen(known(kept=8.0, partly=0.1), Way.KEPT) is Way.KEPT, "by either of the two that are known"


def test_a_close_call_changes_nothing() -> None:
    assert chosen(known(kept=2.0, partly=2.05, anew=2.0), Way.KEPT) is Way.KEPT


def test_interactive_runs_take_their_part_of_each_way() -> None:
    quick, slow = given(2.0, interactive_s=0.5), given(1.9, interactive_s=3.0)
    givens = (quick, given(0.1), slow)
    assert chosen(givens, Way.KEPT) is Way.KEPT
    assert chosen(givens, Way.KEPT, interactive_tokens=3 * CONTEXT) is Way.ANEW


def test_what_was_seen_long_ago_is_forgotten() -> None:
    old = given(1.0, at=NOW - REMEMBERED_S)
    assert chosen((given(2.0), given(1.0), given(1.0)), Way.KEPT) is Way.KEPT
    assert chosen((given(2.0), old, given(1.0)), Way.KEPT) is Way.PARTLY, "it gets another try"


def test_what_was_seen_with_turns_of_another_size_is_forgotten() -> None:
    long = given(9.0, context_tokens=5 * CONTEXT)
    assert chosen((given(2.0), long, long), Way.KEPT) is Way.PARTLY
    _, givens = looked_at(
        ended(Trial(SETTLING_TURNS, 0.0), PART_TURNS, 0.5),
        (long, long, long),
        Way.KEPT,
        ECONOMY,
        PART_TURNS * 0.5,
        is_full=True,
    )
    assert givens[Way.KEPT].turns == PART_TURNS
    assert givens[Way.KEPT].rate == pytest.approx(2.0)


def test_replicas_that_are_alike_learn_from_each_other() -> None:
    pool = tuple(PoolReplica(ReplicaName(name), f"http://{name}", models=models) for name, models in POOL.items())
    state = initial(pool, 0.0, 1)
    busy = {"kv_tokens": KV_TOKENS, "economy": ECONOMY, "healthy": True, "is_probed": True}
    trial = Trial(SETTLING_TURNS + TRIED_TURNS, 100.0)
    full = {"batch_in_flight": 5, "in_flight": 5, "batch_tokens": KV_TOKENS, "trial": trial}
    for name in map(ReplicaName, POOL):
        more = full if name == "a" else {}
        state = replace(state, replicas=state.replicas.set(name, replace(state.replicas[name], **busy, **more)))

    def probe(name: str, at: float) -> Way:
        nonlocal state
        probed = ReplicaProbed(at, ReplicaName(name), healthy=True, running=5, waiting=0, kv_tokens=KV_TOKENS)
        state, _ = decide(state, probed)
        return state.replicas[ReplicaName(name)].way

    assert probe("b", 124.0) is Way.KEPT
    assert probe("a", 124.0) is Way.PARTLY, "kept is known now, and the next is worth a try"
    assert probe("b", 126.0) is Way.PARTLY
    assert probe("c", 126.0) is Way.KEPT, "it has other models"
