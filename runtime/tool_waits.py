"""Runs that sleep until the tool servers that they need are connected, each for a limited time and holding no task.

What tools a run has does not change because a server is away: it waits at first, and then goes on with the definitions
that are known. Must not decide which servers a tool may be of: that is `toolbox`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from runtime.journal import Journal
from runtime.toolbox import Toolbox


class ToolWaits:
    """`wake` lets a run do what is next; asked then, it may have to go on sleeping."""

    def __init__(self, toolbox: Toolbox, wait_s: float, wake: Callable[[Journal], None]) -> None:
        self._toolbox = toolbox
        self._wait_s = wait_s
        self._wake = wake
        self._sleeping: dict[Journal, asyncio.TimerHandle] = {}
        toolbox.on_up = self._on_up

    def must_sleep(self, journal: Journal, tools: Collection[str] | None) -> bool:
        """Whether the run has to wait for servers of these tools (None: of any); sees to it that it is woken then."""
        self._forget(journal)
        left_s = self.awaited(journal, tools)
        journal.sleep_for(tuple(left_s))
        if left_s:
            timer = asyncio.get_running_loop().call_later(max(left_s.values()), self._on_up_or_late, journal)
            self._sleeping[journal] = timer
        return bool(left_s)

    def awaited(self, journal: Journal, tools: Collection[str] | None) -> dict[str, float]:
        """The servers of these tools (None: of any) that the run waits for, and for how many seconds more; has them
        tried often until then.

        A run waits for a server until `wait_s` after the server was lost, or after the run came, if that was later and
        the run names its tools: others would all wait for one server that does not come back.
        """
        left_s = {}
        for server in self._toolbox.absent(tools):
            waited_s = server.down_s if tools is None else min(server.down_s, journal.open_s)
            left_s[server.name] = self._wait_s - waited_s
        awaited = {name: each_s for name, each_s in left_s.items() if each_s > 0}
        self._toolbox.seek(awaited)
        return awaited

    def close(self) -> None:
        """Wakes nothing any more."""
        for journal in tuple(self._sleeping):
            self._forget(journal)

    def _on_up(self) -> None:
        for journal in tuple(self._sleeping):
            self._on_up_or_late(journal)

    def _on_up_or_late(self, journal: Journal) -> None:
        self._forget(journal)
        self._wake(journal)

    def _forget(self, journal: Journal) -> None:
        timer = self._sleeping.pop(journal, None)
        if timer is not None:
            timer.cancel()
