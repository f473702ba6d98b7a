"""What `up` and `down` promise, with stand-ins for the services."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from cli import processes, services
from tests.cli.commands import Place, left
from tests.stack import environment, signal_until_ended
from tests.waiting import wait_until_sync


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


def test_a_detached_up_leaves_all_services_running_and_down_ends_exactly_them(place: Place) -> None:
    with place.detached() as up:
        started = place.recorded()
        assert [process.name for process in started] == [*services.NAMES]
        assert left(started) == [*services.NAMES]
        assert f"http://127.0.0.1:{place.dataplane}/v1" in up.stdout
        assert f"http://127.0.0.1:{place.status}/  (" in up.stdout
        assert f"http://127.0.0.1:{place.tools}/mcp" in up.stdout
        assert "curl -N" in up.stdout
        assert '"model": "standin-1"' in up.stdout
        assert "./luftpause load" in up.stdout
        assert f"claude mcp add --transport http luftpause http://127.0.0.1:{place.runtime}/mcp\n" in up.stdout
        down = place.call("down")
    assert (down.returncode, down.stdout) == (0, "luftpause is down\n")
    assert left(started) == []
    assert not (place.state / "up.json").exists()


def test_logs_of_a_detached_up_are_in_the_state_folder(place: Place) -> None:
    with place.detached():
        log = place.state / "logs" / "dataplane.log"
        wait_until_sync(lambda: log.read_text() == f"listening on {place.dataplane}\n", what="the log")


def test_down_where_nothing_is_up_says_so(place: Place) -> None:
    down = place.call("down")
    assert down.returncode == 0
    assert "nothing is up" in down.stdout


def test_a_second_up_says_that_it_is_up(place: Place) -> None:
    with place.detached():
        before = place.document()
        second = place.call("up", "--detach")
        assert second.returncode == 0
        assert f"is up already (state {place.state}); ./luftpause down --state {place.state} ends it" in second.stdout
        assert place.document() == before


def test_a_second_up_beside_one_in_the_foreground_says_that_it_is_up(place: Place) -> None:
    with place.foreground():
        second = place.call("up")
        assert second.returncode == 0
        assert "is up already" in second.stdout


def test_of_two_ups_at_once_one_starts_and_the_other_sees_it(place: Place) -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(place.call, "up", "--detach") for _ in range(3)]
        done = [call.result() for call in calls]
    try:
        assert [each.returncode for each in done] == [0, 0, 0], done
        assert sum("is up already" in each.stdout for each in done) == 2
    finally:
        place.call("down")


def test_two_instances_live_side_by_side(tmp_path: pathlib.Path) -> None:
    one, other = Place(tmp_path / "one"), Place(tmp_path / "other")
    for each in (one, other):
        each.folder.mkdir()
    with one.detached(), other.detached():
        started = other.recorded()
        assert one.call("down").returncode == 0
        assert left(started) == [*services.NAMES]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything(place: Place, number: signal.Signals) -> None:
    with place.foreground() as up:
        started = place.recorded()
        up.send_signal(number)
        output, _ = up.communicate(timeout=20)
        assert up.returncode == 0
        assert left(started) == []
        assert "Traceback" not in output
        assert not (place.state / "up.json").exists()


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_more_signals_while_it_stops_change_nothing(place: Place, second: signal.Signals) -> None:
    with place.foreground("--only", "scheduler") as up:
        started = place.recorded()
        signal_until_ended(up, signal.SIGINT, second)
        assert up.stdout
        assert "Traceback" not in up.stdout.read()
        assert up.returncode == 0
        assert left(started) == []


def test_logs_are_streamed_with_the_name_of_the_service(place: Place) -> None:
    with place.foreground() as up:
        up.terminate()
        output, _ = up.communicate(timeout=20)
    assert f"dataplane | listening on {place.dataplane}" in output
    assert f"scheduler | listening on {place.status},{place.scheduler}" in output


def test_a_child_that_hangs_is_killed_with_its_own_children(place: Place) -> None:
    place.settings = {"STANDIN_HANGS": "1", "STANDIN_CHILD": "1"}
    with place.foreground("--only", "scheduler") as up:
        started = place.recorded()
        assert len(processes.members(started[0], processes.snapshot())) == 2
        up.terminate()
        output, _ = up.communicate(timeout=20)
    assert "scheduler did not end within 5 s and was killed" in output
    assert left(started) == []


def test_a_service_that_dies_ends_up_with_its_last_lines(place: Place) -> None:
    with place.foreground() as up:
        started = place.recorded()
        with pytest.raises(OSError, match=r".*"):
            urllib.request.urlopen(f"http://127.0.0.1:{place.status}/die", timeout=5).read()
        output, _ = up.communicate(timeout=20)
        assert up.returncode == 1
        assert "luftpause: scheduler ended with exit code 3; its last lines:" in output
        assert "\n  dying as asked" in output
        assert left(started) == []


def test_services_do_not_outlive_an_up_that_was_killed(place: Place) -> None:
    with place.foreground() as up:
        started = place.recorded()
        up.kill()
        wait_until_sync(lambda: left(started) == [], timeout_s=30, what="the guard ends the services")


def test_down_ends_an_up_in_the_foreground_cleanly(place: Place) -> None:
    with place.foreground() as up:
        started = place.recorded()
        assert place.call("down").returncode == 0
        output, _ = up.communicate(timeout=20)
        assert up.returncode == 0
        assert "last lines" not in output
        assert left(started) == []


def test_a_reused_pid_is_never_ended(place: Place) -> None:
    with place.detached():
        path = place.state / "up.json"
        stranger = Place(place.folder / "stranger")
        stranger.folder.mkdir()
        with stranger.detached("--only", "scheduler"):
            [theirs] = stranger.recorded()
            ours = place.recorded()
            text = path.read_text().replace(f'"pid": {ours[0].pid},', f'"pid": {theirs.pid},')
            path.write_text(text)
            place.call("down")
            assert left([theirs]) == ["scheduler"]
        processes.end(ours)


def test_what_a_reboot_left_in_the_state_folder_is_no_instance(place: Place) -> None:
    with place.detached("--only", "scheduler"):
        started = place.recorded()
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
        wait_until_sync(lambda: left(started) == [], what="all are gone")
        status = place.call("status")
        assert status.returncode == 1
        assert f"./luftpause down --state {place.state} ends what is left" in " ".join(status.stdout.split())
        again = place.call("up", "--detach", "--only", "scheduler")
        assert again.returncode == 0
        assert "already" not in again.stdout
        assert place.recorded() != started


def test_an_up_that_is_stopped_before_all_is_healthy_fails_and_leaves_nothing(place: Place) -> None:
    place.settings = {"STANDIN_UNHEALTHY": "1"}
    up = subprocess.Popen(place.command("up", "--detach"), env=environment(place.settings), stderr=subprocess.PIPE)
    try:
        wait_until_sync(lambda: len(place.recorded()) == len(services.NAMES), timeout_s=60, what="all are started")
        started = place.recorded()
        up.terminate()
        _, errors = up.communicate(timeout=60)
    finally:
        up.kill()
        up.communicate()
        place.call("down")
    assert up.returncode == 1
    assert b"stopped before all was healthy" in errors
    assert left(started) == []


def test_an_up_json_of_somebody_else_is_named(place: Place) -> None:
    place.state.mkdir()
    (place.state / "up.json").write_text("[]")
    for command in ("up", "down", "status"):
        done = place.call(command)
        assert done.returncode == 1
        assert re.fullmatch(r"luftpause: .*up\.json is not a file that ./luftpause up wrote; .*\n", done.stderr)


@pytest.mark.parametrize("name", ["dataplane", "scheduler", "status", "engine"])
def test_a_taken_port_names_the_option_and_starts_nothing(place: Place, name: str) -> None:
    with socket.create_server(("127.0.0.1", getattr(place, name))):
        up = place.call("up", "--detach")
    assert up.returncode == 1
    assert f"choose another one with --{name}-port" in up.stderr
    assert up.stderr.count("\n") == 1
    assert not (place.state / "up.json").exists()


def test_a_dataplane_without_any_scheduler_is_refused_at_once_and_one_beside_another_starts(place: Place) -> None:
    up = place.call("up", "--detach", "--only", "dataplane")
    assert up.returncode == 1
    assert up.stderr == (
        f"luftpause: dataplane without a scheduler: none listens at 127.0.0.1:{place.scheduler}; start one too "
        "(--only scheduler,dataplane), or name the port of one that is up with --scheduler-port\n"
    )
    with socket.create_server(("127.0.0.1", place.scheduler)), place.detached("--only", "dataplane"):
        assert left(place.recorded()) == ["dataplane"]


def test_all_taken_ports_are_told_at_once_and_another_luftpause_is_known(place: Place) -> None:
    other = Place(place.folder / "other")
    other.folder.mkdir()
    with other.detached():
        place.dataplane, place.status, place.scheduler = other.dataplane, other.status, other.scheduler
        with socket.create_server(("127.0.0.1", place.runtime)):
            up = place.call("up", "--detach")
    assert up.returncode == 1
    theirs = "is taken by another luftpause (./luftpause down --state DIR ends it)"
    assert up.stderr == (
        f"luftpause: port {place.scheduler} of scheduler {theirs}; choose another one with --scheduler-port\n"
        f"luftpause: port {place.status} of scheduler {theirs}; choose another one with --status-port\n"
        f"luftpause: port {place.dataplane} of dataplane {theirs}; choose another one with --dataplane-port\n"
        f"luftpause: port {place.runtime} of runtime is taken; choose another one with --runtime-port\n"
    )


def test_every_variable_that_up_sets_is_refused_with_its_option(place: Place) -> None:
    set_by_up = {name for service in services.table(services.Ports(), 1).values() for name in service.settings}
    assert services.OPTIONS.keys() == set_by_up
    place.settings = {"LUFTPAUSE_DATAPLANE_WORKERS": "3"}
    up = place.call("up", "--detach")
    assert up.returncode == 2
    assert up.stderr == (
        "luftpause: LUFTPAUSE_DATAPLANE_WORKERS is set, but up sets it itself; unset it and use --workers\n"
    )


@pytest.mark.parametrize("command", ["up", "down", "status", "runs"])
def test_every_command_refuses_misspelt_settings_each_in_a_line_of_its_own(place: Place, command: str) -> None:
    place.settings = {"LUFTPAUSE_TOEKN": "sesame", "LUFTPAUSE_POLL": "x"}
    done = place.call(command)
    assert done.returncode == 2
    assert done.stderr == (
        "luftpause: unknown setting LUFTPAUSE_POLL; the nearest known one is LUFTPAUSE_POOL\n"
        "luftpause: unknown setting LUFTPAUSE_TOEKN; the nearest known one is LUFTPAUSE_TOKEN\n"
    )


def test_a_token_that_no_header_can_carry_is_refused_and_not_printed(place: Place) -> None:
    place.settings = {"LUFTPAUSE_TOKEN": "open sesame"}
    up = place.call("up")
    assert up.returncode == 2
    assert up.stderr == "luftpause: LUFTPAUSE_TOKEN: expected printable ASCII without spaces\n"


def test_a_port_wanted_twice_names_both_options(place: Place) -> None:
    place.status = place.dataplane
    up = place.call("up")
    assert up.returncode == 2
    assert f"port {place.status} is wanted twice; change --dataplane-port or --status-port" in up.stderr


def test_status_fails_while_a_replica_is_unhealthy(place: Place) -> None:
    place.settings = {"STANDIN_SICK": "1"}
    with place.detached():
        status = place.call("status")
    assert status.returncode == 1
    assert "not healthy" in status.stdout


def test_a_tool_server_that_is_not_connected_is_told(place: Place) -> None:
    place.settings = {"STANDIN_NO_TOOLS": "1"}
    said = "tool server 'wiki' is not connected: /nope: No such file\n"
    with place.detached() as up:
        status = place.call("status")
    assert up.stderr == f"luftpause: {said}"
    assert (status.returncode, said in status.stdout) == (1, True)


def test_status_hints_at_down_after_up_was_killed(place: Place) -> None:
    with place.foreground() as up:
        assert json.loads(place.call("status", "--json").stdout)["hint"] == ""
        started = place.recorded()
        up.kill()
        wait_until_sync(lambda: left(started) == [], timeout_s=30, what="the guard ends the services")
        status = place.call("status")
        assert status.returncode == 1
        said = " ".join(status.stdout.split())
        assert f"the up that watched it is gone; ./luftpause down --state {place.state} clears up" in said


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (2, ("--engine-key-env", "A", "--engine", "http://a"), "must follow the --engine that it is for"),
        (2, ("--engine", "http://a", "--engine-key-env", "A", "--engine-key-env", "B"), "must follow the --engine"),
        (2, ("--engine", "a"), "--engine a: expected an http:// or https:// URL"),
        (2, ("--engine", "http://a", "--pool", "x"), "exclude each other"),
        (2, ("--only", "schedular"), "no service 'schedular'; there are engines, tools, scheduler, dataplane, runtime"),
        (1, ("--pool", "missing.toml"), "missing.toml: No such file or directory"),
        (2, ("--dataplane-port", "0"), "should be greater than or equal to 1"),
    ],
)
def test_a_wrong_call_says_what_was_expected(place: Place, code: int, arguments: tuple[str, ...], said: str) -> None:
    up = place.call("up", *arguments)
    assert up.returncode == code
    assert said in " ".join(up.stderr.replace("│", " ").split())
    assert "Traceback" not in up.stderr


def test_a_state_folder_without_room_is_told_before_anything_starts(place: Place) -> None:
    """A limit on the size of files stands for a full disk, which would take rights to make."""
    up = subprocess.run(
        place.command("up", "--detach"),
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    said = f"luftpause: state folder {place.state}: File too large; make room, or choose another one with --state\n"
    assert (up.returncode, up.stderr) == (1, said)
    assert sorted(each.name for each in place.state.iterdir()) == ["logs", "up.lock"]


@pytest.mark.parametrize("command", [(), ("load",), ("simulate",), ("bench",), ("bench", "flood"), ("up",), ("runs",)])
def test_help_is_whole_in_80_columns(command: tuple[str, ...]) -> None:
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "cli", *command, "--help"],
        env=environment({"COLUMNS": "80"}),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "Usage: ./luftpause" in shown
    assert "…" not in shown
    assert "..." not in shown.replace("COMMAND [ARGS]...", "").replace("[PYTEST_ARGUMENTS]...", "")
    assert max(map(len, shown.splitlines())) <= 80


def test_a_state_folder_that_cannot_be_made_names_the_option(place: Place) -> None:
    place.state.write_text("a file")
    up = place.call("up")
    assert up.returncode == 1
    assert "choose another one with --state" in up.stderr
