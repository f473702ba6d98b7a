"""How many MCP sessions of the older era one token keeps: over the limit the idlest is ended. Pure.

The SDK ends a session that was idle for long. Until then it takes memory, and clients that leave without a word open
one after the other. The client of a session that was ended gets a 404 for it, as the protocol has it, and initialises
anew; its runs belong to no session. A session with a request in flight, an `await` say, or an open stream, is never
ended.

Must not end sessions itself: it names those that are to be.
"""

from __future__ import annotations

import collections


class Sessions:
    """The sessions of all tokens, as their requests tell."""

    def __init__(self, per_token_max: int) -> None:
        self._per_token_max = per_token_max
        self._open: collections.defaultdict[str, dict[str, int]] = collections.defaultdict(dict)
        """By token and session: its requests in flight. The session that was used last comes last."""

    def has_room(self, token: str) -> bool:
        """Whether `token` may open a session: it has few enough, or one that can be ended."""
        sessions = self._open[token]
        return len(sessions) < self._per_token_max or not all(sessions.values())

    def opened(self, token: str, session: str) -> str | None:
        """A session has been opened; which one is to be ended for it."""
        sessions = self._open[token]
        idlest = next((each for each, requests in sessions.items() if not requests), None)
        sessions[session] = 0
        if len(sessions) <= self._per_token_max or idlest is None:
            return None
        del sessions[idlest]
        return idlest

    def began(self, token: str, session: str) -> None:
        """A request of a session has come."""
        self._count(token, session, 1)

    def ended(self, token: str, session: str, *, is_gone: bool) -> None:
        """It has been answered; `is_gone`: by that answer there is no such session."""
        if is_gone:
            self._open[token].pop(session, None)
        self._count(token, session, -1)

    def _count(self, token: str, session: str, by: int) -> None:
        sessions = self._open[token]
        if session in sessions:
            sessions[session] = sessions.pop(session) + by
