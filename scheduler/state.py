"""What the scheduler knows. Pure: frozen records in persistent maps, and the draft that one decision works on.

Every function of the core takes the state as a `Draft`: plain attributes that hold the same persistent values, changed
in place during one decision and frozen at its end, so that nobody outside ever sees a state change. Records are msgspec
structs, since copying one with a field changed costs 0.2 µs (a frozen dataclass: 2 µs).
Read next: `core.decide`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from immutables import Map
from msgspec import Struct, field
from msgspec.structs import replace

from common.ids import Caller, DataplaneId, Model, ReplicaName, RunId, TurnId
from scheduler.budgets.forecast import Context
from scheduler.budgets.ledger import Budget, Price, Reservation
from scheduler.budgets.line import Line
from scheduler.budgets.prediction import Histories, Need
from scheduler.budgets.spend import Spends
from scheduler.economy import NO_ECONOMY, Economy, Way
from scheduler.effects import Effect
from scheduler.events import Phase, Request, RunClass
from scheduler.habits import Habit
from scheduler.ordered import EMPTY, Key, Ordered
from scheduler.parts import NO_PARTS, NO_TAKINGS, Parts, Takings
from scheduler.ways import NEW_TRIAL, Givens, Likeness, Trial

TURN_LIMIT_S = 600.0
"""A turn in flight that nobody reported or renewed for so long is dropped and frees its slot."""
SIGN_OF_LIFE_S = 10.0
"""A sign of life of a turn is noted if the last one is so long ago: fine enough for its limit, and most are free."""
RUN_FORGOTTEN_S = 1800.0
"""A run without turns is forgotten after so long."""
TOOL_CALL_REMEMBERED_S = 1800.0
"""A tool call id identifies its run for so long."""
TOOL_CALL_SWEEP_S = 60
"""How often tool call ids are swept."""
IDLE_RUNS_MAX = 100_000
"""Most idle runs remembered: clients that name none make a run of every turn, thousands a second. Beyond it those that
were looked at longest ago are forgotten, as if they had been idle for RUN_FORGOTTEN_S; a paused run never is."""
ENDED_RUNS_MAX = 100_000
"""Most ended runs remembered for dataplanes that are away; one beyond it may come back with their resync, as idle."""
ORPHAN_LIMIT_S = 15.0
"""Turns in flight of a lost stream wait so long for their dataplane's resync."""
GRACE_S = 2.0
"""After the start nothing is placed for so long: dataplanes resync first."""
MODELS_WITHIN_S = 60.0
"""After the start a turn for a model that nobody serves waits so long for replicas that may still tell their models."""

STARVES_AFTER = 9
"""Interactive turns after which a replica without batch work owes a held batch turn a place, before all others: a
trickle of some 10 % of turns, since strict priority would stop batch work for as long as interactive turns queue."""

COMPARED_MAX = 8
"""Members of a pool that are compared when one is chosen; with more they are kept in order."""

PoolKey = tuple[bool, Model]
"""One-shot or not, and the model: the replicas that a turn may go to."""


