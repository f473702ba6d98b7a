"""What the engine saw: requests by their `x-request-id` and how they ended, so that tests can prove that no turn ran
twice.

Pure; memory is bounded: the oldest ids are forgotten.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any, Literal, get_args

IDS_MAX = 200_000
"""Ids remembered; at two hundred bytes each, 40 MB at most."""
DOUBLED_SHOWN_MAX = 100

Outcome = Literal["served", "aborted", "faulted", "refused"]
"""`aborted`: the client left; `faulted`: by script; `refused`: with a 4xx of the engine's own."""


class Ledger:
    """Counts of one engine."""

    def __init__(self) -> None:
        self._open = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._times_seen: OrderedDict[str, int] = OrderedDict()
        self._doubled: OrderedDict[str, None] = OrderedDict()
        self._doubled_count = 0

    def opened(self, request_id: str | None) -> None:
        """A request arrived."""
        self._open += 1
        if request_id is None:
            return
        seen = self._times_seen.get(request_id, 0)
        self._times_seen[request_id] = seen + 1
        if seen == 1:
            self._doubled_count += 1
            if len(self._doubled) < DOUBLED_SHOWN_MAX:
                self._doubled[request_id] = None
        if len(self._times_seen) > IDS_MAX:
            self._times_seen.popitem(last=False)

    def closed(self, outcome: Outcome) -> None:
        """A request that was opened has ended."""
        self._open -= 1
        self._outcomes[outcome] += 1

    def seen(self, request_id: str) -> int:
        """Times that this id arrived."""
        return self._times_seen.get(request_id, 0)

    def stats(self) -> dict[str, Any]:
        """Open and ended requests, and ids seen more than once (the first hundred, and their number)."""
        ended: dict[str, Any] = {outcome: self._outcomes[outcome] for outcome in get_args(Outcome)}
        return {"open": self._open, **ended, "doubled": self._doubled_count, "doubled_ids": list(self._doubled)}
