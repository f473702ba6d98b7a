"""A process may open as many files as its system allows, not as many as its shell does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.stack import environment

CODE = """
import resource
from common import open_files
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
open_files.OPEN_FILES = {wanted}
open_files.allow_many()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "found"), [(64, 512, 256, 256), (64, 128, 256, 128), (256, 512, 128, 256)]
)
def test_the_limit_is_raised_as_far_as_the_system_allows(soft: int, hard: int, wanted: int, found: int) -> None:
    code = CODE.format(soft=soft, hard=hard, wanted=wanted)
    told = subprocess.run([sys.executable, "-c", code], env=environment({}), capture_output=True, check=True)
    assert int(told.stdout) == found
