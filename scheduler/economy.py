"""What a replica's turns cost, and what follows: whether it pays to keep the prefixes of paused runs. Pure.

A batch run that pauses leaves its prefix in the KV cache. Either the replica works on few runs and finds every prefix
again (they are *kept*), or on some more and finds many (*partly* kept), or it works on as many turns as the cache holds
and computes each prompt *anew*. Which gives more turns a second depends on the engine: where prefill is dear, keeping
wins for everybody; where a step costs about the same for one request as for many, it leaves the engine half empty. All
are predicted from what was measured:

- W, the time of a turn in the engine: r tokens to generate at s(c) = s0 + s1·c seconds with c requests in flight, and
  the prefills of all that are in flight then, its own too, u tokens each at p seconds: W = r·s(c) + max(1, c)·u·p.
- kept: n runs alternate between a turn and a pause of z seconds, so X = n ÷ (z + W) turns a second and c = X·W, with u
  the tokens that are new in a turn, and a part of the others where more runs are kept than fit;
- anew: always c in flight, so X = c ÷ W with u the whole prompt.

n and c are what fits into the KV cache. Interactive runs take n_i ÷ (z + W) of either, more where turns are quick; what
is left for batch work is compared, so that it does not pay for their speed. The figures hold within 10 % for the
simulator's floods; README.md shows them.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

WEIGHT = 1 / 32
"""Of a new observation in a mean: some 32 turns are remembered."""
TURNS_MIN = 8
"""Before so many turns nothing is predicted."""
PREFILL_TOKENS_MIN = 256
"""First tokens after fewer computed tokens tell of waiting rather than of prefill."""
FIRST_TOKEN_UP = 0.02
FIRST_TOKEN_DOWN = 0.5
"""How fast the cost of a prefilled token follows dearer and cheaper ones: near the least, which waited for nobody."""
PREFILL_SHARE_MAX = 0.9
ROUNDS = 8
"""Of the iteration: it is within 1 % then."""


class Way(IntEnum):
    """What batch work does with a replica's KV cache; in the order of how quick it leaves interactive turns."""

    KEPT = 0
    PARTLY = 1
    ANEW = 2

    @property
    def words(self) -> str:
        """For people: what becomes of the prefixes."""
        return ("kept", "partly kept", "computed anew")[self]


SHARE = (0.8, 1.0, 0.92)
"""Of the KV cache by way: for the prefixes of runs, where they are kept, beside those of interactive runs; with four
fifths all are found again: the blocks of runs that ended are younger than those of runs that pause, so they stay until
those would be lost. Anew: for turns in flight; the rest is partly filled blocks and room to grow."""
EMPTY_RUNS = 0.5
"""Room for so many stays empty on average, since only whole ones fit: it costs the way with fewer runs more."""
FOUND = (0.9, 0.55, 0.0)
"""Of a paused run's prefix by way: what is left when it comes back, as the simulator's engines have it."""


class Economy(Struct, frozen=True, gc=False):
    """Means over a replica's recent turns."""

    turns: int = 0
    prompt_tokens: float = 0.0
    completion_tokens: float = 0.0
    fresh_tokens: float = 0.0
    """Prompt tokens that were not part of the run's turn before."""
    computed_tokens: float = 0.0
    """Prompt tokens that the engine did not find in its cache."""
    turn_gap_s: float = 0.0
    """Between the ends of two turns."""
    ended_at: float = 0.0
    prefill_s: float = 0.0
    """Seconds a computed prompt token; 0: not known yet."""
    token_s: float = 0.0
    """Seconds a generated token, without the prefills of others."""
    in_flight: float = 0.0
    """Requests in flight at a turn's end."""
    variance: float = 0.0
    """Of the requests in flight."""
    covariance: float = 0.0
    """Of the requests in flight and the seconds a token."""
    pause_s: float = 0.0
    """Between a turn and the run's next one; 0: not known yet."""

    @property
    def context_tokens(self) -> float:
        """Prompt and completion of a turn: what it holds of the KV cache."""
        return self.prompt_tokens + self.completion_tokens


NO_ECONOMY = Economy()


