"""What the dataplane asks the pool file about a replica, by its name: one that the file does not know has the defaults.

Must not decide where a turn goes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate

from common.ids import ReplicaName
from common.pool import Pool
from dataplane import chat, limits
from protos import turn_pb2


class PoolView:
    """The replicas of one pool file."""

    def __init__(self, pool: Pool) -> None:
        self._replicas = pool.by_name()
        self.has_fallbacks = any(replica.fallback for replica in pool.replicas)
        self._has_limits = any(each.limits is not None or each.price or each.fallback for each in pool.replicas)

    def key(self, replica: str) -> str | None:
        """Its API key, if it has one. Raises PoolError where that cannot be read."""
        known = self._replicas.get(ReplicaName(replica))
        return known.key() if known else None

    def asks_usage(self, replica: str) -> bool:
        """Whether usage is asked of it for clients that did not ask."""
        known = self._replicas.get(ReplicaName(replica))
        return known.usage_in_stream if known else True

    def own_model(self, replica: str, model: str) -> str:
        """The name by which it knows `model`."""
        known = self._replicas.get(ReplicaName(replica))
        return known.aliases.get(model, model) if known and known.aliases else model

    def fallbacks(self, replica: str) -> tuple[str, ...]:
        """The replicas that get a turn when it fails."""
        known = self._replicas.get(ReplicaName(replica))
        return known.fallback or () if known else ()

    def describe_limits(self, turn: turn_pb2.Turn, own: limits.TurnLimits, body: bytes, tokens_max: int | None) -> None:
        """Writes into `turn` what it asks for, where there are limits or prices that it could come to."""
        if self._has_limits or own is not limits.NO_LIMITS:
            limits.describe(turn, own, prompt_bytes=len(body), max_tokens=tokens_max, unix_s=time.time())
            turn.tool = chat.last_tool(body)

    def told_limits(self, replica: str, status: int, lines: Iterable[bytes]) -> list[turn_pb2.LimitHeader]:
        """The headers among `lines` that tell of its rate limits, if any are kept; else how long it wants to be left
        alone after a 429."""
        known = self._replicas.get(ReplicaName(replica)) if self._has_limits else None
        if known is None or known.limits is None:
            return limits.told_wait(lines, formatdate(usegmt=True)) if status == limits.TOO_MANY_REQUESTS else []
        return limits.told(lines, known.limit_headers or {}, formatdate(usegmt=True))
