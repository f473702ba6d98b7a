"""Node in tests: modules of a lock file, installed once, and processes of them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pathlib
import shutil
from collections.abc import Mapping

import pytest

from tests.stack import ROOT

CACHE = ROOT / ".venv" / "node"
INSTALL_S = 120


async def run(
    folder: pathlib.Path, timeout_s: float, *command: str, environment: Mapping[str, str] | None = None
) -> str:
    """What `command`, run in `folder`, prints; an AssertionError with all of it if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, out.decode(errors="replace")
    return out.decode()


async def installed_modules(source: pathlib.Path) -> pathlib.Path:
    """A folder outside the tracked files where the modules of the lock file in `source` are installed, once for each
    lock file. Skips the test where Node is not there, or fails it in the continuous integration."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        message = f"{' and '.join(missing)} not installed"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    lock = (source / "package-lock.json").read_bytes()
    folder = CACHE / hashlib.sha256(lock).hexdigest()[:16]
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, folder)
        await run(folder, INSTALL_S, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        (folder / "installed").touch()
    return folder
