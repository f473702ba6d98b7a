"""Ending a service: the first SIGTERM or SIGINT becomes an event, those after it do nothing.

asyncio's own signal support is not used for this: closing the loop gives the signals back their deadly default, and a
second one that arrives while the process is still clearing up would end it with -15 instead of 0.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

_ENDING = (signal.SIGTERM, signal.SIGINT)


async def serve_until_signal(
    serve: Callable[[asyncio.Event], Awaitable[T]], on_signal: Callable[[], None] = lambda: None
) -> T:
    """What `serve(stop)` returns; the first SIGTERM or SIGINT sets `stop`. `on_signal` is called before, at each of
    them, also where the event loop does not go on.

    For a service's entry point, in the main thread: afterwards the process ignores both signals for good.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def tell(_number: int, _frame: FrameType | None) -> None:
        on_signal()
        loop.call_soon_threadsafe(stop.set)

    for number in _ENDING:
        signal.signal(number, tell)
    try:
        return await serve(stop)
    finally:
        # Not earlier, and not in `tell`: Python complains about a signal that it has noted when its turn is taken away.
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
