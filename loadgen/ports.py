"""Ports for processes that are started a moment later, and perhaps again after they died."""

from __future__ import annotations

import contextlib
import random
import socket

_PORTS = range(20_000, 32_768)
"""Below what systems give to outgoing connections by themselves (Linux: from 32768): one of those may be taken by
anybody's connection in the moment in which its process is down."""


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports of loopback that nobody listens on now. Raises OSError if there are none."""
    found: list[int] = []
    with contextlib.ExitStack() as opened:
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                return found
            with contextlib.suppress(OSError):
                opened.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
    raise OSError(f"no {count} ports from {_PORTS.start} to {_PORTS.stop - 1} are free")
