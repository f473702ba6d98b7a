"""A persistent sorted sequence of distinct tuples. Pure.

Two levels of plain tuples, so that every copy is a memory copy of pointers in C: a change costs a binary search and the
copy of one chunk and of the list of chunks, some microseconds up to 100,000 elements.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

Key = tuple[Any, ...]
"""Elements compare as tuples do; those of one sequence have the same shape."""

_CHUNK_MAX = 64
_CHUNK_MIN = 16


class Ordered(Struct, frozen=True, gc=False):
    """Sorted, immutable. `EMPTY` is where one starts."""

    chunks: tuple[tuple[Key, ...], ...] = ()
    """Never empty ones, in order; a chunk is in order too."""

    def __bool__(self) -> bool:
        return bool(self.chunks)

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    def __iter__(self) -> Iterator[Key]:
        for chunk in self.chunks:
            yield from chunk

    def first(self) -> Key:
        """The least element. The sequence must not be empty."""
        return self.chunks[0][0]

    def count_before(self, key: Key) -> int:
        """How many elements are less than `key`, whether it is in it or not."""
        at = max(bisect_right(self.chunks, (key,)) - 1, 0)
        return sum(map(len, self.chunks[:at])) + (bisect_left(self.chunks[at], key) if self.chunks else 0)

    def add(self, key: Key) -> Ordered:
        """With `key`, which must not be in it."""
        chunks = self.chunks
        if not chunks:
            return Ordered(((key,),))
        at = max(bisect_right(chunks, (key,)) - 1, 0) if len(chunks) > 1 else 0
        grown = list(chunks[at])
        insort(grown, key)
        if len(grown) <= _CHUNK_MAX:
            return Ordered((*chunks[:at], tuple(grown), *chunks[at + 1 :]))
        half = len(grown) // 2
        return Ordered((*chunks[:at], tuple(grown[:half]), tuple(grown[half:]), *chunks[at + 1 :]))

    def remove(self, key: Key) -> Ordered:
        """Without `key`, which must be in it."""
        chunks = self.chunks
        at = 0
        if len(chunks) > 1:
            at = bisect_right(chunks, (key,))
            if at == len(chunks) or chunks[at][0] != key:
                at -= 1
        chunk = chunks[at]
        inner = bisect_left(chunk, key)
        assert chunk[inner] == key, "removed an element that is not there"
        rest = (*chunk[:inner], *chunk[inner + 1 :])
        if len(rest) >= _CHUNK_MIN or len(chunks) == 1:
            return Ordered((*chunks[:at], rest, *chunks[at + 1 :]) if rest else ())
        # A small chunk joins its neighbour, so that the list of chunks stays short; they are split again if too long.
        left = at - 1 if at else 0
        joined = chunks[left] + rest if at else rest + chunks[1]
        parts = (joined,) if len(joined) <= _CHUNK_MAX else (joined[: len(joined) // 2], joined[len(joined) // 2 :])
        return Ordered((*chunks[:left], *parts, *chunks[left + 2 :]))

    def move(self, old: Key, new: Key) -> Ordered:
        """With `new` in place of `old`, as `remove` and `add`; cheaper while all fit in one chunk."""
        if len(self.chunks) != 1:
            return self.remove(old).add(new)
        chunk = list(self.chunks[0])
        at = bisect_left(chunk, old)
        assert chunk[at] == old, "moved an element that is not there"
        del chunk[at]
        insort(chunk, new)
        return Ordered((tuple(chunk),))


EMPTY = Ordered()
