"""What the documents show to be copied works: each is cut out of its document and run against the whole stack."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.node import installed_modules, run
from tests.runtime.service_process import running_runtime
from tests.scheduler.test_host_node import DRIVE_S, FOLDER
from tests.stack import ROOT, Stack, environment, running_stack

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = {"LUFTPAUSE_ENGINE_SPEED": "10"}
    with running_stack(tmp_path_factory.mktemp("stack"), settings=settings, classifier=True) as running:
        yield running


def shown(document: str, language: str, stack: Stack, about: str = "") -> str:
    """The one block of `language` in `document` with the text `about`, with the addresses of `stack` and the checkout's
    path."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)
    [block] = [each for each in found if about in each]
    return (
        str(block)
        .replace("http://127.0.0.1:8080/v1", stack.base_url)
        .replace("127.0.0.1:5000", stack.scheduler_target)
        .replace("path/to/luftpause", str(ROOT))
    )


def python(folder: pathlib.Path, *arguments: str) -> str:
    """What Python prints in `folder`, without this checkout's packages on its path."""
    settings = environment({"PYTHONPATH": str(folder)})
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=settings, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_of_the_readme_gets_a_reply(stack: Stack, tmp_path: pathlib.Path) -> None:
    assert python(tmp_path, "-c", shown("README.md", "python", stack)).strip()


def test_decisions_are_as_the_guide_shows(stack: Stack) -> None:
    guide = (ROOT / "docs/guide.md").read_text()
    told = re.findall(r"/v1/decide [^$]*?-d '(\{.*\})'\n(\{.*\})$", guide, re.MULTILINE)
    assert len(told) == 2
    for body, answer in told:
        got = httpx2.post(f"{stack.base_url}/decide", content=body, timeout=30)
        assert rounded(got.json()) == json.loads(answer)


def rounded(value: Any) -> Any:
    """`value` with all its fractions to three places."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


def test_python_drives_the_scheduler_as_the_guide_shows(stack: Stack, tmp_path: pathlib.Path) -> None:
    [line] = re.findall(r"^ +python (-m grpc_tools\.protoc .*)$", (ROOT / "docs/guide.md").read_text(), re.MULTILINE)
    python(tmp_path, *(word.replace("path/to/luftpause", str(ROOT)) for word in line.split()))
    out = python(tmp_path, "-c", shown("docs/guide.md", "python", stack, "SchedulerStub"))
    assert re.fullmatch(r"engine-\d http://127\.0\.0\.1:\d+\S*\nreports taken: 2\n", out), out


def test_python_starts_a_sub_agent_as_the_guide_shows(stack: Stack, tmp_path: pathlib.Path) -> None:
    protos = ("-I", str(ROOT), "--python_out=.", "--grpc_python_out=.", "protos/turn.proto", "protos/runtime.proto")
    python(tmp_path, "-m", "grpc_tools.protoc", *protos)
    (tmp_path / "runtime").mkdir()
    with running_runtime(tmp_path / "runtime") as runtime:
        code = shown("docs/guide.md", "python", stack, "RunsStub").replace(":7001", f":{runtime.grpc_port}")
        out = python(tmp_path, "-c", code)
    assert re.match(r"run-\S+ RUN_STATE_COMPLETED +\S", out), out


def test_an_agent_goes_on_after_its_checkpoint_as_the_guide_shows(stack: Stack, tmp_path: pathlib.Path) -> None:
    (tmp_path / "luftpause_client").symlink_to(ROOT / "client" / "luftpause_client")
    code = shown("docs/guide.md", "python", stack, "luftpause_client")
    done = python(tmp_path, "-c", code)
    assert re.fullmatch(r"True \d+\n", done), done
    assert python(tmp_path, "-c", code) == done


async def test_node_drives_the_scheduler_as_the_guide_shows(stack: Stack, tmp_path: pathlib.Path) -> None:
    modules = await installed_modules(FOLDER)
    (tmp_path / "node_modules").symlink_to(modules / "node_modules")
    (tmp_path / "client.cjs").write_text(shown("docs/guide.md", "js", stack))
    out = await run(tmp_path, DRIVE_S, "node", "client.cjs")
    assert re.fullmatch(r"engine-\d http://127\.0\.0\.1:\d+\S*\nreports taken: 2\n", out), out
