"""./luftpause makes its own environment, once. A small checkout stands in, with empty locks and a `cli` that says where
it is.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.house.sources import ROOT

CLI = "import pathlib, sys; print(pathlib.Path(__file__).parent.parent, *sys.argv[1:], sep='|')\n"


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkout in a folder with a space in its name."""
    folder = tmp_path / "a clone"
    (folder / "tools").mkdir(parents=True)
    (folder / "cli").mkdir()
    (folder / "cli" / "__main__.py").write_text(CLI)
    shutil.copy(ROOT / "luftpause", folder)
    shutil.copy(ROOT / "tools" / "environment.py", folder / "tools")
    for name in ("requirements.lock", "requirements-dev.lock", "tools/pip.lock"):
        (folder / name).write_text("# nothing\n")
    return folder


def command(file: pathlib.Path, cwd: pathlib.Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts `file`; the caller waits."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    pipe = subprocess.PIPE
    return subprocess.Popen([str(file), *arguments], cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True)


def call(file: pathlib.Path, cwd: pathlib.Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `file`."""
    process = command(file, cwd, *arguments)
    out, errors = process.communicate(timeout=120)
    return process.returncode, out, errors


def test_starts_at_once_make_one_environment_and_later_ones_use_it(checkout: pathlib.Path) -> None:
    elsewhere = checkout.parent / "elsewhere"
    (elsewhere / "cli").mkdir(parents=True)
    for name in ("cli/__init__.py", "typing.py", "pip.py"):
        (elsewhere / name).write_text("raise SystemExit('of the current folder')")
    started = [command(checkout / "luftpause", elsewhere, "status", "a b") for _ in range(2)]
    done = [process.communicate(timeout=120) for process in started]
    assert [out for out, _ in done] == [f"{checkout}|status|a b\n"] * 2, done
    assert sum("making its environment" in errors for _, errors in done) == 1

    link = elsewhere / "luftpause"
    link.symlink_to(checkout / "luftpause")
    begun_s = time.monotonic()
    assert call(link, elsewhere, "status") == (0, f"{checkout}|status\n", "")
    assert time.monotonic() - begun_s < 1


class Steps:
    """tools/environment.py with a root of the test's own; what it would run is told in place of run."""

    def __init__(self, root: pathlib.Path) -> None:
        spec = importlib.util.spec_from_file_location("environment", ROOT / "tools" / "environment.py")
        assert spec
        assert spec.loader
        self.module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.told: list[str] = []
        vars(self.module)["run"] = self._run
        self.move(root)

    def move(self, root: pathlib.Path) -> None:
        """Looks at `root` from now on."""
        venv = root / ".venv"
        names = {"ROOT": root, "VENV": venv, "MARKER": venv / ".luftpause", "PYTHON": venv / "bin" / "python"}
        vars(self.module).update(names)

    def _run(self, *words: str) -> None:
        self.told.append("clear" if "--clear" in words else pathlib.Path(words[-1]).name)
        if "--clear" in words:
            folder = pathlib.Path(words[-1]) / "bin"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "python").unlink(missing_ok=True)
            (folder / "python").symlink_to(sys.executable)

    def make(self, lock: str = "requirements.lock") -> list[str]:
        """What making the environment for `lock` did; nothing where it was current."""
        self.told = []
        if not self.module.is_current(lock):
            self.module.install(lock)
        assert self.module.is_current(lock)
        return self.told


def test_an_environment_is_kept_while_it_is_whole_current_and_in_its_place(checkout: pathlib.Path) -> None:
    steps = Steps(checkout)
    assert steps.make() == ["clear", "pip.lock", "requirements.lock"]
    assert steps.make() == []
    assert steps.make("requirements-dev.lock") == ["requirements-dev.lock"]
    assert steps.make() == []
    (checkout / "requirements.lock").write_text("# changed\n")
    assert steps.make() == ["requirements.lock"]
    (checkout / ".venv" / ".incomplete").touch()
    (checkout / "requirements.lock").write_text("# changed again\n")
    assert steps.make() == ["clear", "pip.lock", "requirements.lock"]
    steps.move(checkout.rename(checkout.parent / "moved"))
    assert steps.make() == ["clear", "pip.lock", "requirements.lock"]
    (steps.module.PYTHON).unlink()
    assert steps.make() == ["clear", "pip.lock", "requirements.lock"]


def test_without_a_python_one_line_says_what_is_missing(checkout: pathlib.Path) -> None:
    tools = checkout / "bin"
    tools.mkdir()
    for name in ("bash", "env", "dirname", "cat", "cmp"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    done = subprocess.run(
        [str(checkout / "luftpause"), "up"], env={"PATH": str(tools)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("luftpause: needs Python 3.11 or later")
    assert done.stderr.count("\n") == 1


def test_the_help_of_test_does_not_install_what_tests_need(checkout: pathlib.Path) -> None:
    for option in ("--help", "-h"):
        assert call(checkout / "luftpause", checkout, "test", option)[:2] == (0, f"{checkout}|test|{option}\n")
    marker = checkout / ".venv" / ".luftpause"
    assert sorted(each.name for each in marker.iterdir()) == ["requirements.lock", "root"]


def test_ctrl_c_while_the_environment_is_made_is_quiet(checkout: pathlib.Path) -> None:
    folder = os.open(checkout, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        setting_up = subprocess.Popen(
            [sys.executable, "-I", str(checkout / "tools" / "environment.py"), "requirements.lock"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert setting_up.stderr
        said = setting_up.stderr.readline()
        setting_up.send_signal(signal.SIGINT)
        _, rest = setting_up.communicate(timeout=60)
    finally:
        os.close(folder)
    assert said.startswith("luftpause: waiting for another start")
    assert (setting_up.returncode, rest) == (130, "")


@pytest.mark.parametrize("module", ["typer", "cli.status"])
def test_ctrl_c_while_a_command_is_loaded_is_quiet(tmp_path: pathlib.Path, module: str) -> None:
    """Each of the modules, found first, stands still while it is imported."""
    path = tmp_path / (module.replace(".", "/") + ".py")
    path.parent.mkdir(exist_ok=True)
    # Short sleeps: a signal that comes just before a sleep does not end it.
    path.write_text("import time\nprint('loading', flush=True)\nwhile True:\n    time.sleep(0.1)\n")
    start = f"import cli; cli.__path__.insert(0, {str(tmp_path / 'cli')!r}); import cli.__main__; cli.__main__.main()"
    path_of_modules = os.pathsep.join((str(tmp_path), str(ROOT)))
    loading = subprocess.Popen(
        [sys.executable, "-P", "-c", start, "status"],
        env={**os.environ, "PYTHONPATH": path_of_modules},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert loading.stdout
    assert loading.stdout.readline() == "loading\n"
    loading.send_signal(signal.SIGINT)
    _, errors = loading.communicate(timeout=60)
    assert (loading.returncode, errors) == (130, "")
