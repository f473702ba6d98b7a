"""How much of the bodies that are still being sent is whose. Pure."""

from __future__ import annotations

from collections import defaultdict


class ComingBytes:
    """Bytes of bodies that are not whole yet, by caller."""

    __slots__ = ("_by_caller",)

    def __init__(self) -> None:
        self._by_caller: defaultdict[str, int] = defaultdict(int)

    def of(self, caller: str) -> int:
        """How many are this caller's."""
        return self._by_caller.get(caller, 0)

    def change(self, caller: str, by: int) -> None:
        """So many more are kept, or fewer."""
        self._by_caller[caller] += by
        if not self._by_caller[caller]:
            del self._by_caller[caller]
