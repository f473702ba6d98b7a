"""Ctrl-C while modules are loaded, before a command has begun that knows what to do about it."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of shells for it."""


def leave(_number: int, _frame: FrameType | None) -> None:
    """Ends the process without a word: nothing was begun, and a traceback would show what was being imported."""
    os._exit(INTERRUPTED)


def leave_quietly() -> None:
    """From now on Ctrl-C ends the process at once, unless it is ignored, as it is behind a shell's `&`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
