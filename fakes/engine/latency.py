"""What a step costs on a device. Pure; must not know requests, only counts. Read `batch` next.

Decoding reads the weights and the KV cache once a step, so memory bandwidth bounds it; prefill computes, so FLOP/s
bound it. The linear layers of a step do whichever takes longer (a roofline), attention's KV reads and the launch
overheads come on top. The factors 1.36 and 1.95 and the three overheads are inference-sim's fit of vLLM on GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

WEIGHTS_FACTOR = 1.36
"""Measured over ideal time of reading the weights."""
KV_FACTOR = 1.95
"""Measured over ideal time of reading the KV cache."""


@dataclass(frozen=True, slots=True)
class Texts:
    """What the load's texts are in tokens, by the model's tokeniser and chat template."""

    chars_per_token: float = 4.3
    context_overhead_tokens: float = 45.0
    """Of the chat template, the tools and the fixed sentences around a run's context."""
    result_overhead_tokens: float = 26.0
    """The same around a tool's result and the reply before it; below 0 where replies do not go back whole, such as
    tool calls that were cut off."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One model on one device."""

    name: str
    parameters: float
    """Parameters multiplied per token."""
    weights_bytes: float
    """Bytes of weights read per step."""
    kv_bytes_per_token: float
    bandwidth_bytes_per_s: float
    effective_flops: float
    """Peak FLOP/s times the share of it that prefill reaches (MFU)."""
    layers: int
    kv_tokens: int
    """Tokens that fit into the memory left for the KV cache."""
    block_tokens: int
    token_budget: int
    """Most tokens a step."""
    max_num_seqs: int
    """Most requests that run at once."""
    max_model_len: int
    """Most tokens of prompt and completion together."""
    layer_s: float = 32e-6
    """Overhead per layer and step."""
    request_s: float = 4.4e-6
    """Overhead per request and step."""
    step_overhead_s: float = 126e-6
    """Overhead per step."""
    attention_pair_s: float = 0.0
    """Prefill's attention, per pair of a computed token and a token before it; 0 where it is small beside the rest."""
    turn_s: float = 0.0
    """Overhead per turn outside of all steps, such as reading the request; 0 where it is small beside a step."""
    texts: Texts = field(default_factory=Texts)


class CostModel:
    """Step times of one profile; the divisions are done once, since `step_s` is called each step."""

    __slots__ = ("_fixed_s", "_kv_s", "_pair_s", "_request_s", "_token_s", "_weights_s")

    def __init__(self, profile: Profile) -> None:
        self._weights_s = profile.weights_bytes / profile.bandwidth_bytes_per_s * WEIGHTS_FACTOR
        self._kv_s = profile.kv_bytes_per_token / profile.bandwidth_bytes_per_s * KV_FACTOR
        self._token_s = 2.0 * profile.parameters / profile.effective_flops
        self._fixed_s = profile.layer_s * profile.layers + profile.step_overhead_s
        self._request_s = profile.request_s
        self._pair_s = profile.attention_pair_s

    def step_s(self, tokens: int, context_tokens: int, requests: int, pairs: int = 0) -> float:
        """Seconds of a step that computes `tokens` for `requests`, whose attention reads `context_tokens` of KV and
        prefills `pairs` of tokens."""
        linear_s = max(self._weights_s, self._token_s * tokens)
        attention_s = self._kv_s * context_tokens + self._pair_s * pairs
        return linear_s + attention_s + self._fixed_s + self._request_s * requests


LAPTOP_1B = Profile(
    # Llama 3.2 1B in FP8 on an RTX 4060 Laptop (256 GB/s). The tied head of 0.26 B parameters stays in 16 bits.
    # Decoding at 2k context takes 9, 17, 25 ms for 1, 16, 32 requests; prefill 12k tokens/s. One of two replicas that
    # share 8 GB.
    name="laptop-1b",
    parameters=1.24e9,
    weights_bytes=1.5e9,
    kv_bytes_per_token=32 * 1024,
    bandwidth_bytes_per_s=256e9,
    effective_flops=2 * 1.24e9 * 12_000,
    layers=16,
    kv_tokens=49_152,
    block_tokens=16,
    token_budget=2_048,
    max_num_seqs=64,
    max_model_len=16_384,
)

