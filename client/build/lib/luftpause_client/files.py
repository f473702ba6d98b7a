"""The checkpoint file of one run: written whole or not at all, open in one session at a time.

Decides nothing about what is in it, see `checkpoint`. POSIX: folders are synced and files are locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import re

from luftpause_client.checkpoint import Checkpoint, decode, encode
from luftpause_client.errors import CheckpointError, RunInUseError

RUN_ID_SHAPE = "1 to 128 characters of A-Z a-z 0-9 . _ : -"
_RUN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class CheckpointFile:
    """Takes the run's lock in `folder`, which is made if need be, until it is closed."""

    def __init__(self, folder: pathlib.Path, run_id: str) -> None:
        """ValueError for a run id of another shape, RunInUseError where the run is open, OSError as the disk has it."""
        if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
            raise ValueError(f"run_id: expected {RUN_ID_SHAPE}, got {run_id!r}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._run_id = run_id
        self._folder = folder
        self.path = folder / f"run-{run_id}.json"
        self._lock: int | None = os.open(folder / f"run-{run_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RunInUseError(f"run {run_id!r} is open in another session; its file is {self.path}") from None

    def load(self) -> Checkpoint | None:
        """What was saved last, or None. CheckpointError names the file and what is wrong with it."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return decode(data, self._run_id)
        except CheckpointError as problem:
            raise CheckpointError(f"{self.path}: {problem}") from problem.__cause__

    def save(self, checkpoint: Checkpoint) -> None:
        """Returns when the checkpoint is on the disk. If it raises, the one before is still there, whole."""
        data = encode(checkpoint)
        new = self.path.with_suffix(".new")  # the lock is ours: nobody else writes it
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        # The name is durable only when the folder is.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @property
    def closed(self) -> bool:
        """Whether the lock was given up."""
        return self._lock is None

    def close(self) -> None:
        """Gives the lock up. May be called again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
