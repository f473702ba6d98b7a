"""Rate limit windows as hosted providers keep them. Pure: every call carries its time, in seconds of any clock.

A request is charged when it arrives, by an estimate of its tokens (one each four bytes, and all of `max_tokens`), and
corrected when it ends. Continuous windows refill all the time; fixed ones at whole multiples of their period.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TOKEN_BYTES = 4
UNTOLD_TOKENS = 256
"""Counted for a request that names no maximum."""


@dataclass
class Bucket:
    """One window."""

    limit: float
    period_s: float = 60.0
    fixed: bool = False
    level: float = field(init=False)
    at: float = 0.0
    number: int = 0
    """Of the fixed window."""

    def __post_init__(self) -> None:
        self.level = self.limit

    def to(self, at: float) -> None:
        """Refills up to `at`."""
        if self.fixed:
            number = int(at // self.period_s)
            if number != self.number:
                self.number, self.level = number, self.limit
        else:
            self.level = min(self.limit, self.level + (at - self.at) * self.limit / self.period_s)
        self.at = at

    def reset_s(self) -> float:
        """Seconds until it is full."""
        if self.fixed:
            return self.period_s * (self.number + 1) - self.at
        return (self.limit - self.level) * self.period_s / self.limit

    def wait_s(self, amount: float) -> float:
        """Seconds until it holds `amount`."""
        if self.level >= amount:
            return 0.0
        return self.reset_s() if self.fixed else (amount - self.level) * self.period_s / self.limit


@dataclass(frozen=True)
class Charge:
    """What a request in flight has taken."""

    tokens: float
    number: int


@dataclass
class Quota:
    """The windows of one account, and what went through them. `says`: how many times its true limit it tells."""

    tokens: Bucket
    requests: Bucket
    says: float = 1.0
    day_requests: Bucket | None = None
    """A second window of requests, where the account has one."""
    served: int = 0
    served_tokens: int = 0
    refused: int = 0
    refused_tokens: int = 0
    """Prompt tokens of what was refused: they are sent again."""

    def arrive(self, at: float, body_bytes: int, max_tokens: int | None) -> Charge | float:
        """Takes a request, or refuses it: the seconds until it would fit."""
        self.tokens.to(at)
        by_request = [self.requests] if self.day_requests is None else [self.requests, self.day_requests]
        for window in by_request:
            window.to(at)
        prompt = body_bytes / TOKEN_BYTES
        amount = prompt + (UNTOLD_TOKENS if max_tokens is None else max_tokens)
        wait_s = max(self.tokens.wait_s(amount), *(window.wait_s(1) for window in by_request))
        if wait_s > 0:
            self.refused += 1
            self.refused_tokens += round(prompt)
            return wait_s
        self.tokens.level -= amount
        for window in by_request:
            window.level -= 1
        return Charge(amount, self.tokens.number)

    def refusal(self, body_bytes: int, max_tokens: int | None) -> str:
        """What is said with a 429, in OpenAI's words."""
        amount, limit = body_bytes / TOKEN_BYTES + (max_tokens or UNTOLD_TOKENS), self.tokens.limit
        if amount <= limit:
            return "rate limit reached"
        return f"Request too large on tokens per min (TPM): Limit {limit * self.says:.0f}, Requested {amount:.0f}."

    def end(self, at: float, charge: Charge, tokens: int) -> None:
        """Corrects the charge by what the request did take. What a fixed window has forgotten stays so."""
        self.tokens.to(at)
        if not self.tokens.fixed or charge.number == self.tokens.number:
            self.tokens.level = min(self.tokens.limit, self.tokens.level + charge.tokens - tokens)
        self.served += 1
        self.served_tokens += tokens