H100_8B = Profile(
    # Llama 3.1 8B in 16 bits on an H100 SXM (3.35 TB/s, 989 TFLOP/s). The input embedding is looked up, not read, which
    # leaves 7.5 B. Decoding at 2k context takes 7, 9, 12 ms for 1, 16, 32 requests; prefill 30k tokens/s
    # (28k here: MFU 0.45).
    name="h100-8b",
    parameters=8.03e9,
    weights_bytes=15e9,
    kv_bytes_per_token=128 * 1024,
    bandwidth_bytes_per_s=3.35e12,
    effective_flops=989e12 * 0.45,
    layers=32,
    kv_tokens=409_600,
    block_tokens=16,
    token_budget=8_192,
    max_num_seqs=256,
    max_model_len=131_072,
)

A100_8B = Profile(
    # The same on an A100 SXM 80 GB (2.04 TB/s, 312 TFLOP/s): 11, 15, 19 ms; prefill 8k tokens/s at MFU 0.42.
    name="a100-8b",
    parameters=8.03e9,
    weights_bytes=15e9,
    kv_bytes_per_token=128 * 1024,
    bandwidth_bytes_per_s=2.04e12,
    effective_flops=312e12 * 0.42,
    layers=32,
    kv_tokens=409_600,
    block_tokens=16,
    token_budget=8_192,
    max_num_seqs=256,
    max_model_len=131_072,
)

H100X4_70B = Profile(
    # Llama 3.1 70B in 16 bits, tensor-parallel on four H100 SXM (13.4 TB/s, 3,956 TFLOP/s together). Parallel layers
    # exchange what they computed twice a layer, some 12 µs each at these sizes, which is in `layer_s`. 320 KiB a token.
    name="h100x4-70b",
    parameters=69.5e9,
    weights_bytes=139e9,
    kv_bytes_per_token=320 * 1024,
    bandwidth_bytes_per_s=4 * 3.35e12,
    effective_flops=4 * 989e12 * 0.40,
    layers=80,
    kv_tokens=450_000,
    block_tokens=16,
    token_budget=8_192,
    max_num_seqs=256,
    max_model_len=131_072,
    layer_s=32e-6 + 2 * 12e-6,
)

CPU_TESTBED = Profile(
    # vLLM 0.32 on one core, a model of width 128 with 4 layers, KV blocks of 128 tokens: 43 interactive runs/min alone,
    # 10-13 beside 129-134 batch runs/min through a router. Fitted, not derived (`./luftpause bench fidelity`): 8 ms a
    # token alone, 33 ms at 12 requests of a flood that finds nothing cached. The engine's own Python is what costs,
    # so the overheads carry it; decoding is what bounds it.
    name="cpu-testbed",
    parameters=1e6,
    weights_bytes=0,
    kv_bytes_per_token=0.22e-6 / KV_FACTOR * 10e9,
    bandwidth_bytes_per_s=10e9,
    effective_flops=2 * 1e6 / 40e-6,
    layers=0,
    kv_tokens=16_384,
    block_tokens=128,
    token_budget=2_048,
    max_num_seqs=16,
    max_model_len=8_192,
    request_s=0.3e-3,
    step_overhead_s=6.6e-3,
    attention_pair_s=1e-8,
)

CPU_TESTBED_PREFILL = replace(
    # The same with a model of width 384 and 6 layers: 23 interactive runs/min alone, 3.2 beside 27 through a router.
    # Prefill is what bounds it.
    CPU_TESTBED,
    name="cpu-testbed-prefill",
    effective_flops=2 * 1e6 / 200e-6,
    step_overhead_s=9e-3,
    attention_pair_s=1e-7,
)

CPU_TESTBED_AVX2 = replace(
    # CPU_TESTBED's model on cores without AVX-512, measured here: 5.6 interactive beside 67 batch runs/min through a
    # router, 25.6 and 53 where luftpause keeps all prefixes. Fitted to sweeps; what a token computed costs was 1.8
    # times as much there, where each prompt is computed alone, as floods show. Neither prefill nor decoding bounds it.
    CPU_TESTBED,
    name="cpu-testbed-avx2",
    kv_bytes_per_token=0.94e-6 / KV_FACTOR * 10e9,
    effective_flops=2 * 1e6 / 27e-6,
    request_s=0.0,
    step_overhead_s=8.6e-3,
    attention_pair_s=8e-8,
    turn_s=0.046,
)

PROFILES = {
    profile.name: profile
    for profile in (
        LAPTOP_1B,
        H100_8B,
        A100_8B,
        H100X4_70B,
        CPU_TESTBED,
        CPU_TESTBED_AVX2,
        CPU_TESTBED_PREFILL,
    )
}
"""Profiles by name."""
