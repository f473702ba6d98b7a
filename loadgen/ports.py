"""Ports for processes that are started a moment later, and perhaps again after they died."""

from __future__ import annotations

import atexit
import collections
import contextlib
import random
import socket

_HOST = "127.0.0.1"
_PORTS = range(20_000, 32_768)
"""Below what systems give to outgoing connections by themselves (Linux: from 32768): one of those may be taken by
anybody's connection in the moment in which its process is down."""

_BLOCK = 128
"""A process takes ports in blocks of so many. It holds the first of each as long as it lives, which tells all others
that the rest is given out too, whether or not anybody listens there yet. `./luftpause up` wants nine for itself."""


class _Leases:
    """The ports of this process: each is given out again only after all the others."""

    def __init__(self) -> None:
        self._ports: collections.deque[int] = collections.deque()

    def take(self, count: int, adjacent: bool) -> list[int]:
        found = self._round(count, adjacent)
        while len(found) < count:
            self._claim()
            found = self._round(count, adjacent)
        return found

    def _round(self, count: int, adjacent: bool) -> list[int]:
        found: list[int] = []
        with contextlib.ExitStack() as opened:
            for _ in range(len(self._ports)):
                if len(found) == count:
                    break
                port = self._ports[0]
                self._ports.rotate(-1)
                is_free = _bound(opened, port)
                if adjacent and found and (not is_free or port != found[-1] + 1):
                    found.clear()
                if is_free:
                    found.append(port)
        return found

    def _claim(self) -> None:
        firsts = range(_PORTS.start, _PORTS.stop - _BLOCK + 1, _BLOCK)
        for first in random.SystemRandom().sample(firsts, len(firsts)):
            with contextlib.ExitStack() as opened:
                if _bound(opened, first):
                    atexit.register(opened.pop_all().close)
                    self._ports.extendleft(range(first + _BLOCK - 1, first, -1))
                    return
        raise OSError(f"no {_BLOCK} ports in a row from {_PORTS.start} to {_PORTS.stop - 1} are left to give out")


def _bound(opened: contextlib.ExitStack, port: int) -> bool:
    with contextlib.suppress(OSError):
        opened.enter_context(socket.socket()).bind((_HOST, port))
        return True
    return False


_LEASES = _Leases()


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports of loopback that nobody listens on now, and that neither this process nor another one
    that takes its ports here was given a moment ago. Raises OSError if there are none."""
    return _LEASES.take(count, adjacent=False)


def free_run(count: int) -> int:
    """The first of `count` adjacent ports (of at most 127), free as those of `free_ports` are."""
    return _LEASES.take(count, adjacent=True)[0]
