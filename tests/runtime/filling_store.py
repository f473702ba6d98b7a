"""Commits to a store in the folder given until a write fails, and prints what it saw: a process of the tests.

Prints how many records were acknowledged, what the next two writes raised, and how many records a read still finds. A
second argument limits the size of its files, in bytes.
"""

from __future__ import annotations

import asyncio
import pathlib
import resource
import signal
import sys

from runtime.sqlite_store import SqliteStore
from runtime.store import Append, StoreError


async def fill(folder: pathlib.Path) -> None:
    store = await SqliteStore.open(folder / "runs.db")
    acknowledged = 0
    failures: list[str] = []
    while len(failures) < 2:
        try:
            await store.commit([Append("a", acknowledged, (b"x" * 8192,))])
            acknowledged += 1
        except StoreError as error:
            failures.append(type(error).__name__)
    read = len(await store.read("a"))
    await store.close()
    print("\n".join(map(str, (acknowledged, *failures, read))))


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if len(sys.argv) > 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
    asyncio.run(fill(pathlib.Path(sys.argv[1])))
