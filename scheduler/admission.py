"""Which replica has room for a turn, and how a probe moves its limits. Pure.

- A replica whose engine reports no queue is not limited by it. Once it queues, it is limited to what its engine runs
  then. While a limit is in force and nothing queues, it is probed upwards when all its places are taken; otherwise a
  burst of completions at the moment of a probe would leave it low for ever. It is lifted when the replica is empty.
- Where the size of the KV cache is known, batch work is limited by what fits into it, beside the interactive runs: so
  many runs that all find their prefixes again, or so many turns as can be in flight (`economy` tells which pays). A
  queue in front of a cache that is not full may be prefill that waits for its step; one that is there at two probes
  in a row may not grow, and one before an engine that never runs more is taken for a want of room.
- A replica whose rate limits do not fit the next held turn now has no room for it, nor for those behind it (`limited`).
- Batch turns leave free the places of interactive runs that are expected back. What is kept never stops batch work
  altogether: where no batch work is, one turn may begin, and after STARVES_AFTER interactive turns it goes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec.structs import replace

from common.ids import Caller
from scheduler.economy import SHARE
from scheduler.events import ReplicaProbed, RunClass
from scheduler.parts import FITS_FROM, NO_PARTS, NOTHING, parts_of
from scheduler.state import STARVES_AFTER, Replica
from scheduler.ways import NEW_TRIAL, Givens, looked_at, next_way

PROBE_UP = 4
"""A full limit without a queue grows by a quarter a probe, at least by one: 2 s a probe, so it doubles in 8 s."""
FULL_FROM = 0.8
"""Share of the KV cache in use from which a queue is taken for a want of room."""
RUN_SHARE_AT_FIRST = 1 / 16
"""Of the KV cache: a run's size until the first ones are known."""
SEATS_SEEN = 3
"""So many probes in a row must see as many requests run as ever, and others wait, before the engine is taken to run no
more of them, whatever room its KV cache has (vLLM's --max-num-seqs, SGLang's --max-running-requests)."""
KEPT_PER_PROBE = 0.8
"""What is left after a probe of the room that interactive runs took before: a tenth after 20 s."""


class Obstacle(StrEnum):
    """Why a replica takes no turn now."""

    ILL = "the replica is not healthy"
    RATE_LIMIT = "the replica's rate limit does not fit the next turn"
    FULL = "the replica runs as many turns as it may"
    PLACE_KEPT = "the replica keeps its last places for interactive runs that are expected back"
    RUNS_KEPT = "the replica keeps its KV cache for the runs that it works on"
    PART_TAKEN = "the caller has its part of the replica beside a caller with fewer runs"
    CACHE_FULL = "turns in flight and interactive runs fill the replica's KV cache"


_FULL_OF_BATCH = (Obstacle.FULL, Obstacle.PLACE_KEPT, Obstacle.RUNS_KEPT, Obstacle.CACHE_FULL)


def has_room(replica: Replica, run_class: RunClass, caller: Caller | None = None, *, resident: bool = False) -> bool:
    """Whether `replica` takes one more turn of `run_class` now, of this caller or (None) of any that is not held to a
    part; `resident`: of a run whose prefix it keeps."""
    return obstacle(replica, run_class, caller, resident=resident) is None


def within_part(replica: Replica, caller: Caller) -> bool:
    """Whether one more batch turn of the caller, of a run that is not resident, fits its part of the replica."""
    limit = replica.parts.get(caller)
    if limit is None:
        return True
    taken = replica.takings.get(caller, NOTHING)
    tokens = taken.resident if replica.keeps else taken.flying
    return not tokens or tokens + FITS_FROM * expected_tokens(replica) <= limit


def obstacle(
    replica: Replica, run_class: RunClass, caller: Caller | None = None, *, resident: bool = False
) -> Obstacle | None:
    """What keeps `replica` from taking one more turn of `run_class` now; see `has_room`."""
    if not replica.healthy:
        return Obstacle.ILL
    if replica.dry_for is not None and run_class >= replica.dry_for:
        return Obstacle.RATE_LIMIT
    in_flight, capacity = replica.in_flight, replica.capacity
    if run_class is RunClass.INTERACTIVE or owes_batch(replica):
        if capacity is None:
            return None
        # Where batch turns went in as they fit, what queues is interactive.
        by_kv = replica.kv_tokens is not None and replica.limit == capacity
        taken = in_flight - replica.batch_in_flight if by_kv else in_flight
        return None if taken < capacity else Obstacle.FULL
    if capacity is not None:
        if in_flight >= capacity:
            return Obstacle.FULL
        if in_flight + replica.reserved >= capacity and replica.batch_in_flight:
            return Obstacle.PLACE_KEPT
    kv_tokens = replica.kv_tokens
    if kv_tokens is None:
        return None
    in_part = caller is None or (resident and replica.keeps) or within_part(replica, caller)
    if not in_part:
        return Obstacle.PART_TAKEN
    if replica.keeps:
        interactive = max(replica.interactive_tokens, replica.interactive_kept)
        in_use = interactive + replica.batch_tokens + expected_tokens(replica)
        fits = resident or not replica.batch_tokens or in_use <= SHARE[replica.way] * kv_tokens
        return None if fits else Obstacle.RUNS_KEPT
    in_use = replica.interactive_tokens + replica.batch_flight_tokens + expected_tokens(replica)
    return None if not replica.batch_in_flight or in_use <= SHARE[replica.way] * kv_tokens else Obstacle.CACHE_FULL


