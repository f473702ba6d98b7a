"""A collector of spans that is down, or takes connections and never answers, costs turns and memory nothing."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import re
import socket
import statistics
import sys
import time
from collections.abc import Iterator

import aiohttp
import pytest

from common.span_export import QUEUE_MAX
from loadgen.ports import free_ports
from tests.stack import Stack, fetched, running_stack

pytestmark = pytest.mark.e2e

SPANS_A_TURN = 2
"""Of the dataplane: the turn and the engine's request."""
TURNS = QUEUE_MAX // SPANS_A_TURN + 500
"""More than the queue of spans holds."""
AT_ONCE = 16
COMPARED = 150
"""Turns of each stack, one after another, in turns."""
LATENCY_X_MAX = 2.0
LATENCY_MS_MORE_MAX = 5.0
"""Beside the same stack without tracing: so much that a busy machine does not fail it, and far from any time limit."""
MEMORY_MIB_MAX = 60.0
"""For a full queue of spans and all that a dataplane is warm with after thousands of turns."""
BODY = {"model": "fake-1b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


async def turn(session: aiohttp.ClientSession, stack: Stack) -> float:
    """Seconds of one turn."""
    began = time.perf_counter()
    async with session.post(f"{stack.base_url}/chat/completions", json=BODY) as answer:
        assert answer.status == 200
        await answer.read()
    return time.perf_counter() - began


async def flood(session: aiohttp.ClientSession, stack: Stack) -> None:
    """Turns enough to fill the queue."""
    left = iter(range(TURNS))

    async def ask() -> None:
        for _ in left:
            await turn(session, stack)

    await asyncio.gather(*(ask() for _ in range(AT_ONCE)))


async def compare(plain: Stack, traced: Stack) -> tuple[float, float]:
    """Median seconds of a turn without tracing, and with it when the queue of spans is full."""
    async with aiohttp.ClientSession() as session:
        await flood(session, traced)
        took: dict[str, list[float]] = {"plain": [], "traced": []}
        for _ in range(COMPARED):
            took["plain"].append(await turn(session, plain))
            took["traced"].append(await turn(session, traced))
    return statistics.median(took["plain"]), statistics.median(took["traced"])


def memory_mib(stack: Stack) -> float:
    """Of the dataplane; 0 where it cannot be read."""
    if sys.platform != "linux":
        return 0.0
    text = pathlib.Path(f"/proc/{stack.services['dataplane'].process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) / 1024


def lost(stack: Stack) -> float:
    """Spans that the dataplane gave up."""
    text = (fetched(f"{stack.base_url.removesuffix('/v1')}/metrics") or b"").decode()
    found = re.search(r"^luftpause_dataplane_lost_spans_total (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


@contextlib.contextmanager
def collector(silent: bool) -> Iterator[int]:
    """The port of one that is silent, or where none listens."""
    if not silent:
        yield free_ports(1)[0]
        return
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("silent", [False, True], ids=["down", "silent"])
def test_turns_take_no_longer_and_memory_is_bounded(tmp_path: pathlib.Path, silent: bool) -> None:
    fast = {"LUFTPAUSE_ENGINE_SPEED": "100"}
    for name in ("plain", "traced"):
        (tmp_path / name).mkdir()
    with collector(silent) as port:
        traced_settings = fast | {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        with (
            running_stack(tmp_path / "plain", 1, fast) as plain,
            running_stack(tmp_path / "traced", 1, traced_settings) as traced,
        ):
            before_mib = memory_mib(traced)
            plain_s, traced_s = asyncio.run(compare(plain, traced))
            grown_mib = memory_mib(traced) - before_mib
            assert lost(traced) > 0, "the queue was never full"
    told = f"{traced_s * 1000:.2f} ms instead of {plain_s * 1000:.2f} ms a turn, {grown_mib:.1f} MiB more"
    print(told)
    assert traced_s * 1000 < LATENCY_X_MAX * plain_s * 1000 + LATENCY_MS_MORE_MAX, told
    assert grown_mib < MEMORY_MIB_MAX, told
