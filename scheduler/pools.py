"""Which replicas serve a model, and which of them have room, in order of load. Pure; works on a draft.

`put_replica` and `set_models` are the only ways to change a replica. The members of a small pool are compared when one
is chosen, which is cheaper than keeping them in order; those of a large one are kept in order, so that choosing does
not look at all of them.
"""

from __future__ import annotations

from functools import reduce

from msgspec.structs import replace

from common.ids import Caller, Model, ReplicaName
from scheduler.admission import has_room
from scheduler.events import RunClass
from scheduler.ordered import EMPTY, Key, Ordered
from scheduler.state import Draft, Pool, PoolKey, Replica, Run, Turn, rebuild_pools


def pool_key(turn: Turn) -> PoolKey:
    """The pool of a turn."""
    return turn.request.one_shot, turn.request.model


def pool_members(draft: Draft, turn: Turn) -> tuple[ReplicaName, ...]:
    """The replicas that serve a turn's model, as far as is known."""
    pool = draft.pools.get(pool_key(turn))
    return pool.members if pool is not None else ()


def may_be_served(draft: Draft, key: PoolKey) -> bool:
    """Whether a replica serves the pool's model, or may still tell that it does."""
    pool = draft.pools.get(key)
    return bool(pool is not None and pool.members) or (
        draft.models_due_at is not None and bool(draft.unknown_models[key[0]])
    )


def serves(replica: Replica, key: PoolKey) -> bool:
    """Whether the replica is a member of the pool."""
    return replica.one_shot == key[0] and replica.models is not None and key[1] in replica.models


def is_ill(replica: Replica) -> bool:
    """Whether it is known not to be healthy."""
    return replica.is_probed and not replica.healthy


def pinned_home(draft: Draft, run: Run, key: PoolKey) -> Replica | None:
    """The replica that the run's next turn must go to: its home while it generates or is paused, if that is not ill and
    serves the model, as far as is known: after a restart it is not, and the run waits for its home's first probe. None:
    the turn may go anywhere. A home with rate limits is only preferred: what it lacks, another one may have."""
    if run.home is None or not (run.in_flight or run.paused):
        return None
    home = draft.replicas.get(run.home)
    if home is None or home.budget is not None or is_ill(home):
        return None
    may_serve = home.models is None and home.one_shot == key[0] and draft.models_due_at is not None
    return home if serves(home, key) or may_serve else None


def is_behind_others(draft: Draft, turn: Turn) -> bool:
    """Whether turns of its caller and class wait for any of its pool. Then no member has room for it, unless its run is
    resident there: no decision leaves a turn waiting that could be placed. One that made room does not know yet."""
    pool = draft.pools.get(pool_key(turn))
    if pool is None or draft.roomier:
        return False
    return turn.request.caller in pool.lanes[turn.request.run_class].queues


def choose(draft: Draft, turn: Turn, run: Run | None, *, resident: bool) -> Replica | None:
    """The replica for a turn that may go anywhere: its run's home if that has room, else the least loaded with room."""
    if not draft.is_open:
        return None
    key, run_class, caller = pool_key(turn), turn.request.run_class, turn.request.caller
    if run is not None and run.home is not None:
        home = draft.replicas.get(run.home)
        if home is not None and serves(home, key) and has_room(home, run_class, caller, resident=resident):
            return home
    pool = draft.pools.get(key)
    if pool is None or is_behind_others(draft, turn):
        return None
    if not pool.is_indexed:
        members = [draft.replicas[name] for name in pool.members]
        return min((member for member in members if has_room(member, run_class, caller)), key=load_key, default=None)
    reindex(draft)
    pool = draft.pools[key]
    indexes = (pool.roomy, pool.tight) if run_class is RunClass.INTERACTIVE else (pool.roomy,)
    taking = (_first_that_takes(draft, index, run_class, caller) for index in indexes)
    return min((replica for replica in taking if replica is not None), key=load_key, default=None)


def _first_that_takes(draft: Draft, index: Ordered, run_class: RunClass, caller: Caller) -> Replica | None:
    """All in an index have room; a caller that is held to a part of some is what is looked for."""
    replicas = (draft.replicas[key[2]] for key in index)
    return next((replica for replica in replicas if has_room(replica, run_class, caller)), None)


def load_key(replica: Replica) -> Key:
    """The order of replicas to choose from: by load, which is what it runs and what is expected back; among equals
    the one that got nothing for longest comes first."""
    return (replica.in_flight + replica.paused, replica.last_sequence, replica.name)


def put_replica(draft: Draft, replica: Replica) -> None:
    """Sets a replica; its models must be the same. The indexes of its pools follow in `reindex`, once a decision."""
    if replica.indexed:
        draft.touched.setdefault(replica.name, draft.replicas[replica.name])
    draft.replicas = draft.replicas.set(replica.name, replica)


def reindex(draft: Draft) -> None:
    """Sets the place of all changed replicas in the indexes of their pools."""
    for name, old in draft.touched.items():
        new = draft.replicas[name]
        before, after = _index_entry(old), _index_entry(new)
        if before == after:
            continue
        for model in new.models or ():
            pool = draft.pools[new.one_shot, model]
            if pool.is_indexed:
                draft.pools = draft.pools.set((new.one_shot, model), _indexed(_unindexed(pool, before), after))
    draft.touched.clear()


def set_models(draft: Draft, replica: Replica, models: tuple[Model, ...]) -> None:
    """Sets the models that a replica serves, and the pools by them."""
    draft.replicas = draft.replicas.set(replica.name, replace(replica, models=models))
    rebuild_pools(draft)
    for key in set(draft.pools):
        pool = draft.pools[key]
        empty = Pool(pool.members, EMPTY, EMPTY, pool.lanes, pool.is_limited)
        entries = (_index_entry(draft.replicas[name]) for name in pool.members if pool.is_indexed)
        draft.pools = draft.pools.set(key, reduce(_indexed, entries, empty))
    draft.touched.clear()


def _index_entry(replica: Replica) -> tuple[bool, Key] | None:
    """Which index of its pools a replica stands in (True: roomy), and its key there; None: it has no room."""
    if not has_room(replica, RunClass.INTERACTIVE):
        return None
    return has_room(replica, RunClass.BATCH), load_key(replica)


def _indexed(pool: Pool, entry: tuple[bool, Key] | None) -> Pool:
    if entry is None:
        return pool
    roomy, key = entry
    if roomy:
        return Pool(pool.members, pool.roomy.add(key), pool.tight, pool.lanes, pool.is_limited)
    return Pool(pool.members, pool.roomy, pool.tight.add(key), pool.lanes, pool.is_limited)


def _unindexed(pool: Pool, entry: tuple[bool, Key] | None) -> Pool:
    if entry is None:
        return pool
    roomy, key = entry
    if roomy:
        return Pool(pool.members, pool.roomy.remove(key), pool.tight, pool.lanes, pool.is_limited)
    return Pool(pool.members, pool.roomy, pool.tight.remove(key), pool.lanes, pool.is_limited)
