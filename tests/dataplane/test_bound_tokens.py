"""Tokens that are bound to a caller or to classes, at the dataplane: no header gets past them."""

from __future__ import annotations

import pathlib

import pytest

from protos import turn_pb2
from tests.dataplane.conftest import Rig
from tests.dataplane.raw_client import CHAT, request
from tests.waiting import wait_until

TOKENS = """
[[token]]
name = "alice"
secret_env = "ALICE_TOKEN"
caller = "alice"

[[token]]
name = "nightly"
secret_env = "NIGHTLY_TOKEN"
classes = ["batch"]
"""
ALICE, NIGHTLY, SHARED = (f"Authorization: Bearer {each}" for each in ("of-alice", "of-nightly", "shared"))


async def start(rig: Rig, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE_TOKEN", "of-alice")
    monkeypatch.setenv("NIGHTLY_TOKEN", "of-nightly")
    (folder / "tokens.toml").write_text(TOKENS)
    await rig.start(token="shared", tokens=folder / "tokens.toml")


async def test_a_bound_token_gives_the_caller_and_no_header_changes_it(
    rig: Rig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(rig, tmp_path, monkeypatch)
    for lines in ((ALICE,), (ALICE, "x-luftpause-caller: alice")):
        assert (await rig.ask(request(CHAT, *lines))).status == 200
        assert rig.scheduler.turns[-1].caller == "alice"
    response = await rig.ask(request(CHAT, ALICE, "x-luftpause-caller: bob"))
    assert (response.status, response.json["error"]["type"]) == (403, "permission_error")
    assert response.error == "x-luftpause-caller: expected 'alice' or nothing: the token is that caller's"
    assert len(rig.scheduler.turns) == 2
    assert (await rig.ask(request(CHAT, SHARED, "x-luftpause-caller: bob"))).status == 200
    assert rig.scheduler.turns[-1].caller == "bob"


async def test_a_token_of_a_class_gives_that_class_and_no_other(
    rig: Rig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(rig, tmp_path, monkeypatch)
    for lines in ((NIGHTLY,), (NIGHTLY, "x-luftpause-class: batch", "x-luftpause-caller: bob")):
        assert (await rig.ask(request(CHAT, *lines))).status == 200
        assert rig.scheduler.turns[-1].run_class == turn_pb2.RUN_CLASS_BATCH
    response = await rig.ask(request(CHAT, NIGHTLY, "x-luftpause-class: interactive"))
    assert (response.status, response.error) == (403, "x-luftpause-class: expected batch: the token allows no other")


async def test_a_bound_token_ends_no_run_of_another_caller(
    rig: Rig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(rig, tmp_path, monkeypatch)
    await rig.ask(request(CHAT, SHARED, "x-luftpause-run-id: r-1", "x-luftpause-caller: bob"))
    end = {"method": "DELETE", "path": "/v1/runs/r-1"}
    assert (await rig.ask(request(b"", ALICE, **end))).status == 409
    assert (await rig.ask(request(b"", ALICE, "x-luftpause-caller: bob", **end))).status == 403
    assert rig.scheduler.last(turn_pb2.REPORT_KIND_RUN_ENDED) is None
    assert (await rig.ask(request(b"", SHARED, "x-luftpause-caller: bob", **end))).status == 200
    await wait_until(lambda: rig.scheduler.last(turn_pb2.REPORT_KIND_RUN_ENDED))


async def test_no_token_of_a_client_reaches_scheduler_or_engine(
    rig: Rig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(rig, tmp_path, monkeypatch)
    assert (await rig.ask(request(CHAT, ALICE))).status == 200
    assert rig.scheduler.metadata[0]["authorization"] == "Bearer shared"
    assert not any("of-alice" in str(value) for value in rig.engine.calls[0].headers.values())
