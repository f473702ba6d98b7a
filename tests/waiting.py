"""Waiting for a condition in tests, in place of sleeps. Must not be used to wait for "nothing happens".

`wait_until` for async tests, `wait_until_sync` for the others. Both fail the test with the last error seen.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast, overload

T = TypeVar("T")

TIMEOUT_S = 20.0
"""Costs nothing where the condition holds, and a busy machine may stop a process for seconds."""
_INTERVAL_S = 0.02
"""Pause between two looks: short beside any timeout, long beside a look."""


@overload
async def wait_until(
    condition: Callable[[], Coroutine[Any, Any, T]], timeout_s: float = TIMEOUT_S, what: str = ""
) -> T: ...
@overload
async def wait_until(condition: Callable[[], T], timeout_s: float = TIMEOUT_S, what: str = "") -> T: ...
async def wait_until(
    condition: Callable[[], T | Coroutine[Any, Any, T]], timeout_s: float = TIMEOUT_S, what: str = ""
) -> T:
    """The first truthy value of `condition()`, awaited if it is awaitable.

    OSError and AssertionError raised by it count as "not yet". Raises AssertionError after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        last: object = None
        try:
            value = condition()
            last = found = await cast(Coroutine[Any, Any, T], value) if inspect.isawaitable(value) else value
            if found:
                return found
        except (OSError, AssertionError) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(_late(condition, timeout_s, what, last))
        await asyncio.sleep(_INTERVAL_S)


def wait_until_sync(condition: Callable[[], T], timeout_s: float = TIMEOUT_S, what: str = "") -> T:
    """As `wait_until`, for tests without an event loop."""
    deadline = time.monotonic() + timeout_s
    while True:
        last: object = None
        try:
            last = value = condition()
            if value:
                return value
        except (OSError, AssertionError) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(_late(condition, timeout_s, what, last))
        time.sleep(_INTERVAL_S)


def _late(condition: object, timeout_s: float, what: str, last: object) -> str:
    name = what or getattr(condition, "__qualname__", repr(condition))
    return f"not within {timeout_s:g} s: {name}; last seen: {last!r}"