class TurnSeen(Struct, frozen=True, gc=False):
    """What one whole turn showed."""

    at: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    fresh_tokens: int
    first_token_s: float
    """From its placement."""
    decode_s: float
    """From the first token to the end."""
    in_flight: int
    """At its end, itself included."""


def with_turn(before: Economy, seen: TurnSeen) -> Economy:
    """The means with one more turn."""
    weight = max(WEIGHT, 1 / (before.turns + 1))
    computed = max(0, seen.prompt_tokens - seen.cached_tokens)
    gap_s = seen.at - before.ended_at if before.turns else 0.0
    computed_tokens = before.computed_tokens + weight * (computed - before.computed_tokens)
    turn_gap_s = before.turn_gap_s + weight * (gap_s - before.turn_gap_s)
    prefill_s = before.prefill_s
    if computed >= PREFILL_TOKENS_MIN:
        sample = seen.first_token_s / computed
        if prefill_s == 0.0:
            prefill_s = sample
        else:
            prefill_s += (FIRST_TOKEN_DOWN if sample < prefill_s else FIRST_TOKEN_UP) * (sample - prefill_s)
    token_s, in_flight = before.token_s, before.in_flight
    variance, covariance = before.variance, before.covariance
    if seen.completion_tokens > 1:
        share = min(PREFILL_SHARE_MAX, prefill_s * computed_tokens / turn_gap_s) if turn_gap_s > 0 else 0.0
        sample = seen.decode_s / (seen.completion_tokens - 1) * (1 - share)
        more = seen.in_flight - in_flight
        dearer = sample - token_s
        in_flight += weight * more
        token_s += weight * dearer
        variance = (1 - weight) * (variance + weight * more * more)
        covariance = (1 - weight) * (covariance + weight * more * dearer)
    return Economy(
        before.turns + 1,
        before.prompt_tokens + weight * (seen.prompt_tokens - before.prompt_tokens),
        before.completion_tokens + weight * (seen.completion_tokens - before.completion_tokens),
        before.fresh_tokens + weight * (seen.fresh_tokens - before.fresh_tokens),
        computed_tokens,
        turn_gap_s,
        seen.at,
        prefill_s,
        token_s,
        in_flight,
        variance,
        covariance,
        before.pause_s,
    )


def with_pause(before: Economy, pause_s: float) -> Economy:
    """The means with one more pause that ended."""
    mean_s = pause_s if before.pause_s == 0.0 else before.pause_s + WEIGHT * (pause_s - before.pause_s)
    return replace(before, pause_s=mean_s)


def predicted(economy: Economy, kv_tokens: int, interactive_tokens: float = 0.0) -> tuple[float, ...]:
    """Batch turns a second, by way."""
    slope = 0.0
    if economy.variance > 0 and economy.in_flight > 0:
        slope = min(max(0.0, economy.covariance / economy.variance), economy.token_s / economy.in_flight)
    base, decode = economy.token_s - slope * economy.in_flight, economy.completion_tokens
    fitting = kv_tokens / economy.context_tokens
    interactive = interactive_tokens / economy.context_tokens
    rates = []
    for way in Way:
        most = max(1.0, fitting * SHARE[way] - EMPTY_RUNS)
        computed = economy.prompt_tokens - FOUND[way] * (economy.prompt_tokens - economy.fresh_tokens)
        pause_s = 0.0 if way is Way.ANEW else economy.pause_s
        turn_s = _turn_s(most, pause_s, computed * economy.prefill_s, (decode * base, decode * slope))
        rates.append(max(0.0, most / (pause_s + turn_s) - interactive / (economy.pause_s + turn_s)))
    return tuple(rates)


def _turn_s(most: float, pause_s: float, prefill_s: float, decode_s: tuple[float, float]) -> float:
    """How long a turn takes where `most` alternate between one and a pause: W = d0 + d1·c + max(1, c)·prefill with
    c = most·W ÷ (pause + W) in flight, found by halving the way to it; `decode_s` is d0 and d1."""
    alone_s, each_s = decode_s
    turn_s = alone_s + most * (each_s + prefill_s)
    for _ in range(ROUNDS if pause_s else 0):
        flying = max(1.0, most * turn_s / (pause_s + turn_s))
        turn_s = (turn_s + alone_s + flying * (each_s + prefill_s)) / 2
    return turn_s
