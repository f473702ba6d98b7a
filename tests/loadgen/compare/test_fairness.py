"""Bars of the smaller benches, judged on samples made up for them."""

from __future__ import annotations

from loadgen.compare import fairness, routing
from loadgen.compare.figures import Sample, report
from loadgen.record import Tally, TurnRecord
from loadgen.workload import Group, Workload


def did(runs: int, cached: int = 0) -> Tally:
    tally = Tally()
    for _ in range(runs):
        tally.add_run(5.0)
        tally.add_turn(TurnRecord(1.0, 0.1, 0.01, 100, 10, cached))
    return tally


def samples(**runs: tuple[int, ...]) -> dict[str, list[Sample]]:
    """One sample an entry of `bench fairness`; `runs` by the entry's first word, of each of its groups."""
    found = {}
    for entry in fairness.entries(Workload()):
        done = runs[entry.name.replace(" ", "_")]
        found[entry.name] = [Sample(60.0, tuple(zip(entry.groups, map(did, done), strict=True)))]
    return found


FAIR = {
    "many_alone": (100,),
    "few_alone": (24,),
    "many_and_few": (80, 20),
    "20_children_and_10_runs": (52, 48),
    "batch_alone": (70,),
    "batch_beside_40_interactive": (90, 4),
}


def test_a_fair_pool_holds_all_bars() -> None:
    assert [bar.holds for bar in fairness.bars(samples(**FAIR))] == [True, True, True]


def test_a_pool_that_shares_by_runs_misses_them() -> None:
    unfair = FAIR | {
        "many_and_few": (95, 5),
        "20_children_and_10_runs": (66, 33),
        "batch_beside_40_interactive": (95, 3),
    }
    assert [bar.holds for bar in fairness.bars(samples(**unfair))] == [False, False, False]


def test_a_small_caller_need_not_get_more_than_half_a_busy_pool() -> None:
    assert fairness.bars(samples(**FAIR | {"many_alone": (30,), "many_and_few": (18, 12)}))[0].holds


def test_affinity_may_not_be_behind_the_cache_aware_router_and_must_be_ahead_of_taking_turns() -> None:
    group = Group(8, "interactive", "i", Workload())

    def entries(luftpause: Tally, **others: Tally) -> list[bool]:
        tallies = {"luftpause": luftpause, **{name.replace("_", "-"): tally for name, tally in others.items()}}
        named = {
            "smg:cache_aware" if name == "smg" else name: [Sample(60.0, ((group, t),))] for name, t in tallies.items()
        }
        return [bar.holds for bar in routing.bars(report(named, "round-robin")["entries"])]

    assert entries(did(99, 50), smg=did(100, 51), round_robin=did(80, 10)) == [True] * 4
    assert entries(did(90, 40), smg=did(100, 51), round_robin=did(95, 45)) == [False] * 4
    assert entries(did(99, 50), round_robin=did(80, 0)) == [True] * 2
