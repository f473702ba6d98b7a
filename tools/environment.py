"""Makes or repairs `.venv` beside ./luftpause from a lock file. Run by ./luftpause with any Python >= 3.11, so only the
standard library is used here.

`.venv/.luftpause/` keeps what was done: `root`, the folder the environment was made for (scripts in it name that
folder, so a moved one is made anew), and a copy of each lock file installed. ./luftpause compares them at each start.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
MARKER = VENV / ".luftpause"
PYTHON = VENV / "bin" / "python"
LOCKS = ("requirements.lock", "requirements-dev.lock")
"""The second holds all of the first."""
PIP_LOCK = "tools/pip.lock"
PIP = (
    *(str(PYTHON), "-I", "-m", "pip", "--disable-pip-version-check", "--no-input"),
    *("install", "--quiet", "--no-deps", "--require-hashes", "--no-compile"),
)
"""Modules are compiled when first imported: compiling all takes as long as the rest, and most are never used."""


def is_current(lock: str) -> bool:
    """Whether the environment is whole, made for this folder, and holds what `lock` names."""
    try:
        same_root = (MARKER / "root").read_text().rstrip("\n") == str(ROOT)
        return same_root and (MARKER / lock).read_bytes() == (ROOT / lock).read_bytes() and PYTHON.exists()
    except OSError:
        return False


def is_usable() -> bool:
    """Whether what is in `.venv` can be built upon: whole, not moved, and not too old."""
    root = MARKER / "root"
    if (VENV / ".incomplete").exists() or (root.exists() and root.read_text().rstrip("\n") != str(ROOT)):
        return False
    check = [str(PYTHON), "-I", "-c", "import sys, pip; sys.exit(sys.version_info < (3, 11))"]
    try:
        return subprocess.run(check, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def install(lock: str) -> None:
    """Makes the environment hold what `lock` names. An interruption leaves `.incomplete`, which `is_usable` sees."""
    if not is_usable():
        say(f"making its environment with Python {sys.version.split()[0]}, once")
        VENV.mkdir(exist_ok=True)
        # Before the venv is cleared nothing of it may look whole.
        shutil.rmtree(MARKER, ignore_errors=True)
        run(sys.executable, "-I", "-m", "venv", "--clear", str(VENV))
        # The pip that comes with Python may be years old, and then takes twice as long to choose files.
        run(*PIP, "-r", str(ROOT / PIP_LOCK))
    (VENV / ".incomplete").touch()
    count = sum("==" in line for line in (ROOT / lock).read_text().splitlines())
    say(f"installing {count} packages from {lock}")
    run(*PIP, "-r", str(ROOT / lock))
    MARKER.mkdir(exist_ok=True)
    for name in LOCKS[: LOCKS.index(lock) + 1]:
        shutil.copyfile(ROOT / name, MARKER / name)
    (MARKER / "root").write_text(f"{ROOT}\n")
    (VENV / ".incomplete").unlink()


def run(*command: str) -> None:
    """Runs `command`; where it fails, ends this process with its last lines."""
    # Modules are not looked for in the folder that one happens to be in: -I for us, cwd for what venv starts itself.
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-5:])
        sys.exit(f"{last}\nluftpause: setting up {VENV} failed, see above")


def say(text: str) -> None:
    """One line of progress. On stderr, since stdout belongs to the command that follows."""
    print(f"luftpause: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Entry point; the argument is the name of the lock file."""
    lock = sys.argv[1]
    # The kernel releases this lock when its owner dies, and it needs no file of its own.
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waiting for another start that makes the environment")
        fcntl.flock(folder, fcntl.LOCK_EX)
    if is_current(lock):
        return
    begun_s = time.monotonic()
    try:
        install(lock)
    except OSError as error:
        sys.exit(f"luftpause: cannot make {VENV}: {error.strerror}")
    say(f"ready after {time.monotonic() - begun_s:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        # The shell's own code for it. What was begun is made anew next time.
        sys.exit(130)
