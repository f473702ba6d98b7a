"""`python -m dataplane.worker NUMBER FOLDER PORT`: one of several processes on one port. Started by `workers` only."""

from __future__ import annotations

import asyncio
import pathlib
import sys

from common.logs import set_up_logging
from dataplane import app, workers
from dataplane.config import DataplaneConfig


class _Orphaned(asyncio.Protocol):
    """Watches the pipe that the parent holds open: its end is the parent's end."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """The parent is gone, however it went."""
        self._ended.set()


def main() -> None:
    """Serves until SIGTERM or SIGINT, or until the parent is gone."""
    number, folder, port = int(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    config = DataplaneConfig.read()
    set_up_logging(config.log_level)
    peers = workers.Peers(folder, number)
    worker = app.App(config, app.read_pool(config), peers.gather)

    async def serve(ended: asyncio.Event) -> None:
        await asyncio.get_running_loop().connect_read_pipe(lambda: _Orphaned(ended), sys.stdin)
        with workers.shared_socket(config, port) as listen_on:
            async with peers.answering(worker.snapshot):
                await worker.serve(ended, listen_on)

    app.run(serve)


if __name__ == "__main__":
    main()
