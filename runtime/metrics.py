"""What the runtime counts. Plain numbers, taken from records as they become durable; `exposition` shows them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from common.histogram import Histogram
from runtime.records import AnyRecord, Ended, LostTrack, Replied, Returned, RunClass, State
from runtime.run import RunState
from runtime.store import Append, Store

TURN_BOUNDS_S = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
CALL_BOUNDS_S = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600)
COMMIT_BOUNDS_S = (0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)

CallOutcome = Literal["ok", "failed", "unknown", "refused"]
"""`unknown`: whether it took effect; `refused`: it was not made, for its arguments or a limit."""
CALL_OUTCOMES: tuple[CallOutcome, ...] = get_args(CallOutcome)
ENDS = tuple(state for state in State if state.is_end)


@dataclass(slots=True)
class Metrics:
    """The numbers of one runtime since its start."""

    turns: Counter[tuple[RunClass, bool]] = field(default_factory=Counter)
    """By class, and whether there was a reply."""
    turn_s: dict[RunClass, Histogram] = field(default_factory=lambda: {c: Histogram(TURN_BOUNDS_S) for c in RunClass})
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    calls: Counter[CallOutcome] = field(default_factory=Counter)
    call_s: Histogram = field(default_factory=lambda: Histogram(CALL_BOUNDS_S))
    spawned: int = 0
    ends: Counter[State] = field(default_factory=Counter)
    recovered: int = 0
    """Runs that were found unfinished at the start."""
    commit_s: Histogram = field(default_factory=lambda: Histogram(COMMIT_BOUNDS_S))
    failed_commits: int = 0

    def observe(self, run: RunState, record: AnyRecord) -> None:
        """`record` has become durable, of a run that was as `run` before."""
        match record:
            case Replied():
                self.turns[run.order.run_class, True] += 1
                self.turn_s[run.order.run_class].add(record.duration_s)
                self.prompt_tokens += record.prompt_tokens
                self.completion_tokens += record.completion_tokens
                self.cached_tokens += record.cached_tokens
                self.calls["refused"] += sum(call.refusal is not None for call in record.calls)
            case Returned():
                self.calls["failed" if record.failed else "ok"] += 1
                self.call_s.add(record.duration_s)
            case LostTrack():
                self.calls["unknown"] += 1
            case Ended():
                self.ends[record.state] += 1
            case _:
                pass


class MeasuredStore:
    """A store whose commits are timed. See `store.Store`."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self.read, self.runs, self.get = store.read, store.runs, store.get
        self.forget, self.close, self.revive = store.forget, store.close, store.revive

    @property
    def broken(self) -> str | None:
        """See `Store.broken`."""
        return self._store.broken

    @property
    def wants_room(self) -> bool:
        """See `Store.wants_room`."""
        return self._store.wants_room

    async def commit(
        self,
        appends: Sequence[Append] = (),
        puts: Mapping[str, bytes] | None = None,
        expects: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """See `Store.commit`."""
        began = time.perf_counter()
        try:
            await self._store.commit(appends, puts, expects)
        except BaseException:
            self._metrics.failed_commits += 1
            raise
        self._metrics.commit_s.add(time.perf_counter() - began)
