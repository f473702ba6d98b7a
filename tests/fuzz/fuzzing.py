"""What all fuzz tests share: how many inputs, from which seeds, and bytes that are nearly right.

pytest tests/fuzz --fuzz-inputs 100000

Hypothesis chooses seeds, and a seed makes a round of inputs: to draw each of them with Hypothesis costs more than most
of what is tried here. What fails is shown with the seed of its round, which plays it again: --fuzz-seed SEED.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")

HANG_S = 20
"""No input may take as long, whatever else the machine does."""
ROUND = 50
"""How many inputs a seed makes, one after the other."""


def fuzz(
    request: pytest.FixtureRequest, make: Callable[[random.Random], T], run: Callable[[T], None], each: int = 1
) -> None:
    """Runs `run` on as many of what `make` makes as were asked for; one of them counts as `each`."""
    count = max(1, request.config.getoption("--fuzz-inputs") // each)
    again = request.config.getoption("--fuzz-seed")

    def play(seed: int) -> None:
        chance = random.Random(seed)
        for number in range(ROUND if again is not None else min(ROUND, count)):
            value = make(chance)
            try:
                with _no_hang():
                    run(value)
            except Exception as error:
                error.add_note(f"input {number} of --fuzz-seed {seed}: {value!r}")
                raise

    if again is not None:
        play(again)
        return
    few = settings(
        max_examples=-(-count // ROUND),
        database=None,
        phases=[Phase.generate],  # a seed cannot be made smaller
        suppress_health_check=list(HealthCheck),
    )
    few(given(st.integers(0, 2**63 - 1))(play))()


@contextlib.contextmanager
def _no_hang() -> Iterator[None]:
    def hung(*_: object) -> None:
        raise AssertionError("it hung")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def some(chance: random.Random, most: int, make: Callable[[random.Random], T]) -> list[T]:
    """At most `most` of what `make` makes."""
    return [make(chance) for _ in range(chance.randint(0, most))]


def either(chance: random.Random, known: Sequence[bytes], most: int) -> bytes:
    """One of `known`, or seldom at most `most` bytes."""
    return chance.choice(known) if chance.random() < 0.8 else some_bytes(chance, most)


def some_bytes(chance: random.Random, most: int) -> bytes:
    """Any bytes."""
    return chance.randbytes(chance.randint(0, most))


def some_text(chance: random.Random, most: int) -> str:
    """Any text that is Unicode: without halves of surrogate pairs."""
    return "".join(some(chance, most, _character))


def _character(chance: random.Random) -> str:
    match chance.randrange(4):
        case 0:
            return chr(chance.randrange(0x80))
        case 1:
            return chr(chance.randrange(0x80, 0x300))
        case 2:
            return chr(chance.randrange(0xE000, 0x110000))
        case _:
            return chance.choice("\x00\n\r\t\"'\\{}[]=:;,.#\x7f\x85\u00a0\u2028\ufeff\uffff")


def mutated(chance: random.Random, data: bytes) -> bytes:
    """`data` as it is, or with a few bytes replaced, inserted or taken out."""
    for _ in range(chance.choice((0, 0, 1, 1, 2, 3))):
        at = chance.randint(0, len(data))
        data = data[:at] + some_bytes(chance, 4) + data[at + chance.randint(0, 4) :]
    return data


def cut(chance: random.Random, data: bytes) -> list[bytes]:
    """`data` in parts."""
    places: list[Any] = some(chance, 6, lambda any_place: any_place.randint(0, len(data)))
    return [data[a:b] for a, b in pairwise([0, *sorted(places), len(data)]) if a < b]
