"""`python -m runtime.check_process`: prepares arguments of tool calls, one question after the other, for `checks`.

A schema is a stranger's and its arguments are a model's, so between them they may take any time: a regular expression
that tries everything, lists whose items are compared each with each. Nothing in Python stops that but the end of its
process, which is what the kernel does here after CPU_S of computing. So a check that takes too long holds up nobody's
event loop, and goes on for nobody who has died meanwhile. Read next: `arguments`, which does the work.

A question or an answer is a frame: its length in 4 bytes, big-endian, then JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

from runtime.arguments import Good, prepare

CPU_S = 2.0
"""Longest time that one check may compute; over it, the process ends."""
MEMORY_BYTES_MAX = 1 << 30
"""Most memory of the process, where the system limits it: errors quote what they are about."""
TOO_MUCH = 3
"""Exit code after a check that takes more memory than that, or more depth than the interpreter has."""
LENGTH = struct.Struct(">I")


def framed(content: object) -> bytes:
    """`content` as a frame. Raises ValueError, RecursionError or struct.error where there is none."""
    body = json.dumps(content).encode()
    return LENGTH.pack(len(body)) + body


def main() -> None:
    """Answers until its input ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # an ignored one would stay so: it is what ends a check
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    while (question := _read(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            answer = framed(_answer(json.loads(question)))
        except (RecursionError, MemoryError):
            os._exit(TOO_MUCH)  # no answer, as after too long a time
        signal.setitimer(signal.ITIMER_PROF, 0)
        try:
            sys.stdout.buffer.write(answer)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            os._exit(1)  # the runtime was killed


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    prepared = prepare(question["tool"], question["schema"], question["raw"])
    return {"good": prepared.arguments} if isinstance(prepared, Good) else {"bad": prepared.text}


def _read(source: BinaryIO) -> bytes | None:
    head = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


if __name__ == "__main__":
    main()
