"""What all fuzz tests share: how many inputs, and bytes that are nearly right.

pytest tests/fuzz --fuzz-inputs 100000
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

T = TypeVar("T")

HANG_S = 10.0
"""No input may take as long, whatever else the machine does."""


def fuzz(request: pytest.FixtureRequest, inputs: st.SearchStrategy[T], run: Callable[[T], None], each: int = 1) -> None:
    """Runs `run` on as many of `inputs` as were asked for; one of them counts as `each`."""
    count = max(1, request.config.getoption("--fuzz-inputs") // each)

    @settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
    @given(inputs)
    def play(value: T) -> None:
        began_at = time.monotonic()
        run(value)
        assert time.monotonic() - began_at < HANG_S, "it hung"

    play()


def mutated(right: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """What `right` gives, as it is, or with a few bytes replaced, inserted or taken out."""
    edit = st.tuples(st.integers(0, 4000), st.integers(0, 4), st.binary(max_size=4))

    def apply(made: tuple[bytes, list[tuple[int, int, bytes]]]) -> bytes:
        data, edits = made
        for place, removed, inserted in edits:
            at = place % (len(data) + 1)
            data = data[:at] + inserted + data[at + removed :]
        return data

    return st.tuples(right, st.lists(edit, max_size=3)).map(apply)


cuts = st.lists(st.integers(0, 4000), max_size=6)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in parts."""
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds) if a < b]
