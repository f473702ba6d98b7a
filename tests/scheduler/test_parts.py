"""What callers are held to of a replica's cache beside others."""

from __future__ import annotations

from common.ids import Caller
from scheduler.parts import NO_TAKINGS, Takings, parts_of, with_change

X, Y, Z = map(Caller, "xyz")


def takings(*callers: Caller) -> Takings:
    found = NO_TAKINGS
    for caller in callers:
        found = with_change(found, caller, resident=100)
    return found


def test_alone_a_caller_is_held_to_nothing() -> None:
    assert not parts_of(takings(X), {X: 40}, 1000.0)


def test_beside_a_lighter_caller_it_gets_an_equal_part_and_beside_a_much_lighter_one_less() -> None:
    assert dict(parts_of(takings(X, Y), {X: 20, Y: 10}, 1000.0)) == {X: 500}
    assert dict(parts_of(takings(X, Y), {X: 40, Y: 2}, 1000.0)) == {X: 200}
    assert dict(parts_of(takings(X, Y, Z), {X: 40, Y: 20, Z: 2}, 900.0)) == {X: 120, Y: 120}


def test_equals_are_held_to_nothing() -> None:
    assert not parts_of(takings(X, Y), {X: 12, Y: 10}, 1000.0)


def test_who_takes_nothing_any_more_is_forgotten() -> None:
    assert with_change(takings(X, Y), X, resident=-100) == takings(Y)
    assert with_change(takings(Y), X) == takings(Y)