class Replica(Struct, frozen=True, gc=False):
    """One engine endpoint."""

    name: ReplicaName
    one_shot: bool
    max_in_flight: int | None
    """Configured limit."""
    models_learned: bool
    """Whether probes tell its models, or the configuration."""
    models: tuple[Model, ...] | None
    """None: not known yet."""
    indexed: bool = False
    """Whether one of its pools keeps its members in order."""
    is_probed: bool = False
    """Whether it was probed since the start: until then it is neither healthy nor ill."""
    healthy: bool = False
    limit: int | None = None
    """Most turns in flight by what its engine reports; None while it reports no queue."""
    capacity: int | None = None
    """The lower of `limit` and `max_in_flight`: most turns in flight it gets now; None: not limited."""
    in_flight: int = 0
    batch_in_flight: int = 0
    paused: int = 0
    """Runs at home here that are paused and expected back."""
    reserved: int = 0
    """Those of them that are interactive."""
    since_batch: int = 0
    """Interactive turns placed since the last batch turn, as far as they are counted (STARVES_AFTER)."""
    last_sequence: int = 0
    """Of its last placement: among equals the one that waited longest is taken."""
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    seats: int = 0
    seats_taken: int = 0
    """Most requests that its engine ran while others waited; probes in a row, up to SEATS_SEEN, that saw as many."""
    budget: Budget | None = None
    """Of its rate limits; None: it has none."""
    prices: Map[Model, Price] | None = None
    dry_for: RunClass | None = None
    """Its budget does not fit the next held turn of this class: it and those behind wait until `State.dry` says."""
    kv_tokens: int | None = None
    """What its KV cache holds; None: not told, and nothing is limited by it."""
    batch_flight_tokens: int = 0
    """Of the batch turns in flight, as estimated when they were placed."""
    batch_tokens: int = 0
    """Resident: of the batch runs at home here that are in flight or expected back."""
    interactive_tokens: int = 0
    """The same of interactive runs."""
    interactive_kept: float = 0.0
    """The most of `interactive_tokens` at the last probes: what a run leaves is for its client's next one."""
    takings: Takings = NO_TAKINGS
    """`batch_tokens` and `batch_flight_tokens`, by caller."""
    parts: Parts = NO_PARTS
    """What some callers are held to of the cache, as of the last probe."""
    economy: Economy = NO_ECONOMY
    way: Way = Way.KEPT
    """What batch work does with the KV cache."""
    trial: Trial = NEW_TRIAL

    @property
    def keeps(self) -> bool:
        """Whether batch runs keep their prefixes here: then runs are admitted, else turns."""
        return self.way is not Way.ANEW


class Run(Struct, frozen=True, gc=False):
    """An agent's work: turns with pauses between them."""

    run_id: RunId
    caller: Caller
    run_class: RunClass
    """Of its latest turn."""
    home: ReplicaName | None = None
    """Replica of its last placement, which holds its prefix; None: nowhere, or lost."""
    sequence: int = 0
    """Of its last placement."""
    in_flight: tuple[TurnId, ...] = ()
    held: tuple[TurnId, ...] = ()
    paused: bool = False
    """The last reply contained a tool call."""
    expected_as: RunClass | None = None
    """It is expected back, and a place is kept for it at its home (`Replica.paused`), as a run of this class."""
    tokens: int = 0
    """Of its latest turn, prompt and completion; while none has ended, an estimate."""
    is_measured: bool = False
    """Whether `tokens` is what an engine told."""
    paused_at: float = 0.0
    turns_done: int = 0
    active_at: float = 0.0
    """When a turn of it last arrived, was placed or ended."""
    ended: bool = False
    """To be forgotten with its last turn."""
    context: Context | None = None
    """What its turns at replicas with a budget told of its conversation."""
    born: int = 0
    """Tells it from an earlier run of the same id."""

    @property
    def at_work(self) -> bool:
        """Whether it has a turn or is expected back."""
        return bool(self.in_flight or self.held or self.expected_as is not None)

    @property
    def phase(self) -> Phase:
        """Where it is between its turns."""
        if self.in_flight:
            return Phase.GENERATING
        return Phase.PAUSED if self.paused else Phase.IDLE


class Turn(Struct, frozen=True, gc=False):
    """One model request, held or in flight."""

    request: Request
    dataplane: DataplaneId
    run_id: RunId | None
    """None for one-shot turns."""
    arrived_at: float
    """Less the seconds that a scheduler before this one held it."""
    key: Key
    """Its order among held turns of its class and caller, see `fairness.held_key`. Ends with its id."""
    held_at: ReplicaName | None = None
    """Held: the home it must go to; None: any replica of its pool."""
    replica: ReplicaName | None = None
    """In flight: where; None: held."""
    sequence: int = 0
    held_s: float = 0.0
    """In flight: how long it was held."""
    tokens: int = 0
    """In flight: what it was estimated to hold of the KV cache."""
    placed_at: float = 0.0
    first_token_at: float = 0.0
    """0.0: none was seen."""
    renewed_at: float = 0.0
    """In flight: when something was last heard of it."""
    gives_up_at: float | None = None
    """Held: when it is refused rather than held any longer."""
    need: Need | None = None
    """What it is predicted to take, where any replica has a budget."""
    reserved_usd: float | None = None
    """Its likely price, where its run has a budget of money."""
    reservation: Reservation | None = None
    """In flight: what it took of its replica's budget."""


