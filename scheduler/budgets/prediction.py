"""How much a turn is likely to cost: quantiles by model, caller and tool, learned from what turns did cost. Pure.

Prompt tokens follow from the request's bytes, by a ratio that each reply's usage corrects. Completion tokens are a
quantile of what was seen: a histogram of fixed size over sizes that grow by a fifth, in which the past fades. Whether
the prediction covered the turn's whole cost is counted, and the quantile moved so that the wanted share is covered in
the long run whatever the distribution does (adaptive conformal inference, arXiv 2106.00170): a miss raises it much, a
cover lowers it a little.

Memory is bounded: histories live in two generations, and when the young one is full, the old one goes.
Read next: `ledger`.
"""

from __future__ import annotations

import math

from immutables import Map
from msgspec import Struct

COVERAGE = 0.95
"""Share of turns whose cost should be at most what was predicted."""
STEP = 0.03
"""How far a miss moves the quantile; a cover moves it back by a nineteenth of it."""
QUANTILE_MIN, QUANTILE_MAX = 0.5, 1.25
"""Above 1 the largest seen is exceeded, by as many times as it takes, and so is how far the prompt may be off."""
COMPLETION_BEYOND, PROMPT_BEYOND = 8.0, 16.0
"""By how many times more the largest completion, and the prompt's mean deviation, are exceeded at a quantile of 2."""
BINS = 72
_GROWTH = math.log(1.2)
FADE = 0.995
"""Weight of a turn after each later one: 200 turns count."""
FLOOR_TOKENS = 16.0
"""No completion is predicted to be shorter."""
UNKNOWN_TOKENS = 512.0
"""A completion of which nothing is known, where the request names no maximum."""
TURNS_KNOWN = 20
"""A history of fewer turns is not used if a more general one knows more."""
SAMPLED = 8
"""Once a history knows enough, the more general ones learn of so many turns' last one only."""
TOKENS_A_BYTE = 0.3
"""Until a usage tells: JSON of English has a token each 4 bytes or so."""
COUNTED_A_BYTE = 0.25
"""Providers count a token each four characters before they know better."""
RATIO_STEP = 0.1
DEVIATION_MIN = 0.01
"""Equal residuals do not mean that the next one is equal too."""
GENERATION = 2048
"""Histories in one generation."""

_RESCALED_AT = 1e9

HistoryKey = tuple[str, str, str]
"""Model, caller, tool; the last ones empty in the more general histories."""


class History(Struct, frozen=True, gc=False):
    """What turns of one kind did cost."""

    turns: int = 0
    bins: tuple[float, ...] = ()
    """Weight of completions by size, up to the largest seen (BINS at most); later ones weigh more, which is how earlier
    ones fade."""
    weight: float = 1.0
    """Of the next one."""
    total: float = 0.0
    quantile: float = COVERAGE
    ratio: float = TOKENS_A_BYTE
    """Prompt tokens a byte of the request."""
    deviation: float = 0.1
    """Mean of how far the ratio was off, as a share of it."""


_NO_HISTORY = History()
_EMPTY: Map[HistoryKey, History] = Map()


class Histories(Struct, frozen=True, gc=False):
    """All histories."""

    young: Map[HistoryKey, History] = _EMPTY
    old: Map[HistoryKey, History] = _EMPTY


class Need(Struct, frozen=True, gc=False):
    """What a turn is predicted to take."""

    prompt: float
    """Tokens."""
    completion: float
    """Tokens, at the quantile."""
    max_tokens: int | None
    """Most that the request allows."""
    prompt_least: float
    """Tokens that the prompt surely has."""
    on_arrival: float
    """Prompt tokens as a provider may count them when the request arrives."""


def predict(histories: Histories, key: HistoryKey, prompt_bytes: int, max_tokens: int | None) -> Need:
    """What a turn will take, from the most special history that knows enough."""
    history = _known(histories, key)
    mean = prompt_bytes * history.ratio
    prompt = mean * (1 + history.deviation)
    if history.quantile > 1:  # where completions alone do not cover it, prompts are what differs
        prompt += mean * history.deviation * PROMPT_BEYOND * (history.quantile - 1)
    least = mean * (1 - 5 * history.deviation)
    on_arrival = prompt_bytes * COUNTED_A_BYTE
    completion = max(FLOOR_TOKENS, _at_quantile(history)) if history.turns else UNKNOWN_TOKENS
    if max_tokens is not None and (completion > max_tokens or not history.turns):
        completion = float(max_tokens)  # where nothing is known it may need all of it
    return Need(prompt, completion, max_tokens, least if least > 0 else 0.0, max(prompt, on_arrival))


