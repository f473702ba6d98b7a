"""docs/reference.md tells every setting, option, key and metric."""

from __future__ import annotations

import re
import subprocess
import sys

from common import variables
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


def test_the_known_variables_are_those_that_something_reads() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    told = re.findall(r"^\| `(LUFTPAUSE_\w+)`", text, re.MULTILINE)
    assert set(told) == variables.SETTINGS
    containers = [*ROOT.glob("compose*.yaml"), ROOT / "tools" / "release.sh"]
    read = {name for path in containers for name in re.findall(r"\$\{?(LUFTPAUSE_\w+)", path.read_text())}
    assert variables.SETTINGS | read == variables.KNOWN
