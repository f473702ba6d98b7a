"""Fits a profile's constants to turns that were measured on an engine. Pure; read `sweeps` for the measuring.

Each batch of turns that were sent together is replayed on the batching of `fakes.engine.batch`, counting what its
steps do. The duration of a turn is then a sum of constants times counts, so the constants follow by least squares
of the relative errors, none of them negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from fakes.engine.batch import Engine, Request
from fakes.engine.latency import KV_FACTOR, CostModel, Profile

CONSTANTS = ("step_s", "request_s", "token_s", "context_s", "pair_s", "turn_s")
"""What is fitted: seconds a step, a request and step, a computed token, a token of context read, a pair of prefill's
attention, a turn."""
_NOMINAL = 1e9
"""FLOP/s and bytes/s of a fitted profile: it knows quotients alone."""

_ROUNDS = 20
_USUAL_ERROR = 0.05
"""Relative errors above this count by their size, not by its square (Huber's loss, by reweighting): an outlier that
the median has not removed must not decide."""


@dataclass(frozen=True, slots=True)
class SentTurn:
    """One turn as its client saw it."""

    prompt_tokens: int
    cached_tokens: int
    reply_tokens: int
    seconds: float
    """From sending it to the end of its reply."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Turns that were sent together to one engine, on which nothing else ran."""

    label: str
    turns: tuple[SentTurn, ...]

    @property
    def seconds(self) -> float:
        """Mean duration of its turns."""
        return sum(turn.seconds for turn in self.turns) / len(self.turns)


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of it."""

    constants: dict[str, float]
    predicted_s: tuple[float, ...]
    """The duration of each batch's turns by these constants."""


class _Counter(CostModel):
    """Counts what steps do; they take no time."""

    __slots__ = ("sums",)

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile)
        self.sums = [0, 0, 0, 0, 0]

    def step_s(self, tokens: int, context_tokens: int, requests: int, pairs: int = 0) -> float:
        for at, value in enumerate((1, requests, tokens, context_tokens, pairs)):
            self.sums[at] += value
        return 0.0


def counts(batch: Batch, profile: Profile) -> list[float]:
    """What CONSTANTS are multiplied with to give the mean duration of the batch's turns."""
    counter = _Counter(profile)
    engine = Engine(profile, counter)
    size = profile.block_tokens
    requests = []
    for number, turn in enumerate(batch.turns):
        cached_blocks = min(turn.cached_tokens, turn.prompt_tokens - 1) // size
        hashes = range(number << 32, (number << 32) + cached_blocks)
        if cached_blocks:
            engine.submit(Request(cached_blocks * size, 1, hashes), 0.0)
            while engine.busy:
                engine.step(0.0)
        requests.append(Request(turn.prompt_tokens, max(1, turn.reply_tokens), hashes))
    for request in requests:
        engine.submit(request, 0.0)
    counter.sums = [0, 0, 0, 0, 0]
    sums = [0.0] * 5
    while engine.busy:
        _, produced = engine.step(0.0)
        for request in produced:
            if request.finished:
                sums = [total + now for total, now in zip(sums, counter.sums, strict=True)]
    return [*(total / len(requests) for total in sums), 1.0]


def typical(batches: Sequence[Batch]) -> list[Batch]:
    """Of the batches with the same label the one of median duration: whatever else the machine does, it slows some."""
    by_label: dict[str, list[Batch]] = {}
    for batch in batches:
        by_label.setdefault(batch.label, []).append(batch)
    return [sorted(same, key=lambda batch: batch.seconds)[len(same) // 2] for same in by_label.values()]


def fit(batches: Sequence[Batch], profile: Profile) -> Fit:
    """The constants under which `profile`'s batching takes as long as was measured; its own constants do not matter.

    Raises ValueError if the batches do not tell.
    """
    rows = [counts(batch, profile) for batch in batches]
    trust = [1.0] * len(rows)
    for _ in range(_ROUNDS):
        weighted = [
            [weight * value / batch.seconds for value in row]
            for weight, row, batch in zip(trust, rows, batches, strict=True)
        ]
        solution = non_negative(weighted, trust)
        predicted = tuple(sum(a * x for a, x in zip(row, solution, strict=True)) for row in rows)
        errors = [abs(now_s / batch.seconds - 1) for now_s, batch in zip(predicted, batches, strict=True)]
        trust = [1.0 if error <= _USUAL_ERROR else math.sqrt(_USUAL_ERROR / error) for error in errors]
    return Fit(dict(zip(CONSTANTS, solution, strict=True)), predicted)


def with_constants(profile: Profile, constants: dict[str, float]) -> Profile:
    """`profile` with fitted constants in place of its own."""
    return replace(
        profile,
        parameters=constants["token_s"] * _NOMINAL / 2,
        effective_flops=_NOMINAL,
        weights_bytes=0.0,
        kv_bytes_per_token=constants["context_s"] * _NOMINAL / KV_FACTOR,
        bandwidth_bytes_per_s=_NOMINAL,
        layers=0,
        request_s=constants["request_s"],
        step_overhead_s=constants["step_s"],
        attention_pair_s=constants["pair_s"],
        turn_s=constants["turn_s"],
    )


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line. Raises ValueError where all points have the same x."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        raise ValueError("all of one length")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return slope, mean_y - slope * mean_x


def non_negative(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """The x of least squares of `rows`·x - `targets` with no x negative.

    At the optimum some x are 0 and the others solve the free problem; with as few as here all choices are tried.
    Raises ValueError where no choice can be solved.
    """
    width = len(rows[0])
    scales = [math.sqrt(sum(row[at] ** 2 for row in rows)) for at in range(width)]
    usable = [at for at in range(width) if scales[at] > 0]
    best: list[float] | None = None
    best_error = math.inf
    for size in range(len(usable), 0, -1):
        for chosen in combinations(usable, size):
            columns = [[row[at] / scales[at] for at in chosen] for row in rows]
            solved = _least_squares(columns, targets)
            if solved is None or min(solved) < 0:
                continue
            error = sum(
                (sum(a * x for a, x in zip(row, solved, strict=True)) - target) ** 2
                for row, target in zip(columns, targets, strict=True)
            )
            if error < best_error:
                best_error, best = error, [0.0] * width
                for at, value in zip(chosen, solved, strict=True):
                    best[at] = value / scales[at]
    if best is None:
        raise ValueError("the measurements do not tell the constants")
    return best


def _least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float] | None:
    """By the normal equations and Gauss-Jordan; None where they are singular."""
    width = len(rows[0])
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(width)]
        + [sum(row[i] * target for row, target in zip(rows, targets, strict=True))]
        for i in range(width)
    ]
    for at in range(width):
        pivot = max(range(at, width), key=lambda i: abs(matrix[i][at]))
        if abs(matrix[pivot][at]) < 1e-12:
            return None
        matrix[at], matrix[pivot] = matrix[pivot], matrix[at]
        matrix[at] = [value / matrix[at][at] for value in matrix[at]]
        for other in range(width):
            if other != at:
                factor = matrix[other][at]
                matrix[other] = [a - factor * b for a, b in zip(matrix[other], matrix[at], strict=True)]
    return [row[width] for row in matrix]
