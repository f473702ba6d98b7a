"""The examples, run as a user runs them, against the whole stack."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.stack import ROOT, Stack, environment, running_stack

pytestmark = pytest.mark.e2e

TOKEN = "open-sesame"
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {"LUFTPAUSE_ENGINE_SPEED": "10", "LUFTPAUSE_TOKEN": TOKEN}
    with running_stack(tmp_path_factory.mktemp("stack"), settings=settings) as running:
        yield running


def run(name: str, folder: pathlib.Path, **settings: str) -> subprocess.CompletedProcess[str]:
    # A proxy that leads nowhere: an example that talks to anything but BASE_URL fails.
    elsewhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "LUFTPAUSE_TOKEN": TOKEN}
    elsewhere["PYTHONPATH"] = str(ROOT / "client")
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env=environment({**elsewhere, **settings}),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_turns_are_one_run_whose_second_turn_finds_its_prefix(
    name: str, stack: Stack, tmp_path: pathlib.Path
) -> None:
    done = run(name, tmp_path, BASE_URL=stack.base_url, FORCE_TOOL_CALL="1")
    assert done.returncode == 0, done.stdout + done.stderr
    turns = re.findall(r"turn of run ([\w.:-]+): cached_tokens (\d+)", done.stdout)
    assert len(turns) >= 2, done.stdout
    assert len({run_id for run_id, _ in turns}) == 1
    assert int(turns[0][1]) == 0
    assert all(int(cached) > 128 for _, cached in turns[1:])


def test_the_readme_has_a_paragraph_on_each() -> None:
    text = (ROOT / "examples" / "README.md").read_text()
    assert sorted(re.findall(r"^\*\*`(\w+\.py)`\*\*", text, re.MULTILINE)) == EXAMPLES


def test_without_luftpause_the_example_without_headers_says_so(stack: Stack, tmp_path: pathlib.Path) -> None:
    done = run("no_headers.py", tmp_path, BASE_URL=f"{stack.engine_urls[0]}/v1")
    assert done.returncode == 1
    assert "no x-luftpause-run-id in the answer" in done.stderr


def test_the_example_that_suspends_goes_on_without_redoing_a_step(stack: Stack, tmp_path: pathlib.Path) -> None:
    settings = {"BASE_URL": stack.base_url, "FOLDER": str(tmp_path / "kept")}
    codes, answered = [], []
    for tokens in ("1700", "1700", ""):
        done = run("suspend_resume.py", tmp_path, **settings, WINDOW_TOKENS=tokens)
        assert done.stderr == ""
        codes.append(done.returncode)
        answered.append(re.findall(r"^answered: (.*)$", done.stdout, re.MULTILINE))
        assert len(re.findall(r"^turn of run letters:", done.stdout, re.MULTILINE)) == len(answered[-1])
    assert codes == [75, 75, 0]
    assert all(answered)
    letters = [letter for each in answered for letter in each]
    assert len(letters) == len(set(letters)) == 4
    assert "run ended" in done.stdout
    again = run("suspend_resume.py", tmp_path, **settings)
    assert again.returncode == 0
    assert "4 of 4 letters answered" in again.stdout
    assert "turn of run" not in again.stdout
