"""What `up` does where services of a detached instance have ended."""

from __future__ import annotations

import json
import os
import pathlib
import signal

import pytest

from cli import processes, services
from tests.cli.commands import Place, left
from tests.waiting import wait_until_sync


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


def kill(place: Place, name: str) -> None:
    """Kills the service `name` alone, and waits until it is gone."""
    [process] = [each for each in place.recorded() if each.name == name]
    os.kill(process.pid, signal.SIGKILL)
    wait_until_sync(lambda: not processes.is_running(process, processes.snapshot()), what="it is gone")


def test_up_again_starts_what_has_ended_as_it_was_and_leaves_the_rest(place: Place) -> None:
    with place.detached("--workers", "3"):
        before = {each["process"]["name"]: each for each in place.document()["services"]}
        kill(place, "dataplane")
        report = json.loads(place.call("status", "--json").stdout)
        assert [each["name"] for each in report["services"] if not each["healthy"]] == ["dataplane"]
        assert f"./luftpause up --detach --state {place.state} starts what has ended" in report["hint"]
        # Options of this call change nothing.
        again = place.call("up", "--detach", "--only", "runtime", "--runtime-port", "1")
        assert again.returncode == 0, again.stderr
        assert again.stderr == "luftpause: started again: dataplane\n"
        assert "is up already" in again.stdout
        after = {each["process"]["name"]: each for each in place.document()["services"]}
        assert [name for name in after if after[name] != before[name]] == ["dataplane"]
        assert after["dataplane"]["settings"] == before["dataplane"]["settings"]
        assert after["dataplane"]["settings"]["LUFTPAUSE_DATAPLANE_WORKERS"] == "3"
        assert place.call("status").returncode == 0
        started = place.recorded()
        assert left(started) == [*services.NAMES]
    assert left(started) == []


def test_children_of_a_service_that_has_ended_are_ended_before_it_starts_again(place: Place) -> None:
    place.settings = {"STANDIN_CHILD": "1"}
    with place.detached("--only", "scheduler,dataplane"):
        [before] = [each for each in place.recorded() if each.name == "dataplane"]
        kill(place, "dataplane")
        assert left([before]) == ["dataplane"]
        assert place.call("up", "--detach").returncode == 0
        assert left([before]) == []


def test_what_does_not_become_healthy_again_is_told_and_the_rest_goes_on(place: Place) -> None:
    with place.detached("--only", "scheduler,dataplane"):
        kill(place, "dataplane")
        settings, place.settings = place.settings, {"STANDIN_DIES": "1"}
        again = place.call("up", "--detach")
        assert again.returncode == 1
        assert "luftpause: dataplane ended with exit code 3" in again.stderr
        assert left(place.recorded()) == ["scheduler"]
        place.settings = settings
        assert place.call("up", "--detach").returncode == 0
        assert left(place.recorded()) == ["scheduler", "dataplane"]


def test_the_settings_in_up_json_hold_no_secret(place: Place) -> None:
    place.settings = {"LUFTPAUSE_TOKEN": "open-sesame"}
    with place.detached("--only", "scheduler"):
        assert "open-sesame" not in (place.state / "up.json").read_text()
