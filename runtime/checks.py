"""Arguments of tool calls, checked in processes of their own: whatever a schema says, the event loop goes on.

All tool servers share one process until a check of one of them takes long; from then on that server has its own, and
nobody else waits behind it. Must not know what is checked: that is `arguments`. Read next: `check_process`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import pathlib
import signal
import struct
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

from runtime.arguments import Bad, Good
from runtime.check_process import CPU_S, LENGTH, MEMORY_BYTES_MAX, TOO_MUCH, framed
from runtime.tool_specs import ToolSpec

ANSWER_S_MAX = 30.0
"""Longest wait for an answer, by the clock: where other checks of the server take long, or the machine is so busy that
the process gets no time."""
_EXIT_S_MAX = 5.0
"""Longest wait for a process that has closed its output."""
_COMMAND = (sys.executable, "-m", "runtime.check_process")
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_BY_LIMIT = (-signal.SIGPROF, TOO_MUCH)
"""Exit codes of a process that a check has brought to one of its limits."""
SLOW_S = 0.25
"""A tool server of which a check took so long has a process of its own from then on."""
_SHARED = ""
"""Names the process of the servers that were never slow."""

log = logging.getLogger("runtime.checks")


class Checks:
    """`prepare` arguments, `close` it. Processes are started when they are needed."""

    def __init__(self) -> None:
        self._processes: dict[str, _Checker] = {}
        self._slow: set[str] = set()
        """Tool servers of which a check once took too long."""
        self._is_closed = False

    async def prepare(self, tool: ToolSpec, raw: str) -> Good | Bad:
        """As `arguments.prepare`. Arguments that cannot be checked in time are bad: a call that nobody has looked at is
        not made."""
        try:
            question = framed({"tool": tool.name, "schema": tool.input_schema, "raw": raw})
        except (ValueError, RecursionError, struct.error):
            return _unchecked(tool)
        try:
            async with asyncio.timeout(ANSWER_S_MAX), self._turn(tool.server) as checker:
                answer = None if self._is_closed else await checker.ask(question)
                if answer is None or checker.took_s > SLOW_S:
                    self._slow.add(tool.server)
                if answer is None:
                    return _unchecked(tool) if checker.ended_by in _BY_LIMIT else _unanswered(tool)
        except TimeoutError:
            return _unanswered(tool)
        told = json.loads(answer)
        return Bad(told["bad"]) if "bad" in told else Good(told["good"])

    @contextlib.asynccontextmanager
    async def _turn(self, server: str) -> AsyncIterator[_Checker]:
        """The process for a check of `server`, which nobody else asks meanwhile."""
        while True:
            checker = self._process(name := self._process_of(server))
            async with checker.turn:
                if name == self._process_of(server):  # it may have been found to be slow while this one waited
                    yield checker
                    return

    def _process_of(self, server: str) -> str:
        return server if server in self._slow else _SHARED

    def _process(self, name: str) -> _Checker:
        return self._processes.setdefault(name, _Checker())

    async def close(self) -> None:
        """Ends the processes; questions that wait get no answer."""
        self._is_closed = True
        for checker in list(self._processes.values()):
            await checker.close()


class _Checker:
    """One process, started anew after each end. Ask it while you hold its `turn`."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.ended_by: int | None = None
        """Exit code of the process that ended last."""
        self.took_s = 0.0
        """How long the last answer took, without the start of a process."""
        self._process: Process | None = None
        self._is_closed = False

    async def ask(self, question: bytes) -> bytes | None:
        """The answer; None: there is none."""
        answer = await self._try(question)
        if answer is None and self.ended_by not in _BY_LIMIT and not self._is_closed:
            # Something else has ended the process, which says nothing about the question.
            answer = await self._try(question)
        return answer

    async def _try(self, question: bytes) -> bytes | None:
        """The answer; None: the process has ended."""
        answer = None
        try:
            answer = await self._exchange(question)
        except (OSError, EOFError):
            await self._exit()
        finally:
            if answer is None:  # also where nobody waits any more: its answer would be taken for the next one's
                await self._end()
        return answer

    async def close(self) -> None:
        """Ends the process; a question that is open gets no answer."""
        self._is_closed = True
        self._kill()
        async with self.turn:
            await self._end()

    async def _exchange(self, question: bytes) -> bytes:
        if self._process is None or self._process.returncode is not None:
            # In a session of its own: Ctrl-C is for the runtime, which ends it.
            self._process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                stdin=PIPE,
                stdout=PIPE,
                cwd=_ROOT,
                start_new_session=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        began = time.monotonic()
        process.stdin.write(question)
        await process.stdin.drain()
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        answer = await process.stdout.readexactly(length)
        self.took_s = time.monotonic() - began
        return answer

    async def _exit(self) -> None:
        """Waits for the end of a process that has closed its output: one that is killed as it dies, and seen to be dead
        by two at once, has no exit code that says why."""
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_S_MAX):
                    await self._process.wait()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _end(self) -> None:
        self._kill()
        process, self._process = self._process, None
        if process is not None:
            await process.communicate()
            self.ended_by = process.returncode


def _unchecked(tool: ToolSpec) -> Bad:
    return Bad(
        f"Error: the arguments of {tool.name} could not be checked against its schema within {CPU_S:g} s and "
        f"{MEMORY_BYTES_MAX >> 20} MiB, and the call was not made. Shorter or simpler arguments may do."
    )


def _unanswered(tool: ToolSpec) -> Bad:
    log.warning("event=check_lost server=%s tool=%s", tool.server, tool.name)
    return Bad(
        f"Error: the arguments of {tool.name} could not be checked, since what checks them has ended or does not "
        "answer, and the call was not made. It may be made again."
    )
