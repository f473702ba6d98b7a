"""What a replica's turns cost, and what follows: whether it pays to keep the prefixes of paused runs. Pure.

A batch run that pauses leaves its prefix in the KV cache. Either the replica works on few runs and finds every prefix
again (they are *kept*), or it works on as many turns as the cache holds and computes each prompt anew. Which gives
more turns a second depends on the engine: where prefill is dear, keeping wins for everybody; where a step costs about
the same for one request as for many, it leaves the engine half empty. Both are predicted from what was measured:

- W, the time of a turn in the engine = (u·p + r·s(c)) ÷ (1 − X·u·p): u tokens to compute at p seconds each, r tokens
  to generate at s(c) = s0 + s1·c seconds with c requests in flight, slowed by the prefills of the other turns, which
  take X·u·p of each second at X turns a second.
- kept: n runs alternate between a turn and a pause of z seconds, so X = n ÷ (z + W) and c = X·W, with u the tokens
  that are new in a turn;
- anew: always c in flight, so X = c ÷ W with u the whole prompt.

n and c are what fits into the KV cache. Interactive runs take n_i ÷ (z + W) of either, more where turns are quick; what
is left for batch work is compared, so that it does not pay for their speed. The figures hold within 10 % for the
simulator's floods; README.md shows them.
"""

from __future__ import annotations

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
KEPT_SHARE = 0.8
"""Of the KV cache, for kept prefixes: the blocks of runs that ended are younger than those of runs that pause, so
they stay until those would be lost."""
FLIGHT_SHARE = 0.92
"""Of the KV cache, for turns in flight and interactive runs: the rest is partly filled blocks and room to grow."""
ROUNDS = 8
"""Of the iteration: it is within 1 % then."""
SWITCH_GAIN = 1.1
"""The other way must promise so many times the turns."""


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


def keeping_pays(economy: Economy, kv_tokens: int, interactive_tokens: float, *, keeps: bool) -> bool:
    """Whether a replica with a KV cache of `kv_tokens`, of which interactive runs hold `interactive_tokens`, should
    keep prefixes; `keeps`: it does so now."""
    unknown = economy.turns < TURNS_MIN or not (economy.prefill_s and economy.pause_s and economy.context_tokens)
    if unknown or not kv_tokens:
        return keeps
    kept, anew = predicted(economy, kv_tokens, interactive_tokens)
    return kept * SWITCH_GAIN >= anew if keeps else kept > anew * SWITCH_GAIN


def predicted(economy: Economy, kv_tokens: int, interactive_tokens: float = 0.0) -> tuple[float, float]:
    """Batch turns a second with prefixes kept, and with every prompt computed anew."""
    fitting = kv_tokens / economy.context_tokens
    slope = 0.0
    if economy.variance > 0 and economy.in_flight > 0:
        slope = min(max(0.0, economy.covariance / economy.variance), economy.token_s / economy.in_flight)
    base = economy.token_s - slope * economy.in_flight
    decode = economy.completion_tokens
    # Anew: X = c ÷ W(X) solved for X.
    flying = max(1.0, fitting * FLIGHT_SHARE)
    prefill = economy.prompt_tokens * economy.prefill_s
    anew = flying / (prefill + decode * (base + slope * flying) + flying * prefill)
    # Kept: X = n ÷ (z + W(X)), found by halving the way to it.
    runs = max(1.0, fitting * KEPT_SHARE)
    prefill = economy.fresh_tokens * economy.prefill_s
    turn_s = prefill + decode * (base + slope)
    kept = runs / (economy.pause_s + turn_s)
    for _ in range(ROUNDS):
        slowed = 1 - min(PREFILL_SHARE_MAX, kept * prefill)
        turn_s = (prefill + decode * (base + slope * min(runs, kept * turn_s))) / slowed
        kept = (kept + runs / (economy.pause_s + turn_s)) / 2
    interactive = interactive_tokens / economy.context_tokens
    kept_turn_s = max(0.0, runs / kept - economy.pause_s) if kept > 0 else 0.0
    anew_turn_s = flying / anew
    return (
        max(0.0, kept - interactive / (economy.pause_s + kept_turn_s)),
        max(0.0, anew - interactive / (economy.pause_s + anew_turn_s)),
    )
