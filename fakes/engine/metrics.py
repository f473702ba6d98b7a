"""What `/metrics` tells, in the exact names of vLLM, SGLang or llama.cpp. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fakes.engine.batch import Engine

Dialect = Literal["vllm", "sglang", "llamacpp", "none"]

_Metric = tuple[str, str, str, list[tuple[str, float]]]
"""Name, type, help, and samples as (extra labels, value)."""


def render(dialect: Dialect, engine: Engine, model: str, ended: Mapping[str, int]) -> str:
    """The Prometheus text of `engine`, which serves `model`; `ended` counts replies by finish reason."""
    match dialect:
        case "vllm":
            return _text(_vllm(engine, ended), f'engine="0",model_name="{_escaped(model)}"')
        case "sglang":
            return _text(_sglang(engine), f'model_name="{_escaped(model)}"')
        case "llamacpp":
            return _text(_llamacpp(engine), "")
        case "none":
            return ""


def _vllm(engine: Engine, ended: Mapping[str, int]) -> list[_Metric]:
    totals, profile = engine.totals, engine.profile
    config = f'block_size="{profile.block_tokens}",enable_prefix_caching="True",num_gpu_blocks="{engine.cache.blocks}"'
    by_reason = [('reason="capacity"', float(engine.waiting)), ('reason="deferred"', 0.0)]
    success = [(f'finished_reason="{reason}"', float(count)) for reason, count in ended.items()]
    return [
        _gauge("vllm:num_requests_running", "Number of requests in model execution batches.", len(engine.running)),
        _gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", engine.waiting),
        ("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.", by_reason),
        _gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.cache.usage),
        _counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in tokens.", totals.cache_queries),
        _counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens.", totals.cache_hits),
        _counter("vllm:num_preemptions_total", "Cumulative number of preemptions.", totals.preemptions),
        _counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.", totals.prompt_tokens),
        _counter("vllm:generation_tokens_total", "Number of generation tokens processed.", totals.generation_tokens),
        ("vllm:request_success_total", "counter", "Count of successfully processed requests.", success),
        ("vllm:cache_config_info", "gauge", "Information of the cache config.", [(config, 1.0)]),
    ]


def _sglang(engine: Engine) -> list[_Metric]:
    totals, tokens = engine.totals, engine.cache.blocks * engine.profile.block_tokens
    hit_rate = totals.cache_hits / totals.cache_queries if totals.cache_queries else 0.0
    used = round(engine.cache.usage * tokens)
    return [
        _gauge("sglang:num_running_reqs", "The number of running requests.", len(engine.running)),
        _gauge("sglang:num_queue_reqs", "The number of requests in the waiting queue.", engine.waiting),
        _gauge("sglang:num_used_tokens", "The number of used tokens.", used),
        _gauge("sglang:token_usage", "The token usage.", engine.cache.usage),
        _gauge("sglang:cache_hit_rate", "The prefix cache hit rate.", hit_rate),
        _gauge("sglang:max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", tokens),
        _counter("sglang:num_retracted_requests_total", "Number of retracted requests.", totals.preemptions),
        _counter("sglang:prompt_tokens_total", "Number of prefill tokens processed.", totals.prompt_tokens),
        _counter("sglang:generation_tokens_total", "Number of generation tokens processed.", totals.generation_tokens),
    ]


def _llamacpp(engine: Engine) -> list[_Metric]:
    return [
        _gauge("llamacpp:requests_processing", "Number of requests processing.", len(engine.running)),
        _gauge("llamacpp:requests_deferred", "Number of requests deferred.", engine.waiting),
    ]


def _gauge(name: str, told: str, value: float) -> _Metric:
    return name, "gauge", told, [("", float(value))]


def _counter(name: str, told: str, value: float) -> _Metric:
    return name, "counter", told, [("", float(value))]


def _text(metrics: list[_Metric], labels: str) -> str:
    lines = []
    for name, kind, told, samples in metrics:
        lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
        for extra, value in samples:
            both = ",".join(part for part in (labels, extra) if part)
            lines.append(f"{name}{{{both}}} {value}" if both else f"{name} {value}")
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
