"""docs/reference.md tells every setting, option, key and metric."""

from __future__ import annotations

import subprocess
import sys

from tests.house.sources import ROOT


def test_the_reference_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "tools/gen_reference.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_everything_in_the_reference_is_described() -> None:
    lines = (ROOT / "docs" / "reference.md").read_text().splitlines()
    bare = [line for line in lines if line.startswith("| ") and line.rstrip("| ").count(" | ") < 2]
    assert not bare, "\n".join(bare)
