"""The lock on a state folder: one runtime at a time. The kernel releases it with its process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator


class LockedError(Exception):
    """Another runtime has the state folder."""


@contextlib.contextmanager
def holding(folder: pathlib.Path) -> Iterator[None]:
    """Makes `folder` if need be and holds its lock while the block runs. Raises LockedError, or OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "runtime.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise LockedError(f"another runtime (process {owner}) uses the state folder") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
