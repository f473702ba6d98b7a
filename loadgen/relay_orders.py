"""Orders to the processes of `bench relay`: one JSON object a line in, one out. The end of the input ends the process,
so that none outlives the bench, however that ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any


async def obey(answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> None:
    """Answers each order from standard input on standard output until the input ends.

    Without the collector, which takes tens of milliseconds where thousands of streams are open, and would be measured
    with the proxy. What these processes leave behind in cycles in some minutes is little.
    """
    gc.disable()
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        said = json.dumps(await answer(json.loads(line)))
        sys.stdout.write(said + "\n")
        sys.stdout.flush()
