"""tools/release.sh builds and pushes one image a service, and only of what is committed."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from cli.state import version
from tests.house.sources import ROOT


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    """A committed checkout with what the script looks at."""
    (tmp_path / "tools").mkdir()
    for name in ("pyproject.toml", "CHANGELOG.md", "tools/release.sh"):
        shutil.copy(ROOT / name, tmp_path / name)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
    return tmp_path


def release(checkout: pathlib.Path, *arguments: str, registry: str = "registry.example/l") -> tuple[int, str, str]:
    """Exit code, output and errors of a dry run."""
    environment = {**os.environ, "DRY_RUN": "1", "LUFTPAUSE_REGISTRY": registry}
    script = str(checkout / "tools" / "release.sh")
    done = subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_dry_run_prints_what_it_would_do(checkout: pathlib.Path) -> None:
    code, out, errors = release(checkout, f"v{version()}")
    assert (code, errors) == (0, "")
    images = [f"registry.example/l/{name}:{version()}" for name in ("scheduler", "dataplane", "runtime")]
    names = {path.name.removesuffix(".Dockerfile") for path in (ROOT / "docker").glob("*.Dockerfile")}
    assert names == {"dataplane", "engine", "runtime", "scheduler"}, "the fake engine's is built where it is used"
    assert re.findall(r"^docker build .*--tag (\S+) \.$", out, re.MULTILINE) == images
    assert re.findall(r"^docker push (\S+)$", out, re.MULTILINE) == images


def test_what_is_not_ready_is_named(checkout: pathlib.Path) -> None:
    assert "usage: tools/release.sh vX.Y.Z" in release(checkout)[2]
    assert "usage: tools/release.sh vX.Y.Z" in release(checkout, version())[2]
    assert 'pyproject.toml does not say version = "9.9.9"' in release(checkout, "v9.9.9")[2]
    assert "LUFTPAUSE_REGISTRY is not set" in release(checkout, f"v{version()}", registry="")[2]
    (checkout / "fresh").write_text("")
    code, out, errors = release(checkout, f"v{version()}")
    assert (code, out) == (1, "")
    assert "changes that are not committed" in errors
