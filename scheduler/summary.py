"""The status of a state, for people and other services. Pure."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from common.ids import Caller, Model, ReplicaName
from scheduler.admission import obstacle
from scheduler.budgets.windows import Window, aged
from scheduler.events import Phase, RunClass
from scheduler.pools import load_key
from scheduler.state import Lanes, Replica, State


class LimitSummary(Struct, frozen=True):
    """One rate limit window of a replica, in its dimension's unit."""

    dimension: str
    limit: float
    """What it holds when full."""
    left: float
    """Turns in flight taken off."""
    in_flight: float
    """What turns in flight have taken."""
    fixed: bool
    """Whether it is full again at once."""
    full_in_s: float
    """Seconds until then if nothing more is taken."""
    period_s: float
    """Seconds in which it is refilled from empty."""


class ReplicaSummary(Struct, frozen=True):
    """One replica."""

    name: ReplicaName
    kind: Literal["generative", "one-shot"]
    models: tuple[Model, ...] | None
    """None: not known yet."""
    healthy: bool
    in_flight: int
    capacity: int | None
    """Most turns in flight it gets now; None: not limited."""
    reserved: int
    """Places kept for interactive runs that are paused."""
    engine_running: int | None
    engine_waiting: int | None
    kv_usage: float | None
    """0 to 1."""
    limits: tuple[LimitSummary, ...] = ()
    rests_s: float = 0.0
    """It gets no turn for so long, after a 429 or failures in a row."""
    batch_prefixes: str | None = None
    """What batch work does with them there; None where the size of the KV cache is not known."""


class HeldSummary(Struct, frozen=True):
    """The held turns of one class and caller that wait for the same reason."""

    run_class: RunClass
    caller: Caller
    turns: int
    oldest_wait_s: float
    reason: str
    """Why they are not placed, in words."""


class RunSummary(Struct, frozen=True):
    """How many runs of a class are in a phase."""

    phase: Phase
    run_class: RunClass
    runs: int


class Summary(Struct, frozen=True):
    """The status at one moment. Replicas by name, held turns by class, caller and reason, runs by class and phase."""

    replicas: tuple[ReplicaSummary, ...]
    held: tuple[HeldSummary, ...]
    runs: tuple[RunSummary, ...]


def summarize(state: State, at: float) -> Summary:
    """The status at `at` (seconds, the host's clock). Its cost grows with replicas and held turns, not with runs."""
    return Summary(
        replicas=tuple(_replica(state, name, at) for name in sorted(state.replicas)),
        held=_held(state, at),
        runs=tuple(
            RunSummary(phase, run_class, state.run_counts[3 * run_class + phase - 1])
            for run_class in RunClass
            for phase in Phase
        ),
    )


def _replica(state: State, name: ReplicaName, at: float) -> ReplicaSummary:
    replica = state.replicas[name]
    budget = replica.budget
    return ReplicaSummary(
        name=name,
        kind="one-shot" if replica.one_shot else "generative",
        models=replica.models,
        healthy=replica.healthy,
        in_flight=replica.in_flight,
        capacity=replica.capacity,
        reserved=replica.reserved,
        engine_running=replica.running,
        engine_waiting=replica.waiting,
        kv_usage=replica.kv_usage,
        limits=tuple(_limit(window, at) for window in budget.windows) if budget is not None else (),
        rests_s=max(0.0, budget.open_at - at) if budget is not None else 0.0,
        batch_prefixes=replica.way.words if replica.kv_tokens is not None else None,
    )


def _limit(window: Window, at: float) -> LimitSummary:
    window = aged(window, at)
    if window.is_fixed:
        full_in_s = max(0.0, window.resets_at - at) if window.resets_at is not None else 0.0
    else:
        full_in_s = (window.capacity - window.level) / window.rate
    return LimitSummary(
        dimension=window.dimension.name.lower(),
        limit=window.capacity,
        left=max(0.0, window.level),
        in_flight=window.flying,
        fixed=window.is_fixed,
        full_in_s=full_in_s,
        period_s=window.period_s,
    )


def _held(state: State, at: float) -> tuple[HeldSummary, ...]:
    turns: dict[tuple[RunClass, Caller, str], tuple[int, float]] = {}
    places: list[tuple[Lanes, tuple[ReplicaName, ...]]]
    places = [(lanes, (name,)) for name, lanes in state.homes.items()]
    places += [(pool.lanes, pool.members) for pool in state.pools.values()]
    for lanes, members in places:
        for run_class in RunClass:
            if not lanes[run_class].queues:
                continue
            best_off = _best_off(state, members)
            for caller, queue in lanes[run_class].queues.items():
                reason = _reason(state, best_off, run_class, caller)
                count, oldest = turns.get((run_class, caller, reason), (0, at))
                arrived_at = min(state.turns[key[-1]].arrived_at for key in queue)
                turns[run_class, caller, reason] = (count + len(queue), min(oldest, arrived_at))
    return tuple(
        HeldSummary(run_class, caller, count, at - oldest, reason)
        for (run_class, caller, reason), (count, oldest) in sorted(turns.items())
    )


def _best_off(state: State, members: tuple[ReplicaName, ...]) -> Replica | None:
    """The least loaded of the healthy `members`; of the others, where there is none."""
    replicas = (state.replicas[name] for name in members)
    return min(replicas, key=lambda replica: (not replica.healthy, load_key(replica)), default=None)


def _reason(state: State, best_off: Replica | None, run_class: RunClass, caller: Caller) -> str:
    """Why turns of a caller wait: what the replica says that is best off of those that they may go to."""
    if not state.is_open:
        return "the scheduler has just started and hears from dataplanes first"
    if best_off is None:
        return "no replica is known to serve the model"
    return obstacle(best_off, run_class, caller) or "another turn goes first"
