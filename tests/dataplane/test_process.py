"""The dataplane as a process, alone and with workers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket

import pytest

from loadgen.ports import free_ports
from tests.stack import Service, running_stack, start, started, wait_healthy
from tests.waiting import wait_until_sync

SETTINGS = {"LUFTPAUSE_DATAPLANE_SCHEDULER": "127.0.0.1:1"}


def get(port: int, path: str) -> bytes:
    """The body of `GET path`, on a connection of its own."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


def settings(port: int, **more: str) -> dict[str, str]:
    return {**SETTINGS, "LUFTPAUSE_DATAPLANE_PORT": str(port), **more}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_says_where_it_listens_and_ends_cleanly(tmp_path: pathlib.Path, workers: str) -> None:
    (port,) = free_ports(1)
    chosen = settings(port, LUFTPAUSE_DATAPLANE_WORKERS=workers)
    with started("dataplane", chosen, tmp_path / "log") as service:
        wait_healthy(service, (f"http://127.0.0.1:{port}/health",))
        wait_until_sync(lambda: f"dataplane listening address=127.0.0.1:{port} workers={workers}" in service.text())
        assert "setting=LUFTPAUSE_TOKEN" in service.text()
    assert service.process.returncode == 0
    assert "Traceback" not in service.text()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_taken_port_is_told_in_one_line(tmp_path: pathlib.Path, workers: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        service = start(
            "dataplane", settings(port, LUFTPAUSE_DATAPLANE_WORKERS=workers, LUFTPAUSE_TOKEN="t"), tmp_path / "log"
        )
        assert service.process.wait(20) == 1
    assert re.fullmatch(
        r"dataplane cannot listen on .*: it is taken; set LUFTPAUSE_DATAPLANE_PORT .*\n", service.text()
    )


def test_a_wrong_pool_file_is_told_in_one_line(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pool.toml").write_text('[[replica]]\nname = "a"\nurl = "http://a"\nkey_env = "NO_SUCH_KEY"\n')
    (port,) = free_ports(1)
    chosen = settings(port, LUFTPAUSE_POOL=str(tmp_path / "pool.toml"), LUFTPAUSE_TOKEN="t")
    service = start("dataplane", chosen, tmp_path / "log")
    assert service.process.wait(20) == 1
    assert service.text() == "replica 'a': key_env names NO_SUCH_KEY, which is not set\n"


def metric(port: int, name: str) -> float:
    """One number of `/metrics`."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", get(port, "/metrics").decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def workers_of(service: Service) -> list[int]:
    """Process ids of the workers, as the system tells."""
    children = pathlib.Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    if not children.exists():
        pytest.skip("the system does not tell a process's children")
    return [int(pid) for pid in children.read_text().split()]


def test_metrics_are_those_of_all_workers_and_a_dead_one_comes_back(tmp_path: pathlib.Path) -> None:
    with running_stack(tmp_path, replicas=1, settings={"LUFTPAUSE_DATAPLANE_WORKERS": "3"}) as stack:
        port = int(stack.base_url.split(":")[2].split("/")[0])
        wait_until_sync(lambda: metric(port, "luftpause_dataplane_schedulers_connected") == 3, timeout_s=20)
        models = wait_until_sync(lambda: json.loads(get(port, "/v1/models"))["data"], timeout_s=20)
        model = models[0]["id"]
        body = json.dumps({"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]})
        for _ in range(12):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("POST", "/v1/chat/completions", body)
            assert connection.getresponse().status == 200
            connection.close()
        for _ in range(4):
            assert metric(port, 'luftpause_dataplane_turns_total{class="interactive",outcome="ended"}') == 12
        service = stack.services["dataplane"]
        before = workers_of(service)
        assert len(before) == 3
        os.kill(before[0], signal.SIGKILL)
        wait_until_sync(lambda: len(set(workers_of(service)) - set(before)) == 1, timeout_s=15)
        wait_until_sync(lambda: metric(port, "luftpause_dataplane_schedulers_connected") == 3, timeout_s=20)
    assert "Traceback" not in service.text()


def test_workers_end_when_their_parent_is_killed(tmp_path: pathlib.Path) -> None:
    (port,) = free_ports(1)
    log = tmp_path / "log"
    service = start("dataplane", settings(port, LUFTPAUSE_DATAPLANE_WORKERS="2"), log)
    try:
        wait_until_sync(lambda: "dataplane listening" in service.text(), timeout_s=20)
        workers = workers_of(service)
    finally:
        service.kill()
    wait_until_sync(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in workers), timeout_s=10)
