"""A stand-in for an engine that runs a language model: it stands in for the GPU and for nothing else.

What is real: the OpenAI surface, streams, disconnects, errors, metrics, continuous batching, KV blocks, the prefix
cache and its evictions. What is not: the words (seeded noise), the tokens (four bytes each) and the time a step takes
(a cost model with sources). A figure measured on it says how a pool behaves, not how fast a device is.

Pure: `latency`, `kv_cache`, `batch`, `tokens`, `chat`, `reply`, `arguments`, `labels`, `wire`, `errors`, `faults`,
`ledger`, `metrics`. With clock or sockets: `driver`, `surface`, `server`, `__main__`. Read `batch` next; a simulator
with virtual time drives that alone.
"""