def with_first_token(turn: Turn, at: float, now: float) -> Turn:
    """A turn in flight whose first token came `at`, as is known `now`: reports may wait for company."""
    return replace(turn, renewed_at=now, first_token_at=max(at, turn.placed_at))


_EMPTY_QUEUES: Map[Caller, Ordered] = Map()


class Lane(Struct, frozen=True, gc=False):
    """Held turns of one class that wait for the same place: one replica, or any of a pool."""

    queues: Map[Caller, Ordered] = _EMPTY_QUEUES
    """By caller, the keys of its turns."""
    order: Ordered = EMPTY
    """(running turns of the caller, its first key, caller): which caller is next. Empty at a home, where the callers
    are few and compared when a slot frees; kept in order at a pool, where they may be as many as the turns."""


EMPTY_LANE = Lane()
Lanes = tuple[Lane, Lane]
"""By run class."""
EMPTY_LANES: Lanes = (EMPTY_LANE, EMPTY_LANE)


class Pool(Struct, frozen=True, gc=False):
    """The replicas that serve one model, and the turns that wait for any of them."""

    members: tuple[ReplicaName, ...] = ()
    """Sorted."""
    roomy: Ordered = EMPTY
    """(load, last sequence, name) of the members with room for every class, where the pool is indexed."""
    tight: Ordered = EMPTY
    """The same of those with room for interactive turns only."""
    lanes: Lanes = EMPTY_LANES
    is_limited: bool = False
    """Every member has rate limits."""

    @property
    def is_indexed(self) -> bool:
        """Whether its members are kept in order of load, rather than compared."""
        return len(self.members) > COMPARED_MAX


class Share(Struct, frozen=True, gc=False):
    """What one caller has of the pool."""

    running: int = 0
    """Its turns in flight."""
    batch_runs: int = 0
    """Its batch runs with a turn in flight or held, or expected back."""
    waits_in: tuple[tuple[PoolKey, RunClass], ...] = ()
    """The lanes of pools in which turns of it are held."""


NO_SHARE = Share()

Chain = tuple[Any, Any] | None
"""A linked list: (first, rest)."""


class State(Struct, frozen=True, gc=False):
    """Everything. Made by `initial`, changed by `core.decide` alone."""

    run_counts: tuple[int, ...]
    """Runs by class and phase: index 3 · class + phase - 1."""
    now: float
    opens_at: float
    """Nothing is placed before."""
    is_open: bool
    sequence: int
    """Of the last placement."""
    arrivals: int
    """Turns and runs that ever came: breaks ties of arrival, tells runs of one id apart."""
    replicas: Map[ReplicaName, Replica]
    homes: Map[ReplicaName, Lanes]
    """Turns held for one replica, where there are any."""
    pools: Map[PoolKey, Pool]
    unknown_models: tuple[int, int]
    """Replicas whose models are not known yet: generative, one-shot."""
    models_due_at: float | None
    """Until then turns wait for those; None: no longer."""
    runs: Map[RunId, Run]
    turns: Map[TurnId, Turn]
    shares: Map[Caller, Share]
    tool_calls: Map[tuple[Caller, str], tuple[RunId | None, int]]
    """Which run a tool call id belongs to (None: several), and the minute it is remembered from."""
    tool_call_minutes: Map[int, Chain]
    """By minute, the keys of `tool_calls` to look at when it has passed."""
    timers: Map[float, Chain]
    """By time, what to look at when it has come: see `timers`."""
    orphaned: Map[DataplaneId, float]
    """Dataplanes whose stream is lost, and when their turns in flight are dropped."""
    absent: Map[DataplaneId, float]
    """The same dataplanes, and when they are not expected any more."""
    ended_runs: Map[tuple[RunId, Caller], int]
    """Runs that ended while a dataplane was absent, with the last placement issued then: its resync does not bring them
    back."""
    held: tuple[int, int]
    """Held turns by class."""
    histories: Histories | None
    """What turns did cost; None where no replica has a budget."""
    dry: Map[ReplicaName, float]
    """Replicas whose budget does not fit the next held turn, and when it will."""
    habits: Map[Caller, Habit]
    """How the callers' runs behave."""
    givens: Map[Likeness, Givens]
    line: Line
    """Who was told to come again."""
    spends: Spends


