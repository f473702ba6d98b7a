"""Starts the processes of a comparison and ends them, whatever happens. Knows nothing of arms; read `contest` next."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import aiohttp

HOST = "127.0.0.1"
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
READY_WITHIN_S = 120.0
"""Peers wait tens of seconds for what they take to be slow engines."""
ENDED_WITHIN_S = 15.0
"""`./luftpause up` itself waits ten seconds for its services."""
_LOOK_INTERVAL_S = 0.2
_GET_TIMEOUT_S = 5.0
_LOG_LINES = 5


class ProcessError(Exception):
    """Something could not be started, or has ended; the text says what, and its last lines."""


class Started:
    """A process of ours and its log."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: pathlib.Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    def check(self) -> None:
        """Raises ProcessError if it has ended."""
        if self._process.returncode is not None:
            raise ProcessError(self._with_log(f"{self.name} ended with exit code {self._process.returncode}"))

    async def wait_ready(self, is_ready: Callable[[], object]) -> None:
        """Returns once the awaited `is_ready()` is true; OSError and the like count as not yet. Raises ProcessError."""
        deadline = time.monotonic() + READY_WITHIN_S
        while not await _is_true(is_ready):
            self.check()
            if time.monotonic() > deadline:
                raise ProcessError(self._with_log(f"{self.name} is not ready after {READY_WITHIN_S:.0f} s"))
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def _with_log(self, text: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n  ".join([text, *lines])

    async def end(self) -> None:
        """Ends it by SIGTERM, and whatever is then left of its process group by SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), ENDED_WITHIN_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


async def _is_true(is_ready: Callable[[], object]) -> bool:
    found = is_ready()
    with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
        return bool(await found) if asyncio.iscoroutine(found) else bool(found)
    return False


@contextlib.asynccontextmanager
async def started(
    name: str, words: Sequence[str], environment: Mapping[str, str], folder: pathlib.Path
) -> AsyncIterator[Started]:
    """A process while the block runs, in a process group of its own; what it prints goes to `folder`/NAME.log.

    Modules of this checkout can be run in it. Raises ProcessError where it cannot be started.
    """
    log = folder / f"{name.replace('/', '-')}.log"
    try:
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *words,
                cwd=folder,
                env={**environment, "PYTHONPATH": str(ROOT)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                # Ctrl-C reaches the bench alone, which then ends them in order.
                start_new_session=True,
            )
    except OSError as error:
        raise ProcessError(f"{name} cannot be started: {error}") from None
    running = Started(name, process, log)
    try:
        yield running
    finally:
        ending = asyncio.ensure_future(running.end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise


async def body_of(session: aiohttp.ClientSession, url: str) -> bytes | None:
    """The body of `GET url`; None unless it answers 2xx. Raises aiohttp.ClientError, OSError and TimeoutError."""
    async with asyncio.timeout(_GET_TIMEOUT_S), session.get(url) as answer:
        return await answer.read() if answer.ok else None
