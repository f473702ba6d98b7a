"""The lock on a state folder: one runtime at a time. The kernel releases it with its process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator


class LockedError(Exception):
    """Another runtime has the state folder."""


def keep_private(path: pathlib.Path, mode: int) -> None:
    """Gives `path` this mode, whoever made it; where it is another user's, that one decides who reads it."""
    with contextlib.suppress(PermissionError):
        path.chmod(mode)


@contextlib.contextmanager
def holding(folder: pathlib.Path) -> Iterator[None]:
    """Makes `folder` if need be, keeps it for its owner alone, and holds its lock while the block runs. Raises
    LockedError, or OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    keep_private(folder, 0o700)
    lock = folder / "runtime.lock"
    with lock.open("a+") as file:
        keep_private(lock, 0o600)
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
