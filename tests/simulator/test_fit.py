"""Fitting constants: from durations that a profile made, the same profile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fakes.engine.latency import CPU_TESTBED, CPU_TESTBED_PREFILL, Profile
from simulator.fit import CONSTANTS, Batch, SentTurn, counts, fit, line, non_negative, typical, with_constants
from simulator.sweeps import Swept

TRUE = {"step_s": 7e-3, "request_s": 4e-4, "token_s": 5e-5, "context_s": 3e-7, "pair_s": 2e-8, "turn_s": 6e-3}


def shapes() -> list[tuple[str, list[tuple[int, int, int]]]]:
    """Label and (prompt, cached, reply) tokens of turns that are sent together."""
    singles = [(f"prefill {n}", [(n, 0, 1)]) for n in (100, 300, 500, 1_000, 2_000, 3_800, 7_000)]
    later = [(f"later {n}", [(n, n // 128 * 128 - 128, 48)]) for n in (2_000, 2_200)]
    together = [(f"{b} at {n}", [(n, n // 128 * 128, 48)] * b) for n in (150, 1_900) for b in (1, 2, 4, 7)]
    return [*singles, *later, *together]


def measured(profile: Profile, noise: float = 0.0) -> list[Batch]:
    """The shapes with the durations that TRUE gives them."""
    rng = random.Random(5)
    batches = []
    for label, turns in shapes():
        sent = Batch(label, tuple(SentTurn(*turn, 1.0) for turn in turns))
        true_s = sum(a * b for a, b in zip(counts(sent, profile), TRUE.values(), strict=True))
        seconds = true_s * (1 + rng.uniform(-noise, noise))
        batches.append(Batch(label, tuple(replace(turn, seconds=seconds) for turn in sent.turns)))
    return batches


def test_the_constants_behind_the_durations_are_found() -> None:
    found = fit(measured(CPU_TESTBED), CPU_TESTBED)
    assert tuple(found.constants) == CONSTANTS
    for name, value in TRUE.items():
        assert found.constants[name] == pytest.approx(value, rel=0.03), name
    for batch, predicted_s in zip(measured(CPU_TESTBED), found.predicted_s, strict=True):
        assert predicted_s == pytest.approx(batch.seconds, rel=0.01)


def test_a_noisy_measurement_is_still_predicted() -> None:
    found = fit(measured(CPU_TESTBED, 0.03), CPU_TESTBED)
    for batch, predicted_s in zip(measured(CPU_TESTBED), found.predicted_s, strict=True):
        assert predicted_s == pytest.approx(batch.seconds, rel=0.04)


def test_an_outlier_does_not_decide() -> None:
    batches = measured(CPU_TESTBED)
    at = next(number for number, batch in enumerate(batches) if batch.label == "prefill 500")
    slow = tuple(replace(turn, seconds=3 * turn.seconds) for turn in batches[at].turns)
    found = fit([*batches[:at], Batch("prefill 500", slow), *batches[at + 1 :]], CPU_TESTBED)
    for number, batch in enumerate(batches):
        if number != at:
            assert found.predicted_s[number] == pytest.approx(batch.seconds, rel=0.1), batch.label


def test_a_slow_moment_is_not_fitted() -> None:
    seen = [Batch("a", (SentTurn(10, 0, 1, seconds),)) for seconds in (1.0, 9.0, 1.1)]
    assert [batch.seconds for batch in typical(seen)] == [1.1]


def test_counts_follow_the_batching() -> None:
    alone = counts(Batch("", (SentTurn(5_000, 0, 3, 1.0),)), CPU_TESTBED)
    # Chunks of 2,048, 2,048 and 904 tokens, then two decoding steps.
    assert alone[:3] == [5, 5, 5_002]
    assert alone[3] == 2_048 + 4_096 + 5_000 + 5_001 + 5_002
    assert alone[5] == 1.0
    cached = counts(Batch("", (SentTurn(300, 256, 1, 1.0),)), CPU_TESTBED)
    assert cached[:4] == [1, 1, 44, 300]


def test_a_fitted_profile_costs_what_its_constants_say() -> None:
    profile = with_constants(CPU_TESTBED_PREFILL, TRUE)
    again = fit(measured(profile), profile).constants
    assert with_constants(profile, again).turn_s == pytest.approx(TRUE["turn_s"], rel=0.03)


def test_no_constant_is_negative() -> None:
    # Without the bound the second one would be -1.
    assert non_negative([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], [2.0, 1.0, -1.0]) == [pytest.approx(1.5), 0.0]
    with pytest.raises(ValueError, match="do not tell"):
        non_negative([[0.0]], [1.0])


def test_the_tokeniser_is_read_off_the_prompts() -> None:
    swept = Swept(lengths=[(1_000, 290.0), (4_000, 1_040.0)], results=[126.0])
    texts = swept.texts(growth_chars=400)
    assert texts.chars_per_token == pytest.approx(4.0)
    assert texts.context_overhead_tokens == pytest.approx(40.0)
    assert texts.result_overhead_tokens == pytest.approx(26.0)
    with pytest.raises(ValueError, match="one length"):
        line([(1.0, 1.0), (1.0, 2.0)])
