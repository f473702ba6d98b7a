"""`bench ratelimit`: small, whole, and judged as it should be."""

from __future__ import annotations

import asyncio

import pytest

from loadgen.bench_ratelimit import measure, report
from loadgen.ratelimit_rig import Counts

SMALL = Counts(agents=6, steps=2, window_tokens=1200, window_requests=60, last_tokens=300, speed=50)


@pytest.mark.e2e
def test_agents_that_retry_send_again_what_luftpause_sends_once() -> None:
    told = asyncio.run(measure(SMALL, ("reactive", "luftpause"), lambda _: None))
    ours, theirs = told["arms"]["luftpause"], told["arms"]["reactive"]
    assert ours["refused"] == ours["tokens_resent"] == ours["extra_requests"] == 0
    assert theirs["refused"] > 0
    assert theirs["tokens_resent"] > 0
    assert told["not_installed"] == ["agentpause", "litellm"]


@pytest.mark.parametrize(
    ("changed", "passed"),
    [({}, True), ({"refused": 1}, False), ({"extra_requests": 1}, False), ({"over_fluid": 1.2}, False)],
)
def test_every_bar_is_judged(changed: dict[str, float], passed: bool) -> None:
    figures = {"refused": 0, "extra_requests": 0, "over_fluid": 1.01, **changed}
    assert report(Counts(), {"luftpause": figures})["passed"] is passed


def test_without_luftpause_nothing_is_judged() -> None:
    assert report(Counts(), {"reactive": {}})["passed"]
