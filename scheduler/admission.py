"""Which replica has room for a turn, and how a probe moves its limit. Pure.

- A replica whose engine reports no queue is not limited. Once it queues, it is limited to what its engine runs then.
- While a limit is in force and nothing queues, it is probed upwards when all its places are taken; otherwise a burst of
  completions at the moment of a probe would leave it low for ever. It is lifted when the replica is empty.
- A replica whose rate limits do not fit the next held turn now has no room for it, nor for those behind it (`limited`).
- Batch turns leave free the places of interactive runs that are paused and expected back. Reservations alone never stop
  batch work: where no batch turn is in flight, one may take a reserved place.
"""

from __future__ import annotations

from msgspec.structs import replace

from scheduler.events import ReplicaProbed, RunClass
from scheduler.state import Replica

PROBE_UP = 4
"""A full limit without a queue grows by a quarter a probe, at least by one: 2 s a probe, so it doubles in 8 s."""


def has_room(replica: Replica, run_class: RunClass) -> bool:
    """Whether `replica` takes one more turn of `run_class` now."""
    if not replica.healthy:
        return False
    if replica.dry_for is not None and run_class >= replica.dry_for:
        return False
    capacity = replica.capacity
    if capacity is None:
        return True
    if replica.in_flight >= capacity:
        return False
    if run_class is RunClass.INTERACTIVE:
        return True
    return replica.in_flight + replica.reserved < capacity or not replica.batch_in_flight


def probed(replica: Replica, probe: ReplicaProbed) -> Replica:
    """`replica` with what the probe tells of its health and load, and its limit by it (its models are untouched)."""
    limit = _limit(replica, probe)
    limits = [value for value in (limit, replica.max_in_flight) if value is not None]
    return replace(
        replica,
        healthy=probe.healthy,
        running=probe.running,
        waiting=probe.waiting,
        kv_usage=probe.kv_usage,
        limit=limit,
        capacity=min(limits, default=None),
    )


def _limit(replica: Replica, probe: ReplicaProbed) -> int | None:
    if not probe.healthy:
        return replica.limit
    if probe.waiting is None:
        return None
    if probe.waiting > 0:
        return max(1, probe.running or 0)
    limit = replica.limit
    if limit is None or replica.in_flight == 0:
        return None
    return limit + max(1, limit // PROBE_UP) if replica.in_flight >= limit else limit
