"""The runtime is killed with SIGKILL at random moments; `kills` does the same as often as you like."""

from __future__ import annotations

import pathlib

from tests.runtime.kills import kill_many


def test_a_runtime_that_is_killed_loses_no_run_and_repeats_no_effect(tmp_path: pathlib.Path) -> None:
    told = kill_many(tmp_path, kills=4, number=12, seed=1)
    assert told.startswith("kills=4 runs=12")
