"""Any bytes that an engine answers to the scheduler's probes: figures and names that all others can be told."""

from __future__ import annotations

import json
import random

import pytest

from common.model_list import read_models
from scheduler import metrics_text
from tests.fuzz.fuzzing import either, fuzz, mutated, some

NAMES = [b"m", b"\\ud800", b"\\ud83d\\ude00", b"\\u0000", b"\\n", "ü".encode(), b""]
LINES = [
    b"# TYPE vllm:num_requests_running gauge\n",
    b'vllm:num_requests_running{model_name="m"} 3.0\n',
    b"vllm:num_requests_waiting NaN\n",
    b"vllm:num_requests_waiting 1e999\n",
    b"vllm:num_requests_waiting -1\n",
    b"vllm:kv_cache_usage_perc 0.5\n",
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="1024"} 1.0\n',
    b'vllm:cache_config_info{block_size="99999999999999999999",num_gpu_blocks="-1"} 1.0\n',
    b"sglang:num_running_reqs{} 2\n",
    b"sglang:num_queue_reqs 1 1700000000\n",
    b"sglang:token_usage Inf\n",
]


def model_list(chance: random.Random) -> bytes:
    """Some names, with or without bytes that are wrong."""
    entries = some(chance, 4, lambda one: b'{"id":"%b"}' % either(one, NAMES, 8))
    return mutated(chance, b'{"object":"list","data":[%b]}' % b",".join(entries))


def metrics(chance: random.Random) -> bytes:
    """Some lines, with or without bytes that are wrong."""
    return mutated(chance, b"".join(some(chance, 8, lambda one: either(one, LINES, 20))))


def test_any_model_list_gives_names_that_can_be_told(request: pytest.FixtureRequest) -> None:
    def run(text: bytes) -> None:
        names = read_models(text)
        assert json.loads(json.dumps(names, ensure_ascii=False).encode()) == (None if names is None else list(names))

    fuzz(request, model_list, run)


def test_any_metrics_give_figures_that_can_be_counted_with(request: pytest.FixtureRequest) -> None:
    def run(text: bytes) -> None:
        load = metrics_text.read(text)
        for figure in (load.running, load.waiting, load.kv_usage, load.kv_tokens):
            assert figure is None or 0 <= figure < 1e15

    fuzz(request, metrics, run)