def owes_batch(replica: Replica) -> bool:
    """Whether the next place on `replica` is a batch turn's, if one waits for it."""
    return replica.since_batch >= STARVES_AFTER and not replica.batch_in_flight


def expected_tokens(replica: Replica) -> int:
    """What a turn of an unknown run is taken to hold of the KV cache; 0 where nothing is known."""
    return int(replica.economy.context_tokens or (replica.kv_tokens or 0) * RUN_SHARE_AT_FIRST)


def probed(replica: Replica, probe: ReplicaProbed) -> Replica:
    """`replica` with what the probe tells of its health and load, and its limits by it (its models are untouched)."""
    seats, seats_taken = _seats(replica, probe)
    limit = _limit(replica, probe, seats_taken >= SEATS_SEEN)
    limits = [value for value in (limit, replica.max_in_flight) if value is not None]
    kv_tokens = probe.kv_tokens or replica.kv_tokens
    interactive_kept = max(replica.interactive_tokens, replica.interactive_kept * KEPT_PER_PROBE)
    return replace(
        replica,
        is_probed=True,
        healthy=probe.healthy,
        running=probe.running,
        waiting=probe.waiting,
        kv_usage=probe.kv_usage,
        seats=seats,
        seats_taken=seats_taken,
        kv_tokens=kv_tokens,
        limit=limit,
        capacity=min(limits, default=None),
        interactive_kept=interactive_kept,
    )


def tried(replica: Replica, givens: Givens, at: float) -> tuple[Replica, Givens]:
    """`replica` on the way that batch work goes from here on, and what is known of the ways on replicas like it."""
    economy, way = replica.economy, replica.way
    is_full = obstacle(replica, RunClass.BATCH) in _FULL_OF_BATCH
    trial, givens = looked_at(replica.trial, givens, way, economy, at, is_full=is_full)
    following = next_way(givens, economy, replica.kv_tokens or 0, replica.interactive_kept, way, at=at)
    return replace(replica, way=following, trial=trial if following is way else NEW_TRIAL), givens


def parted(replica: Replica, batch_runs: Mapping[Caller, int]) -> Replica:
    """`replica` with its callers held to their parts; `batch_runs`: those at work of each of them."""
    tokens = SHARE[replica.way] * (replica.kv_tokens or 0) - replica.interactive_kept
    return replace(replica, parts=parts_of(replica.takings, batch_runs, tokens) if replica.kv_tokens else NO_PARTS)


def _seats(replica: Replica, probe: ReplicaProbed) -> tuple[int, int]:
    """`seats` and `seats_taken` of the replica, with this probe."""
    running = probe.running or 0
    if running > replica.seats and probe.waiting:
        return running, 0
    if running > replica.seats or replica.in_flight == 0:
        return 0, 0
    if replica.seats_taken >= SEATS_SEEN or not probe.waiting:
        return replica.seats, replica.seats_taken
    return replica.seats, replica.seats_taken + 1 if running == replica.seats else 0


def _limit(replica: Replica, probe: ReplicaProbed, has_seats: bool) -> int | None:
    """`has_seats`: the engine runs so many requests and no more."""
    if not probe.healthy:
        return replica.limit
    if probe.waiting is None:
        return None
    running, limit = probe.running or 0, replica.limit
    if not has_seats and replica.kv_tokens is not None and probe.kv_usage is not None and probe.kv_usage < FULL_FROM:
        # Prefill that waits for its step is gone at the next probe.
        return running + probe.waiting if probe.waiting and replica.waiting else None
    if probe.waiting > 0:
        return max(1, running)
    if limit is None or replica.in_flight == 0:
        return None
    return limit + max(1, limit // PROBE_UP) if replica.in_flight >= limit else limit
