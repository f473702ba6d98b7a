"""`./luftpause bench core`: the states that it compares are alike but for their size."""

from __future__ import annotations

import random

import pytest

from loadgen.bench_core import KINDS, Load, measure


@pytest.mark.parametrize(("runs", "held"), [(1_000, 100), (3_000, 1_000)])
def test_every_place_stays_taken_and_as_many_turns_are_held(runs: int, held: int) -> None:
    load = Load(runs, held, random.Random(1))
    for _ in range(500):
        before = len(load.state.turns)
        load.turn()
        assert len(load.state.turns) == before
        assert {replica.in_flight for replica in load.state.replicas.values()} == {16}
    assert len(load.state.turns) - 8 * 16 == pytest.approx(held, abs=5)
    assert len(load.state.runs) == pytest.approx(runs, rel=0.3)
    assert all(len(load.took_s[kind]) == 500 for kind in KINDS)


def test_the_report_has_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.bench_core.LARGE", (2_000, 500))
    report = measure(200)
    assert set(report) == {"events_per_s", "kinds", "ledger", "ledger_us", "machine", "passed"}
