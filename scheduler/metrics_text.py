"""An engine's load out of its Prometheus metrics text. Pure, and total: any bytes give a `Load`.

Names are matched exactly, since engines have families whose names begin alike (`vllm:num_requests_waiting` and
`vllm:num_requests_waiting_by_reason`). Read next: `replicas`, which fetches the text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_REASONED = b"vllm:num_requests_waiting_by_reason"
_RUNNING = (b"vllm:num_requests_running", b"sglang:num_running_reqs", b"llamacpp:requests_processing")
_WAITING = (b"vllm:num_requests_waiting", b"sglang:num_queue_reqs", b"llamacpp:requests_deferred")
_KV_USAGE = (b"vllm:kv_cache_usage_perc", b"sglang:token_usage")
_KV_BLOCKS = b"vllm:cache_config_info"
_KV_TOKENS = b"sglang:max_total_num_tokens"

REQUESTS_MAX = 1_000_000_000
"""No engine runs more; a larger value is garbage."""

# Nothing here crosses a line and no two alternatives begin alike, so that garbage costs linear time.
_LABELS = rb'\{(?:[^"}\n]|"(?:[^"\\\n]|\\[^\n])*")*\}'
_NAMES = (_REASONED, *_RUNNING, *_WAITING, *_KV_USAGE, _KV_BLOCKS, _KV_TOKENS)
_SAMPLE = re.compile(rb"^(" + b"|".join(_NAMES) + rb")(" + _LABELS + rb")?[ \t]+(\S+)", re.MULTILINE)
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]|\\[^\n])*)"')


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine tells of itself; None where it does not tell."""

    running: int | None = None
    """Requests it runs, summed over its series (data-parallel ranks)."""
    waiting: int | None = None
    """Requests it has queued for want of capacity, summed as well."""
    kv_usage: float | None = None
    """Share of the KV cache in use, the mean over its series, 0 to 1."""
    kv_tokens: int | None = None
    """Tokens that the KV cache holds, summed over its series."""


def read(text: bytes) -> Load:
    """The load that `text` tells. Samples that are no number, negative or absurd count as not there."""
    values: dict[bytes, list[float]] = {}
    for name, labels, number in _SAMPLE.findall(text):
        value = _number(number)
        if name == _KV_BLOCKS:
            value = _blocks_tokens(labels)
        if value is None or (name == _REASONED and (b"reason", b"capacity") not in _LABEL.findall(labels)):
            continue
        values.setdefault(name, []).append(value)
    # vLLM's plain gauge counts deferred requests too (waiting for a remote KV cache, say), which is no congestion.
    waiting = _total(values, (_REASONED,))
    usage = [value for name in _KV_USAGE for value in values.get(name, ())]
    return Load(
        running=_total(values, _RUNNING),
        waiting=_total(values, _WAITING) if waiting is None else waiting,
        kv_usage=min(sum(usage) / len(usage), 1.0) if usage else None,
        kv_tokens=_total(values, (_KV_BLOCKS, _KV_TOKENS)) or None,
    )


def combine(loads: list[Load]) -> Load:
    """The load of a replica from those of its engines: requests summed, usage averaged, over those that tell."""
    running = [load.running for load in loads if load.running is not None]
    waiting = [load.waiting for load in loads if load.waiting is not None]
    usage = [load.kv_usage for load in loads if load.kv_usage is not None]
    tokens = [load.kv_tokens for load in loads if load.kv_tokens is not None]
    return Load(
        running=sum(running) if running else None,
        waiting=sum(waiting) if waiting else None,
        kv_usage=sum(usage) / len(usage) if usage else None,
        kv_tokens=sum(tokens) if tokens else None,
    )


def _total(values: dict[bytes, list[float]], names: tuple[bytes, ...]) -> int | None:
    found = [value for name in names for value in values.get(name, ())]
    return int(sum(found)) if found else None


def _blocks_tokens(labels: bytes) -> float | None:
    """Blocks times their size, which vLLM tells as labels of an info metric."""
    told = dict(_LABEL.findall(labels))
    blocks, size = _number(told.get(b"num_gpu_blocks", b"")), _number(told.get(b"block_size", b""))
    return None if blocks is None or size is None else _number(b"%f" % (blocks * size))


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= REQUESTS_MAX else None
