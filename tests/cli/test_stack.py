"""The command line with the real services."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import signal
from typing import Any

import pytest

from cli import processes
from tests.cli.commands import REAL, Place, left
from tests.waiting import wait_until_sync

pytestmark = pytest.mark.e2e


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path, module=REAL)


def ask(port: int, token: str | None = None) -> tuple[http.client.HTTPResponse, str]:
    """One streamed turn: the answer and its whole body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    body = {"model": "fake-1b", "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        return response, response.read().decode()
    finally:
        connection.close()


def decided(port: int) -> dict[str, Any]:
    """What the classifier makes of a text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/v1/decide", json.dumps({"input": "You have won a prize!"}))
        told: dict[str, Any] = json.load(connection.getresponse())
        return told
    finally:
        connection.close()


def test_a_detached_up_answers_a_streamed_turn_and_leaves_no_process(place: Place) -> None:
    with place.detached("--workers", "2") as up:
        started = place.recorded()
        assert '"model": "fake-1b"' in up.stdout
        response, text = ask(place.dataplane)
        assert response.status == 200
        assert response.headers["x-luftpause-run-id"]
        assert text.rstrip().endswith("data: [DONE]")
        [dataplane] = [process for process in started if process.name == "dataplane"]
        assert len(processes.members(dataplane, processes.snapshot())) >= 3
        status = place.call("status")
        assert status.returncode == 0
        assert "engine-1" in status.stdout
        assert decided(place.dataplane)["label"].startswith("LABEL_")
        assert "idle" in status.stdout
        report = json.loads(place.call("status", "--json").stdout)
        assert [replica["healthy"] for replica in report["scheduler"]["replicas"]] == [True, True, True]
        down = place.call("down")
    assert down.stderr == ""
    assert left(started) == []


def test_services_and_workers_do_not_outlive_an_up_that_was_killed(place: Place) -> None:
    with place.foreground("--workers", "2") as up:
        started = place.recorded()
        up.kill()
        wait_until_sync(lambda: left(started) == [], timeout_s=30, what="the guard ends the services")


def test_all_is_seen_to_be_healthy_when_a_detached_up_returns_also_the_second_time(place: Place) -> None:
    with place.detached():
        assert place.call("status").returncode == 0
        fakes = [each for each in place.recorded() if each.name in ("engines", "tools")]
        for each in fakes:
            os.kill(each.pid, signal.SIGKILL)
        wait_until_sync(lambda: left(fakes) == [], what="they are gone")
        wait_until_sync(lambda: place.call("status").stdout.count("not healthy") > 1, what="the scheduler sees it")
        again = place.call("up", "--detach")
        assert "started again: engines, tools\n" in again.stderr
        status = place.call("status")
        assert status.returncode == 0, status.stdout


def test_the_token_reaches_the_services_and_is_used_by_status(place: Place) -> None:
    place.settings = {"LUFTPAUSE_TOKEN": "open-sesame"}
    with place.detached() as up:
        assert "LUFTPAUSE_TOKEN" in up.stdout
        assert "open-sesame" not in up.stdout
        refused, _ = ask(place.dataplane)
        assert refused.status == 401
        answered, _ = ask(place.dataplane, "open-sesame")
        assert answered.status == 200
        report = json.loads(place.call("status", "--json").stdout)
        assert report["scheduler_error"] == ""
        place.settings = {}
        status = place.call("status")
        assert status.returncode == 1
        assert "tells no status: HTTP 401: set LUFTPAUSE_TOKEN" in status.stdout
