"""A device small enough to run out of everything, on which a step takes one second for each token it computes."""

from __future__ import annotations

from fakes.engine.batch import Request
from fakes.engine.latency import Profile

SMALL = Profile(
    name="small",
    parameters=0.5,
    weights_bytes=0.0,
    kv_bytes_per_token=0.0,
    bandwidth_bytes_per_s=1.0,
    effective_flops=1.0,
    layers=0,
    kv_tokens=48,
    block_tokens=4,
    token_budget=16,
    max_num_seqs=3,
    max_model_len=40,
    request_s=0.0,
    step_overhead_s=0.0,
)


def request(prompt_tokens: int, reply_tokens: int, stem: int = 0, shared_blocks: int = 0) -> Request:
    """A request whose first `shared_blocks` blocks are those of every request of the same stem, the others its own."""
    made = Request(prompt_tokens, reply_tokens)
    blocks = (prompt_tokens + reply_tokens) // SMALL.block_tokens
    made.hashes = [hash((stem, n, 0 if n < shared_blocks else id(made))) for n in range(blocks)]
    return made
