"""What goes wrong in a chaos is drawn from its seed alone."""

from __future__ import annotations

import pytest

from loadgen.chaos_plan import KILLS_UNTIL, LINKS, SERVICES, plan


def test_the_same_seed_makes_the_same_plan() -> None:
    assert plan(7, 600.0) == plan(7, 600.0)
    assert plan(7, 600.0) != plan(8, 600.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_long_plan_strikes_every_service_and_every_link_in_every_way(seed: int) -> None:
    faults = plan(seed, 600.0)
    for kind, targets in (("kill", SERVICES), ("reset", LINKS), ("delay", LINKS), ("drop", LINKS)):
        assert {fault.target for fault in faults if fault.kind == kind} == set(targets)
    assert {fault.kind for fault in faults} == {"kill", "freeze", "fill", "reset", "delay", "drop", "flood"}


@pytest.mark.parametrize("seed", range(20))
def test_all_is_over_at_its_end_and_processes_are_killed_in_the_first_part_only(seed: int) -> None:
    faults = plan(seed, 60.0)
    assert max(fault.at_s + fault.for_s for fault in faults) <= 60.0
    assert max(fault.at_s for fault in faults if fault.kind in ("kill", "fill")) <= KILLS_UNTIL * 60.0
    assert list(faults) == sorted(faults, key=lambda fault: fault.at_s)


@pytest.mark.parametrize("seed", range(20))
def test_faults_of_one_target_do_not_overlap(seed: int) -> None:
    over_at: dict[str, float] = {}
    for fault in plan(seed, 600.0):
        assert fault.at_s >= over_at.get(fault.target, 0.0) - 0.001
        over_at[fault.target] = fault.at_s + fault.for_s
