"""Arms: their commands are filled in, and what is wrong with one is told in a line."""

from __future__ import annotations

import pytest

from loadgen.compare import arms
from loadgen.compare.arms import ArmError, Place

PLACE = Place((1, 2, 3), ("http://127.0.0.1:7", "http://127.0.0.1:8"), "/a folder", "/a/python")


def find(command: str) -> str | None:
    return f"/some where/{command}"


@pytest.mark.parametrize("name", ["router", "round-robin", "nginx", "smg", "smg:x", "vllm-router", "luftpause"])
def test_every_arm_listens_on_its_port_and_knows_all_engines(name: str) -> None:
    arm = arms.named(name, find)
    words = [*PLACE.words(arm.command), *PLACE.fill(arm.config).split()]
    assert any(word.strip(";").endswith(":1") or word == "1" for word in words)
    assert any("127.0.0.1:7" in word for word in words)
    assert any("127.0.0.1:8" in word for word in words)
    assert not any("{port" in word or "{engines" in word for word in words)


def test_a_policy_may_follow_the_name_of_a_peer() -> None:
    assert "cache_aware" in PLACE.words(arms.named("smg:cache_aware", find).command)
    whole_runs = PLACE.words(arms.named("vllm-router:program-scheduling", find).command)
    assert "--enable-program-scheduling" in whole_runs


def test_paths_with_spaces_stay_one_word() -> None:
    assert PLACE.words(arms.named("smg", find).command)[0] == "/some where/smg"


def test_an_arm_of_the_users_is_a_command_or_a_url() -> None:
    mine = arms.given("mine=my-router --listen {port} {engines}")
    assert PLACE.words(mine.command) == ["my-router", "--listen", "1", *PLACE.engines]
    running = arms.given("running=http://127.0.0.1:99/v1/")
    assert (running.command, running.url) == ("", "http://127.0.0.1:99")


@pytest.mark.parametrize("text", ["mine", "=x {port}", "mine=", "mine=router --port 80"])
def test_an_arm_that_cannot_work_is_refused(text: str) -> None:
    with pytest.raises(ArmError, match="--arm"):
        arms.given(text)


def test_a_name_in_braces_that_is_not_known_is_told_with_those_that_are() -> None:
    with pytest.raises(ArmError, match=r"'colour'.*\{engines\}"):
        PLACE.words(arms.given("mine=x {port} {colour}").command)


def test_a_command_that_is_not_installed_is_named() -> None:
    with pytest.raises(ArmError, match="no command 'smg'"):
        arms.named("smg", lambda _command: None)


def test_an_unknown_arm_is_told_with_those_that_are_known() -> None:
    with pytest.raises(ArmError, match="no arm 'x'; there are router"):
        arms.named("x", find)


@pytest.mark.parametrize(
    ("body", "ready"),
    [
        (b'{"workers": [{"is_healthy": true}, {"is_healthy": true}]}', True),
        (b'{"workers": [{"is_healthy": true}, {"is_healthy": false}]}', False),
        (b'{"workers": [{"is_healthy": true}]}', False),
        (b"[]", False),
        (b"no", False),
    ],
)
def test_a_peer_is_ready_once_it_has_found_all_engines(body: bytes, ready: bool) -> None:
    assert arms.workers_healthy(body, 2) is ready


def test_luftpause_is_ready_once_the_models_of_all_engines_are_known() -> None:
    one, other = '{"healthy": true, "models": ["m"]}', '{"healthy": true, "models": []}'
    assert arms.replicas_serve(f'{{"replicas": [{one}, {one}]}}'.encode(), 2)
    assert not arms.replicas_serve(f'{{"replicas": [{one}, {other}]}}'.encode(), 2)
