"""The state at the start. Pure. Read next: `state`."""

from __future__ import annotations

from typing import Any

from immutables import Map

from common.ids import Model
from common.pool import Replica as PoolReplica
from scheduler.budgets.configured import budget_of, prices_of
from scheduler.budgets.line import EMPTY_LINE
from scheduler.budgets.prediction import Histories
from scheduler.budgets.spend import NOTHING_SPENT, Spends
from scheduler.state import GRACE_S, MODELS_WITHIN_S, Draft, Replica, State, rebuild_pools


def initial(replicas: tuple[PoolReplica, ...], at: float, first_sequence: int, spends: Spends = NOTHING_SPENT) -> State:
    """The state at the start `at` (seconds, the host's clock) with the pool's replicas.

    `first_sequence` is above all sequences that schedulers before this one issued. Nothing is placed on a replica
    before its first probe, and nowhere before GRACE_S have passed. `spends` is what the ledger had.
    """
    known = Map(
        {
            replica.name: Replica(
                name=replica.name,
                one_shot=replica.kind == "one-shot",
                max_in_flight=replica.max_in_flight,
                capacity=replica.max_in_flight,
                models_learned=replica.models is None,
                models=None if replica.models is None else tuple(map(Model, replica.served(replica.models))),
                budget=budget_of(replica, at),
                prices=prices_of(replica),
            )
            for replica in replicas
        }
    )
    empty: Map[Any, Any] = Map()
    draft = Draft(
        now=at,
        opens_at=at + GRACE_S,
        is_open=False,
        sequence=first_sequence,
        arrivals=0,
        replicas=known,
        homes=empty,
        pools=empty,
        unknown_models=(0, 0),
        models_due_at=at + MODELS_WITHIN_S,
        runs=empty,
        turns=empty,
        shares=empty,
        tool_calls=empty,
        tool_call_minutes=empty,
        timers=empty,
        orphaned=empty,
        absent=empty,
        ended_runs=empty,
        held=(0, 0),
        histories=Histories() if any(replica.budget for replica in known.values()) else None,
        dry=empty,
        line=EMPTY_LINE,
        spends=spends,
        habits=empty,
        givens=empty,
        run_counts=[0] * 6,
    )
    rebuild_pools(draft)
    return draft.freeze()
