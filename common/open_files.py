"""How many files and sockets this process may have open. Changes nothing else."""

from __future__ import annotations

import contextlib
import resource

OPEN_FILES = 65_536
"""Each stream takes two sockets; systems often allow 1,024 unless a process asks for more."""


def allow_many() -> None:
    """Raises the limit of this process, and of those it starts, to `OPEN_FILES` or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
