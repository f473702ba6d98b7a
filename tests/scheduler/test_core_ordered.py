"""The sorted sequence against a sorted list."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ordered import EMPTY


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=400))
def test_it_holds_what_a_sorted_list_would(changes: list[tuple[bool, int]]) -> None:
    ordered, expected = EMPTY, set[tuple[int, str]]()
    for add, number in changes:
        key = (number, "x")
        if add and key not in expected:
            ordered = ordered.add(key)
            expected.add(key)
        elif add and (number + 1, "x") not in expected:
            ordered = ordered.move(key, (number + 1, "x"))
            expected = expected - {key} | {(number + 1, "x")}
        elif not add and key in expected:
            ordered = ordered.remove(key)
            expected.remove(key)
        assert list(ordered) == sorted(expected)
        assert len(ordered) == len(expected)
        assert bool(ordered) == bool(expected)
        if expected:
            assert ordered.first() == min(expected)


def test_ten_thousand_elements_lie_in_few_chunks_whatever_the_order() -> None:
    ordered = EMPTY
    for number in range(10_000):
        ordered = ordered.add((number * 7919 % 10_007, number))
    assert len(ordered.chunks) < 10_000 / 16
    for key in list(ordered)[::2]:
        ordered = ordered.remove(key)
    assert len(ordered) == 5_000
    assert len(ordered.chunks) < 5_000 / 8
