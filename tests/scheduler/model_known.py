"""What the slow model reads off what it knows, by scans: who has room, who serves what. `model` changes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.ids import Caller, DataplaneId, ReplicaName, RunId, TurnId
from scheduler import state as state_module
from scheduler.economy import Way
from scheduler.effects import Effect
from scheduler.events import RunClass
from scheduler.habits import Habit
from scheduler.ways import Givens
from tests.scheduler.model_records import Replica, Run, Turn

SHARES = {Way.KEPT: 0.8, Way.PARTLY: 1.0, Way.ANEW: 0.92}


@dataclass
class Known:
    replicas: dict[ReplicaName, Replica]
    opens_at: float
    sequence: int
    now: float = 0.0
    is_open: bool = False
    models_late: bool = False
    arrivals: int = 0
    runs: dict[RunId, Run] = field(default_factory=dict)
    turns: dict[TurnId, Turn] = field(default_factory=dict)
    calls: dict[tuple[str, str], tuple[RunId | None, int]] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    orphaned: dict[DataplaneId, float] = field(default_factory=dict)
    habits: dict[Caller, Habit] = field(default_factory=dict)
    givens: dict[object, Givens] = field(default_factory=dict)

    def flying(self, turn_id: TurnId) -> Turn | None:
        turn = self.turns.get(turn_id)
        return turn if turn and turn.replica else None

    def of(self, run: Run, flying: bool) -> list[Turn]:
        return [t for t in self.turns.values() if t.run is run and bool(t.replica) == flying]

    def resident(self, r: Replica, cls: RunClass) -> int:
        return sum(x.tokens for x in self.runs.values() if x.home == r.name and x.cls is cls and self.stays(x))

    def stays(self, run: Run) -> bool:
        return bool(self.of(run, True)) or (run.expected is not None and not self.of(run, False))

    def owes(self, r: Replica) -> bool:
        batch = [t for t in self.turns.values() if t.replica == r.name and t.request.run_class is RunClass.BATCH]
        return r.since_batch >= state_module.STARVES_AFTER and not batch

    def taken(self, r: Replica, caller: Caller | None) -> tuple[int, int]:
        runs = [x for x in self.runs.values() if x.caller == caller and x.cls is RunClass.BATCH and x.home == r.name]
        flying = [t for t in self.turns.values() if t.replica == r.name and t.request.run_class is RunClass.BATCH]
        resident = sum(x.tokens for x in runs if self.stays(x))
        return resident, sum(t.tokens for t in flying if t.request.caller == caller)

    def part(self, r: Replica) -> dict[Caller, int]:
        callers = {x.caller for x in self.runs.values() if any(self.taken(r, x.caller))}
        atwork = [x for x in self.runs.values() if x.cls is RunClass.BATCH and (self.stays(x) or self.of(x, False))]
        count = {caller: sum(x.caller == caller for x in atwork) for caller in callers}
        if len(callers) < 2 or r.kv is None:
            return {}
        equal = max(0.0, SHARES[r.way] * r.kv - r.kept) / len(callers)
        least = min(count.values())
        return {c: int(equal * 2 / 5 if least < 2 / 5 * n else equal) for c, n in count.items() if least < 2 / 3 * n}

    def room(self, r: Replica, cls: RunClass, caller: Caller | None, stays: bool = False) -> bool:
        flying = [t for t in self.turns.values() if t.replica == r.name]
        cap = min((c for c in (r.limit, r.cap) if c is not None), default=None)
        batch = [t for t in flying if t.request.run_class is RunClass.BATCH]
        if not r.healthy:
            return False
        if self.owes(r):
            cls = RunClass.INTERACTIVE
        if cls is RunClass.INTERACTIVE and cap is not None and r.kv is not None and r.limit == cap:
            return len(flying) - len(batch) < cap
        if cap is not None and len(flying) >= cap:
            return False
        reserved = sum(x.home == r.name and x.expected is RunClass.INTERACTIVE for x in self.runs.values())
        if cls is RunClass.INTERACTIVE:
            return True
        if cap is not None and len(flying) + reserved >= cap and batch:
            return False
        if r.kv is None:
            return True
        kept = self.resident(r, RunClass.BATCH)
        taken = self.taken(r, caller)[r.way is Way.ANEW]
        parted = caller in r.parts and taken and taken + 2 / 3 * r.usual_tokens > r.parts[caller]
        if parted and not (stays and r.way is not Way.ANEW):
            return False
        if r.way is not Way.ANEW:
            return (
                stays
                or not kept
                or max(r.kept, self.resident(r, RunClass.INTERACTIVE)) + kept + r.usual_tokens <= SHARES[r.way] * r.kv
            )
        used = self.resident(r, RunClass.INTERACTIVE) + sum(t.tokens for t in batch)
        return not batch or used + r.usual_tokens <= SHARES[r.way] * r.kv

    def load(self, r: Replica) -> tuple[int, int, str]:
        flying = sum(t.replica == r.name for t in self.turns.values())
        return flying + sum(x.home == r.name and x.expected is not None for x in self.runs.values()), r.last, r.name

    def serves(self, r: Replica, t: Turn) -> bool:
        return r.one_shot == t.request.one_shot and t.request.model in (r.models or ())

    def may_serve(self, r: Replica, t: Turn) -> bool:
        is_late = self.models_late or r.models is not None
        return self.serves(r, t) or (not is_late and r.one_shot == t.request.one_shot)
