"""`./luftpause bench decide`: its report, its bars, and that it sees a classifier that does not answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from loadgen import bench_decide
from loadgen.bench_decide import Counts, report
from loadgen.decide_rig import Way
from loadgen.relay_rig import RigError
from tests.servers import raw_server

TINY = Counts(pairs=5, warmup_pairs=1, agents=2)


@pytest.mark.e2e
async def test_the_report_has_every_figure_and_its_bars() -> None:
    told: list[str] = []
    made = json.loads(json.dumps(await bench_decide.measure(TINY, told.append)))
    assert len(told) == bench_decide.STEPS
    for phase in ("alone", "beside_agents"):
        assert set(made[phase]) == {"direct", "luftpause", "added"}
        for arm in ("direct", "luftpause"):
            assert 0 < made[phase][arm]["p50_ms"] <= made[phase][arm]["p99_ms"]
    assert made["agent_errors"] == 0
    assert len(made["bars"]) == 4


def samples(direct_ms: float, luftpause_ms: float) -> dict[str, list[float]]:
    """A phase in which an arm always takes the same."""
    return {"direct": [direct_ms / 1000] * 100, "luftpause": [luftpause_ms / 1000] * 100}


def test_bars_are_about_what_is_added_to_the_median() -> None:
    made = report(samples(10, 13), samples(20, 30), agent_turns=1, agent_errors=0)
    assert made["passed"]
    assert (made["alone"]["added"]["p50_ms"], made["beside_agents"]["added"]["p50_ms"]) == (3, 10)


@pytest.mark.parametrize(
    ("alone_ms", "beside_ms", "turns", "errors"), [(13.1, 30, 1, 0), (13, 30.1, 1, 0), (13, 30, 0, 0), (13, 30, 1, 1)]
)
def test_a_missed_bar_fails_the_report(alone_ms: float, beside_ms: float, turns: int, errors: int) -> None:
    assert not report(samples(10, alone_ms), samples(20, beside_ms), turns, errors)["passed"]


def test_percentiles_are_by_nearest_rank() -> None:
    seconds = {"direct": [n / 1000 for n in range(1, 101)], "luftpause": [0.1] * 100}
    assert report(seconds, seconds, 1, 0)["alone"]["direct"] == {"p50_ms": 50.5, "p99_ms": 99}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone",
            "/v1/decide answered http/1.1 404 not found: none",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "/v1/decide answered http/1.1 200 ok: {}"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "/v1/decide does not answer: StopIteration"),
        (b"", "/v1/decide does not answer: 0 bytes read"),
    ],
)
async def test_what_is_no_decision_ends_the_bench(answer: bytes, said: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async with raw_server(serve) as port:
        way = await Way.open(port, "/v1/decide")
        with pytest.raises(RigError, match=f"^{said.replace('{', '.').replace('}', '.')}"):
            await way.ask("x")
        way.close()
