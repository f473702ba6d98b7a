"""Several processes on one port: the parent that starts and ends them, and how one tells the numbers of all.

Workers are started anew (exec, not fork: gRPC does not survive a fork) and share the port by SO_REUSEPORT. The parent
serves nothing; it holds the port, starts a worker again that died, and its end is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable

import msgspec

from dataplane.app import BACKLOG, port_problem
from dataplane.config import DataplaneConfig
from dataplane.metrics import Snapshot, add_up

log = logging.getLogger(__name__)

START_S_MAX = 15.0
"""After this long the parent says that it listens, however many workers do; those that died are started again."""
RESTART_S = 1.0
"""Pause before a worker that died is started again."""
END_S_MAX = 4.0
"""How long workers may take to end before they are killed."""
GATHER_S_MAX = 1.0
"""How long a worker's numbers may take; one that is starting or ending is left out."""


class Peers:
    """The workers of one parent, as one of them sees the others: a socket each in a private folder."""

    def __init__(self, folder: pathlib.Path, number: int) -> None:
        self._folder = folder
        self._own = folder / f"{number}.sock"

    @contextlib.asynccontextmanager
    async def answering(self, snapshot: Callable[[], Snapshot]) -> AsyncIterator[None]:
        """Tells this worker's own numbers to the others, meanwhile."""

        async def tell(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(msgspec.json.encode(snapshot()))
            writer.close()

        self._own.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(tell, self._own)
        try:
            yield
        finally:
            server.close()
            self._own.unlink(missing_ok=True)

    async def gather(self, own: Snapshot) -> Snapshot:
        """The sum of `own` and what the other workers tell."""
        others = [path for path in sorted(self._folder.glob("*.sock")) if path != self._own]
        told = await asyncio.gather(*(self._ask(path) for path in others))
        return add_up([own, *(snapshot for snapshot in told if snapshot is not None)])

    async def _ask(self, path: pathlib.Path) -> Snapshot | None:
        try:
            async with asyncio.timeout(GATHER_S_MAX):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    return msgspec.json.decode(await reader.read(), type=Snapshot)
                finally:
                    writer.close()
        except (OSError, TimeoutError, msgspec.DecodeError):
            return None


class Parent:
    """Starts the workers and stays with them."""

    def __init__(self, config: DataplaneConfig) -> None:
        self._config = config

    async def serve(self, ended: asyncio.Event) -> None:
        """Keeps the workers running until `ended` is set. Raises PortTakenError."""
        probe_port(self._config)
        with (
            shared_socket(self._config, self._config.port) as holder,
            tempfile.TemporaryDirectory(prefix="luftpause-") as name,
        ):
            folder = pathlib.Path(name)
            host, port = holder.getsockname()[:2]
            keepers = [
                asyncio.create_task(self._keep(number, folder, port, ended)) for number in range(self._config.workers)
            ]
            try:
                await self._wait_until_listening(folder, ended)
                if not ended.is_set():
                    log.info("dataplane listening address=%s:%d workers=%d", host, port, self._config.workers)
                await ended.wait()
            finally:
                ended.set()
                await asyncio.gather(*keepers)

    async def _wait_until_listening(self, folder: pathlib.Path, ended: asyncio.Event) -> None:
        deadline = asyncio.get_running_loop().time() + START_S_MAX
        while len(os.listdir(folder)) < self._config.workers and asyncio.get_running_loop().time() < deadline:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 0.05)
                return

    async def _keep(self, number: int, folder: pathlib.Path, port: int, ended: asyncio.Event) -> None:
        """One worker, started again whenever it dies."""
        over = asyncio.create_task(ended.wait())
        while not ended.is_set():
            worker = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "dataplane.worker",
                str(number),
                str(folder),
                str(port),
                stdin=asyncio.subprocess.PIPE,
            )
            died = asyncio.create_task(worker.wait())
            await asyncio.wait((over, died), return_when=asyncio.FIRST_COMPLETED)
            if ended.is_set():
                await _end(worker, died)
                return
            log.warning("worker died number=%d exit=%s", number, worker.returncode)
            await asyncio.wait((over,), timeout=RESTART_S)


async def _end(worker: asyncio.subprocess.Process, died: asyncio.Task[int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        worker.send_signal(signal.SIGTERM)
    await asyncio.wait((died,), timeout=END_S_MAX)
    if not died.done():
        worker.kill()
        await died


def shared_socket(config: DataplaneConfig, port: int) -> socket.socket:
    """A socket bound to the configured host and `port`, which others of ours share. Raises PortTakenError."""
    try:
        return _bound(config.host, port, share=True)
    except OSError as error:
        raise port_problem(config, error) from None


def probe_port(config: DataplaneConfig) -> None:
    """Raises PortTakenError where somebody else listens, even one who shares."""
    try:
        with _bound(config.host, config.port, share=False) as probe:
            probe.listen(BACKLOG)
    except OSError as error:
        raise port_problem(config, error) from None


def _bound(host: str, port: int, *, share: bool) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