_OTHER_FIELDS = attrgetter(*State.__struct_fields__[1:])
"""All but `run_counts`, which a draft holds in another form."""


class Draft(Struct):
    """A state during one decision: the same fields, changeable, the effects so far, and notes for its end."""

    run_counts: list[int]
    now: float
    opens_at: float
    is_open: bool
    sequence: int
    arrivals: int
    replicas: Map[ReplicaName, Replica]
    homes: Map[ReplicaName, Lanes]
    pools: Map[PoolKey, Pool]
    unknown_models: tuple[int, int]
    models_due_at: float | None
    runs: Map[RunId, Run]
    turns: Map[TurnId, Turn]
    shares: Map[Caller, Share]
    tool_calls: Map[tuple[Caller, str], tuple[RunId | None, int]]
    tool_call_minutes: Map[int, Chain]
    timers: Map[float, Chain]
    orphaned: Map[DataplaneId, float]
    absent: Map[DataplaneId, float]
    ended_runs: Map[tuple[RunId, Caller], int]
    held: tuple[int, int]
    histories: Histories | None
    dry: Map[ReplicaName, float]
    habits: Map[Caller, Habit]
    givens: Map[Likeness, Givens]
    line: Line
    spends: Spends
    effects: list[Effect] = field(default_factory=list)
    roomier: list[ReplicaName] = field(default_factory=list)
    """Replicas that may take held turns now: they got room, or turns came to wait for them."""
    hopeless: list[TurnId] = field(default_factory=list)
    """Held turns that turned out to be too large for every replica of their model."""
    regained: list[ReplicaName] = field(default_factory=list)
    """Replicas to which runs at home there are tied again: no longer left alone after a 429, or of other models."""
    touched: dict[ReplicaName, Replica] = field(default_factory=dict)
    """Replicas that changed, as they were: their pools' indexes still say so."""

    @classmethod
    def of(cls, state: State) -> Draft:
        """One that begins as `state`."""
        return cls(list(state.run_counts), *_OTHER_FIELDS(state))

    def freeze(self) -> State:
        """The state as it is now."""
        return State(tuple(self.run_counts), *_OTHER_FIELDS(self))


def rebuild_pools(draft: Draft) -> None:
    """Sets the members of every pool by the replicas' models. Which members have room is not touched."""
    members: dict[PoolKey, list[ReplicaName]] = {}
    unknown = [0, 0]
    for replica in draft.replicas.values():
        if replica.models is None:
            unknown[replica.one_shot] += 1
        for model in replica.models or ():
            members.setdefault((replica.one_shot, model), []).append(replica.name)
    draft.unknown_models = (unknown[0], unknown[1])
    indexed = {name for names in members.values() if len(names) > COMPARED_MAX for name in names}
    for replica in list(draft.replicas.values()):
        draft.replicas = draft.replicas.set(replica.name, replace(replica, indexed=replica.name in indexed))
    for key in set(draft.pools) - members.keys():
        pool = draft.pools[key]
        if pool.lanes == EMPTY_LANES:
            draft.pools = draft.pools.delete(key)
        else:
            draft.pools = draft.pools.set(key, Pool(lanes=pool.lanes))
    for key, names in members.items():
        pool = draft.pools.get(key, Pool())
        budgets = [draft.replicas[name].budget for name in names]
        is_limited = all(budget is not None and budget.is_limited for budget in budgets)
        draft.pools = draft.pools.set(key, Pool(tuple(sorted(names)), pool.roomy, pool.tight, pool.lanes, is_limited))
