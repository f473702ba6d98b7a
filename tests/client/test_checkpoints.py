"""The checkpoint file: whole or the one before, never half; and nobody else's."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from luftpause_client import CheckpointError, RunInUseError, session

from tests.stack import ROOT


def saved(folder: pathlib.Path, run_id: str = "r") -> pathlib.Path:
    """The file of a run that was saved once."""
    with session(run_id, folder=folder) as run:
        run.state["done"] = 3
        run.messages.append({"role": "assistant", "content": None})
        run.checkpoint()
    return folder / f"run-{run_id}.json"


def test_what_was_saved_is_there_again(tmp_path: pathlib.Path) -> None:
    saved(tmp_path)
    with session("r", folder=tmp_path) as run:
        assert run.state == {"done": 3}
        assert run.messages == [{"role": "assistant", "content": None}]
        run.state["done"] = 4  # not saved
    with session("r", folder=tmp_path) as run:
        assert run.state == {"done": 3}


def test_a_torn_file_is_a_clear_error(tmp_path: pathlib.Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"run-r\.json: torn"):
            session("r", folder=tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda told: told.update(format="other"), "not a checkpoint"),
        (lambda told: told.update(version=2), "version: expected 1, got 2"),
        (lambda told: told["run"].update(spent_tokens=0, turns=9), "changed by hand"),
        (lambda told: told.update(run=[]), "torn or changed"),
    ],
)
def test_a_foreign_file_is_a_clear_error(tmp_path: pathlib.Path, change: Any, problem: str) -> None:
    path = saved(tmp_path)
    told = json.loads(path.read_bytes())
    change(told)
    path.write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match=problem):
        session("r", folder=tmp_path)
    path.write_text("[1]")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        session("r", folder=tmp_path)


def test_the_file_of_another_run_is_a_clear_error(tmp_path: pathlib.Path) -> None:
    saved(tmp_path).rename(tmp_path / "run-other.json")
    with pytest.raises(CheckpointError, match="run_id: expected 'other', got 'r'"):
        session("other", folder=tmp_path)


@pytest.mark.parametrize("value", [object(), float("nan"), (1, 2), {3: 4}, {"deep": b""}])
def test_what_json_cannot_give_back_is_refused_and_the_checkpoint_before_stays(
    tmp_path: pathlib.Path, value: object
) -> None:
    saved(tmp_path)
    with session("r", folder=tmp_path) as run:
        run.state["done"] = value
        with pytest.raises(CheckpointError, match=r"^state: "):
            run.checkpoint()
    with session("r", folder=tmp_path) as run:
        assert run.state == {"done": 3}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_checkpoint_before(
    tmp_path: pathlib.Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with session("r", folder=tmp_path) as run, monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        run.state["done"] = 4
        with pytest.raises(OSError, match="no space left"):
            run.checkpoint()
    assert path.read_bytes() == whole
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run-r.json", "run-r.lock"]


def test_the_file_is_synced_before_it_gets_its_name_and_the_folder_after(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    fsync, replace = os.fsync, os.replace

    def spy_fsync(descriptor: int) -> None:
        told.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def spy_replace(old: pathlib.Path, new: pathlib.Path) -> None:
        told.append("name")
        replace(old, new)

    with session("r", folder=tmp_path) as run:
        monkeypatch.setattr(os, "fsync", spy_fsync)
        monkeypatch.setattr(os, "replace", spy_replace)
        run.checkpoint()
    assert told == ["file", "name", "folder"]


def test_a_run_is_open_once(tmp_path: pathlib.Path) -> None:
    with session("r", folder=tmp_path):
        with pytest.raises(RunInUseError, match=r"run 'r' is open"):
            session("r", folder=tmp_path)
        with session("s", folder=tmp_path):
            pass
    session("r", folder=tmp_path).close()


@pytest.mark.parametrize("run_id", ["", "a/b", "..", "ä", "x" * 129, "a\n"])
def test_a_run_id_stays_in_the_folder(tmp_path: pathlib.Path, run_id: str) -> None:
    folder = tmp_path / "inside"
    if run_id == "..":
        session(run_id, folder=folder).close()
        assert [each.name for each in folder.iterdir()] == ["run-...lock"]
        return
    with pytest.raises(ValueError, match="run_id: expected 1 to 128"):
        session(run_id, folder=folder)


def test_it_needs_the_standard_library_alone() -> None:
    command = "import luftpause_client, luftpause_client.adapters.openai, luftpause_client.adapters.langgraph"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'client')!r}); {command}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