def learn(
    histories: Histories, key: HistoryKey, need: Need, *, prompt_bytes: int, prompt_tokens: int, completion_tokens: int
) -> Histories:
    """Takes in what a turn did cost."""
    covered = prompt_tokens + completion_tokens <= need.prompt + need.completion
    own = _get(histories, key)
    histories = _put(histories, key, _learned(own, covered, prompt_bytes, prompt_tokens, completion_tokens))
    if own.turns >= TURNS_KNOWN and own.turns % SAMPLED:
        return histories
    for general in _general(key):
        if general != key:
            history = _learned(_get(histories, general), covered, prompt_bytes, prompt_tokens, completion_tokens)
            histories = _put(histories, general, history)
    return histories


def mean_and_deviation(histories: Histories, key: HistoryKey) -> tuple[float, float]:
    """Mean and standard deviation of the completions, tokens."""
    history = _known(histories, key)
    if not history.total:
        return UNKNOWN_TOKENS, UNKNOWN_TOKENS
    sizes = [math.exp((number + 0.5) * _GROWTH) - 1 for number in range(len(history.bins))]
    mean = sum(w * size for w, size in zip(history.bins, sizes, strict=True)) / history.total
    variance = sum(w * (size - mean) ** 2 for w, size in zip(history.bins, sizes, strict=True)) / history.total
    return mean, math.sqrt(variance)


def _known(histories: Histories, key: HistoryKey) -> History:
    """The most special history that knows enough; else the one that knows most."""
    best = _get(histories, key)
    if best.turns >= TURNS_KNOWN:
        return best
    for general in _general(key):
        history = _get(histories, general)
        if history.turns >= TURNS_KNOWN:
            return history
        if history.turns > best.turns:
            best = history
    return best


def _general(key: HistoryKey) -> tuple[HistoryKey, HistoryKey]:
    """The histories that are more general, the more special one first."""
    return (key[0], key[1], ""), (key[0], "", "")


def _get(histories: Histories, key: HistoryKey) -> History:
    return histories.young.get(key) or histories.old.get(key) or _NO_HISTORY


def _put(histories: Histories, key: HistoryKey, history: History) -> Histories:
    young, old = histories.young, histories.old
    if len(young) >= GENERATION and key not in young:
        young, old = _EMPTY, young
    return Histories(young.set(key, history), old)


def _learned(history: History, covered: bool, prompt_bytes: int, prompt_tokens: int, completion: int) -> History:
    turns, weight = history.turns, history.weight
    number = min(BINS - 1, int(math.log1p(completion) / _GROWTH))
    bins = list(history.bins)
    if number >= len(bins):
        bins += [0.0] * (number + 1 - len(bins))
    bins[number] += weight
    total, weight = history.total + weight, weight / FADE
    if weight > _RESCALED_AT:
        bins, total, weight = [each / weight for each in bins], total / weight, 1.0
    quantile = history.quantile + STEP * (COVERAGE - covered)
    if not QUANTILE_MIN <= quantile <= QUANTILE_MAX:
        quantile = QUANTILE_MAX if quantile > QUANTILE_MAX else QUANTILE_MIN
    ratio, deviation = history.ratio, history.deviation
    if prompt_bytes:
        more = prompt_tokens / prompt_bytes - ratio
        step = RATIO_STEP if turns >= 1 / RATIO_STEP else 1 / (turns + 1)
        if turns and ratio:
            deviation += step * (abs(more) / ratio - deviation)
            deviation = deviation if deviation > DEVIATION_MIN else DEVIATION_MIN
        ratio += step * more
    return History(turns + 1, tuple(bins), weight, total, quantile, ratio, deviation)


def _at_quantile(history: History) -> float:
    """The completion size at the history's quantile: the upper end of its bin, less what of the bin is not needed."""
    beyond = history.quantile - 1
    above = -beyond * history.total if beyond < 0 else 0.0
    passed = 0.0
    bins = history.bins
    for number in range(len(bins) - 1, -1, -1):
        weight = bins[number]
        passed += weight
        if passed > above:
            size = math.exp((number + (passed - above) / weight) * _GROWTH)
            return size * (1 + COMPLETION_BEYOND * beyond) if beyond > 0 else size
    return FLOOR_TOKENS
