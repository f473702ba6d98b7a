"""Engines' metrics text, as the engines write it and as nobody should."""

from __future__ import annotations

import time

import pytest

from scheduler.metrics_text import Load, combine, read

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 5.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1.2e+06
"""


def test_vllm_counts_as_waiting_only_what_waits_for_capacity() -> None:
    assert read(VLLM) == Load(3, 2, 0.25)


def test_vllm_without_reasons_tells_all_that_wait() -> None:
    text = b"\n".join(line for line in VLLM.splitlines() if b"by_reason" not in line)
    assert read(text) == Load(3, 7, 0.25)


def test_a_family_whose_name_only_begins_alike_is_another_one() -> None:
    by_reason = b'vllm:num_requests_waiting_by_reason{reason="deferred"} 4\nvllm:num_requests_running_max 9\n'
    assert read(by_reason) == Load()
    assert read(b"xvllm:num_requests_running 9\n vllm:num_requests_waiting 9\n") == Load()


def test_the_ranks_of_one_engine_are_summed_and_their_cache_averaged() -> None:
    text = b"".join(
        b'vllm:num_requests_running{engine="%d"} %d\nvllm:kv_cache_usage_perc{engine="%d"} %s\n' % (rank, 2, rank, used)
        for rank, used in ((0, b"0.5"), (1, b"1.0"))
    )
    assert read(text) == Load(4, None, 0.75)


def test_sglang() -> None:
    text = (
        b'sglang:num_running_reqs{model_name="m",tp_rank="0"} 5.0\nsglang:num_queue_reqs{model_name="m"} 1.0\n'
        b'sglang:token_usage{model_name="m"} 0.4\nsglang:num_queue_reqs_total 9\n'
    )
    assert read(text) == Load(5, 1, 0.4)


def test_llama_cpp() -> None:
    assert read(b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 3\n") == Load(2, 3, None)


def test_labels_may_contain_anything_quoted() -> None:
    text = rb'vllm:num_requests_running{model_name="a} 9 \" \\",engine="0"} 3 1700000000' + b"\r\n"
    assert read(text) == Load(running=3)
    tricky = rb'vllm:num_requests_waiting_by_reason{model_name="reason=\"capacity\"",reason="deferred"} 3'
    assert read(tricky) == Load()


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-Inf", b"-1", b"1e300", b"many", b"0x10", b""])
def test_a_value_that_is_no_count_is_not_there(value: bytes) -> None:
    assert read(b"vllm:num_requests_running " + value + b"\nvllm:num_requests_waiting 1\n") == Load(waiting=1)


@pytest.mark.parametrize(
    "text",
    [b"", b"\x00\xff" * 100, b"<html>not here</html>", b"vllm:num_requests_running", b"vllm:num_requests_running{"],
)
def test_garbage_tells_nothing(text: bytes) -> None:
    assert read(text) == Load()


def test_hostile_text_costs_linear_time() -> None:
    for begin, more in ((b'vllm:num_requests_running{a="', b'\\"' * 10), (b"", b'vllm:num_requests_running{a="\n')):
        costs = []
        for count in (2_000, 16_000):
            started = time.process_time()
            assert read(begin + more * count) == Load()
            costs.append(time.process_time() - started)
        assert costs[1] < 8 * 4 * costs[0] + 0.05, "eight times the text may cost eight times the time"


def test_engines_behind_a_router_are_added_up_as_far_as_they_tell() -> None:
    assert combine([Load(1, 2, 0.5), Load(3, None, 1.0), Load()]) == Load(4, 2, 0.75)
    assert combine([]) == Load()
