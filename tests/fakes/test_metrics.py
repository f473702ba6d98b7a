"""Metrics in the exact names of the engines they imitate."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.conftest import RunningEngine, StartEngine
from tests.waiting import wait_until

NAMES = {
    "vllm": {
        "vllm:num_requests_running": "gauge",
        "vllm:num_requests_waiting": "gauge",
        "vllm:num_requests_waiting_by_reason": "gauge",
        "vllm:kv_cache_usage_perc": "gauge",
        "vllm:prefix_cache_queries_total": "counter",
        "vllm:prefix_cache_hits_total": "counter",
        "vllm:num_preemptions_total": "counter",
        "vllm:prompt_tokens_total": "counter",
        "vllm:generation_tokens_total": "counter",
        "vllm:request_success_total": "counter",
        "vllm:cache_config_info": "gauge",
    },
    "sglang": {
        "sglang:num_running_reqs": "gauge",
        "sglang:num_queue_reqs": "gauge",
        "sglang:num_used_tokens": "gauge",
        "sglang:token_usage": "gauge",
        "sglang:cache_hit_rate": "gauge",
        "sglang:max_total_num_tokens": "gauge",
        "sglang:num_retracted_requests_total": "counter",
        "sglang:prompt_tokens_total": "counter",
        "sglang:generation_tokens_total": "counter",
    },
    "llamacpp": {"llamacpp:requests_processing": "gauge", "llamacpp:requests_deferred": "gauge"},
}


async def _scrape(engine: RunningEngine) -> str:
    async with engine.http.get(f"{engine.url}/metrics") as response:
        assert response.status == 200
        return await response.text()


def _samples(text: str) -> dict[str, float]:
    """Values by name, and by name and reason where there is one."""
    return {
        sample.name + (":" + sample.labels["reason"] if "reason" in sample.labels else ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("dialect", NAMES)
async def test_each_engine_has_its_own_names_and_types(start_engine: StartEngine, dialect: str) -> None:
    text = await _scrape(await start_engine(metrics=dialect))
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    helped = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP")]
    assert types == NAMES[dialect]
    assert helped == list(types)
    assert set(types) == {name.split(":capacity")[0].split(":deferred")[0] for name in _samples(text)}


async def test_an_engine_without_metrics_has_no_such_page(start_engine: StartEngine) -> None:
    assert (await (await start_engine(metrics="none")).json("GET", "/metrics"))[0] == 404


async def test_running_waiting_and_cache_are_told_while_requests_run(start_engine: StartEngine) -> None:
    engine = await start_engine(max_num_seqs=1, kv_tokens=1_600, model='odd "name"')
    body = {"model": 'odd "name"', "messages": [{"role": "user", "content": "x" * 600}], "ignore_eos": True}
    for _ in range(2):
        await engine.json("POST", "/v1/chat/completions", {**body, "max_tokens": 10})
    idle = _samples(await _scrape(engine))
    assert (idle["vllm:num_requests_running"], idle["vllm:kv_cache_usage_perc"]) == (0, 0)
    assert idle["vllm:prefix_cache_queries_total"] == idle["vllm:prompt_tokens_total"] > 300
    assert idle["vllm:prefix_cache_hits_total"] == 144
    assert idle["vllm:generation_tokens_total"] == 20
    responses = [
        await engine.http.post(f"{engine.url}/v1/chat/completions", json={**body, "max_tokens": 900, "stream": True})
        for _ in range(2)
    ]
    await wait_until(lambda: engine.engine.waiting == 1)
    busy = _samples(await _scrape(engine))
    assert (busy["vllm:num_requests_running"], busy["vllm:num_requests_waiting"]) == (1, 1)
    assert busy["vllm:num_requests_waiting_by_reason:capacity"] == 1
    assert busy["vllm:num_requests_waiting_by_reason:deferred"] == 0
    assert 0 < busy["vllm:kv_cache_usage_perc"] <= 1
    for response in responses:
        response.close()
    await wait_until(lambda: not engine.engine.busy)


async def test_the_cache_config_tells_blocks_and_block_size(start_engine: StartEngine) -> None:
    text = await _scrape(await start_engine(kv_tokens=4_096, block_tokens=128))
    assert 'block_size="128"' in text
    assert 'num_gpu_blocks="32"' in text
    assert "sglang:max_total_num_tokens" in (
        other := await _scrape(await start_engine(metrics="sglang", kv_tokens=4_096))
    )
    assert 'sglang:max_total_num_tokens{model_name="fake-1b"} 4096.0' in other
