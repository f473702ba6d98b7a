"""`./luftpause bench relay`: its report, that it ends what it starts, and that it sees wrong answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import signal
import sys
from collections.abc import Iterator

import pytest

from loadgen import bench_relay, relay_figures, relay_rig, relay_wire
from loadgen.ports import free_ports
from loadgen.relay_figures import Sample
from tests.servers import raw_server
from tests.stack import ROOT, environment
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads other processes as Linux tells of them")

TINY = bench_relay.Counts(repeats=1, turns=20, at_once=4, streams=4, chunks=5, pace_ms=1, open_streams=10)
SPREAD = {"median", "min", "max"}


def sample(chunk_us: float = 1.0, stream_kib: float = 1.0, disconnect_s: float = 0.1, errors: int = 0) -> Sample:
    return Sample(10.0, chunk_us, stream_kib, disconnect_s, errors, "broken" if errors else "")


def tree(pid: int) -> Iterator[int]:
    """All processes below `pid`."""
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from tree(child)


def alive(pids: list[int]) -> list[int]:
    """Those of `pids` that still run."""
    return [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


@pytest.mark.e2e
@pytest.mark.parametrize("yardstick", ["nginx", "direct"])
async def test_the_report_has_every_figure_of_both_arms_and_no_errors(yardstick: str) -> None:
    nginx = bench_relay.find_nginx() if yardstick == "nginx" else None
    if yardstick == "nginx" and nginx is None:
        pytest.skip("needs nginx")
    told: list[str] = []
    report = json.loads(json.dumps(await bench_relay.measure(TINY, nginx, told.append)))
    assert set(report) >= {"machine", "cores", "load", "counts", "figures", "errors", "first_error", "bars", "passed"}
    assert report["yardstick"] == yardstick
    assert report["errors"] == {"luftpause": 0, yardstick: 0}, report["first_error"]
    assert set(report["figures"]) == {"turn_us", "chunk_us", "stream_kib", "disconnect_s"}
    for figures in report["figures"].values():
        assert set(figures) == {"luftpause", yardstick, "ratio"}
        assert set(figures["luftpause"]) == set(figures[yardstick]) == SPREAD
    for quantity in ("turn_us", "chunk_us"):
        assert report["figures"][quantity]["luftpause"]["median"] > 0
        assert set(report["figures"][quantity]["ratio"]) == SPREAD
    judged = [bar["what"] for bar in report["bars"] if bar["seen"] is not None]
    assert ("chunk_us ÷ nginx's" in judged) == (yardstick == "nginx")
    assert len(told) == bench_relay.steps(TINY)


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_ends_all_it_started_when_it_is_interrupted(number: signal.Signals) -> None:
    bench = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli", "bench", "relay", "--json"),
        cwd=ROOT,
        env=environment({}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    started: list[int] = []
    try:
        await wait_until(lambda: len(list(tree(bench.pid))) >= 4, 30, "engine, client, scheduler and dataplane run")
        started = list(tree(bench.pid))
        bench.send_signal(number)
        out, err = await asyncio.wait_for(bench.communicate(), 20)
    finally:
        if bench.returncode is None:
            bench.kill()
            await bench.wait()
    assert (bench.returncode, out, err) == (130, b"", b"luftpause: interrupted\n")
    assert alive(started) == []


async def test_an_answer_that_is_not_the_right_one_is_an_error(tmp_path: pathlib.Path) -> None:
    async def answer_others(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The answer to some other turn, twice, then none."""
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(relay_wire.BODY_BYTES)
            body = relay_wire.whole(999)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    order = {"do": "turns", "count": 3, "at_once": 1, "chunks": 0, "pace_ms": 0, "within_s": 10}
    async with raw_server(answer_others) as port:
        with contextlib.ExitStack() as opened:
            start = relay_rig.Starter(tmp_path, opened)
            cores = relay_rig.Cores.choose().rest
            client = start("client", relay_rig.python("loadgen.relay_client"), cores, piped=True)
            said = await client.order(port=port, **order)
            refused = await client.order(port=free_ports(1)[0], **order)
    assert (said["answers"], said["errors"]) == (0, 3)
    assert said["first_error"].startswith("status 200, ")
    assert (refused["answers"], refused["errors"]) == (0, 1)


def test_every_bar_is_judged_by_the_median() -> None:
    good = relay_figures.report([sample(), sample(chunk_us=99.0), sample()], [sample()] * 3, "nginx")
    assert good["passed"]
    assert good["figures"]["chunk_us"]["ratio"] == {"median": 1.0, "min": 1.0, "max": 99.0}


@pytest.mark.parametrize("ours", [sample(chunk_us=2.6), sample(stream_kib=21.0), sample(disconnect_s=1.1)])
def test_a_missed_bar_fails_the_report(ours: Sample) -> None:
    assert not relay_figures.report([ours], [sample()], "nginx")["passed"]


def test_one_error_of_either_arm_fails_the_report_and_is_told() -> None:
    for arms in (([sample(errors=1)], [sample()]), ([sample()], [sample(errors=1)])):
        report = relay_figures.report(*arms, "nginx")
        assert not report["passed"]
        assert report["first_error"] == "broken"


def test_without_nginx_its_bar_is_not_judged() -> None:
    assert relay_figures.report([sample(chunk_us=99.0)], [sample()], "direct")["passed"]


def test_elsewhere_than_on_linux_it_says_that_it_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert bench_relay.main(json_output=True) == 0
    assert "skipped" in json.loads(capsys.readouterr().out)
