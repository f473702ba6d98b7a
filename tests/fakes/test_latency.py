"""The cost model against the figures that it was made from."""

from __future__ import annotations

import pytest

from fakes.engine.latency import PROFILES, CostModel


@pytest.mark.parametrize(
    ("profile", "requests", "expected_ms"),
    [
        ("h100-8b", 1, 7),
        ("h100-8b", 16, 9),
        ("h100-8b", 32, 12),
        ("a100-8b", 1, 11),
        ("a100-8b", 16, 15),
        ("a100-8b", 32, 19),
        ("laptop-1b", 1, 9),
        ("laptop-1b", 16, 17),
        ("laptop-1b", 32, 25),
    ],
)
def test_decoding_at_2k_context_takes_what_was_measured(profile: str, requests: int, expected_ms: float) -> None:
    step_s = CostModel(PROFILES[profile]).step_s(requests, requests * 2_000, requests)
    assert step_s * 1e3 == pytest.approx(expected_ms, rel=0.12)


@pytest.mark.parametrize(
    ("profile", "tokens_per_s"),
    [("h100-8b", 30_000), ("a100-8b", 8_000), ("laptop-1b", 12_000), ("cpu-testbed", 22_000)],
)
def test_prefill_is_as_fast_as_measured(profile: str, tokens_per_s: float) -> None:
    budget = PROFILES[profile].token_budget
    assert budget / CostModel(PROFILES[profile]).step_s(budget, budget, 1) == pytest.approx(tokens_per_s, rel=0.12)


def test_the_testbed_takes_8_ms_a_token_alone_and_33_beside_prefills() -> None:
    model = CostModel(PROFILES["cpu-testbed"])
    assert model.step_s(1, 2_000, 1) * 1e3 == pytest.approx(8, rel=0.12)
    # Nothing is cached in a flood: 12 requests with prompts of about 2,150 tokens and replies of 48 leave some 490
    # tokens of prefill to each step.
    assert model.step_s(490 + 11, 16_000, 12) * 1e3 == pytest.approx(33, rel=0.12)


@pytest.mark.parametrize("profile", PROFILES)
def test_more_work_never_takes_less_time(profile: str) -> None:
    model = CostModel(PROFILES[profile])
    times = [model.step_s(n, n * 100, n) for n in range(1, 200)]
    assert times == sorted(times)
