"""The variables that begin with `LUFTPAUSE_`: all that anything here reads, and what to say of others. Pure.

A misspelt setting must not be ignored, a misspelt token least of all, so services and commands end where they see a
name that is none of these. `config` has the services' settings themselves; a test keeps this list the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

PREFIX = "LUFTPAUSE_"
_NAMES = {
    "": "LOG_LEVEL POOL STATE TLS_CA TLS_CERT TLS_KEY TOKEN TOKENS",
    "SCHEDULER_": "HOST PORT STATUS_PORT",
    "DATAPLANE_": "BODY_BYTES_MAX BODY_S HEADERS_MAX HEADER_BYTES_MAX HEADER_S HELD_BYTES_MAX HELD_MAX HOST IDLE_S "
    "KEEP_ALIVE_S PORT SCHEDULER UNREAD_S WORKERS",
    "RUNTIME_": "DATAPLANE GRPC_PORT HOST HOSTS KEEP_S MODEL ORIGINS PORT SESSIONS_MAX SESSION_IDLE_S TOOLS "
    "TOOLS_WAIT_S",
    "ENGINE_": "BLOCK_TOKENS FAULTS HOST KEY KV_TOKENS LABELS MAX_MODEL_LEN MAX_NUM_SEQS METRICS MODEL PORTS PROFILE "
    "REPLY_TOKENS SEED SPEED TOKEN_BUDGET TOOL_CALLS",
    "PROVIDER_": "DAY_REQUESTS FAMILY FIXED HOST KEY MODEL PERIOD_S PORT REPLY_TOKENS RETRY_AFTER SAYS SEED TOKEN_MS "
    "WINDOW_REQUESTS WINDOW_TOKENS",
    "TOOLS_": "DEEP_SEARCH_S FAULT FAULT_AT FAULT_TOOL HOST LEDGER LOOKUP_S NOTE_S PORT SEED",
}
_OF_CONTAINERS = (
    "JAEGER_PORT OLLAMA_MODEL OLLAMA_VERSION POOL_FILE REGISTRY SGLANG_VERSION TESTBED_MODEL TESTBED_SHARE TOOLS_FILE "
    "VERSION"
)
"""What the compose files and the release read; a shell from which they are called may have it for all commands."""

SETTINGS = frozenset(f"{PREFIX}{group}{name}" for group, names in _NAMES.items() for name in names.split())
KNOWN = SETTINGS | {f"{PREFIX}{name}" for name in _OF_CONTAINERS.split()}


def faults(environment: Iterable[str], more: Iterable[str] = ()) -> list[str]:
    """One line for each name in `environment` that is ours by its prefix and neither known nor one of `more`."""
    known = KNOWN.union(more)
    unknown = sorted(name for name in environment if name.upper().startswith(PREFIX) and name.upper() not in known)
    return [f"unknown setting {name}; the nearest known one is {_nearest(name.upper(), known)}" for name in unknown]


def _nearest(name: str, known: Iterable[str]) -> str:
    # Without the prefix, which would make all of them alike.
    rests = sorted(each.removeprefix(PREFIX) for each in known)
    return PREFIX + difflib.get_close_matches(name.removeprefix(PREFIX), rests, n=1, cutoff=0.0)[0]
