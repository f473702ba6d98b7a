"""What the slow model knows of replicas, runs and turns."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.ids import Caller, DataplaneId, ReplicaName, RunId
from scheduler.economy import NO_ECONOMY, Economy, Way
from scheduler.events import Request, RunClass
from scheduler.ways import NEW_TRIAL, Trial


@dataclass
class Replica:
    name: ReplicaName
    one_shot: bool
    models: tuple[str, ...] | None
    """None: not told yet."""
    cap: int | None
    probed: bool = False
    healthy: bool = False
    limit: int | None = None
    last: int = 0
    since_batch: int = 0
    waiting: int | None = None
    seats: int = 0
    seats_taken: int = 0
    kv: int | None = None
    kept: float = 0.0
    economy: Economy = NO_ECONOMY
    way: Way = Way.KEPT
    trial: Trial = NEW_TRIAL
    parts: dict[Caller, int] = field(default_factory=dict)

    @property
    def ill(self) -> bool:
        return self.probed and not self.healthy

    @property
    def usual_tokens(self) -> int:
        return int(self.economy.context_tokens or (self.kv or 0) / 16)


@dataclass
class Run:
    run_id: RunId
    caller: Caller
    cls: RunClass
    home: ReplicaName | None = None
    paused: bool = False
    paused_at: float = 0.0
    expected: RunClass | None = None
    done: int = 0
    active_at: float = 0.0
    ended: bool = False
    tokens: int = 0
    measured: bool = False
    due: float | None = None


@dataclass
class Turn:
    request: Request
    dataplane: DataplaneId
    run: Run | None
    key: tuple[object, ...]
    arrived_at: float
    replica: ReplicaName | None = None
    renewed_at: float = 0.0
    sequence: int = 0
    held_s: float = 0.0
    tokens: int = 0
    placed_at: float = 0.0
    first_at: float = 0.0
