"""Which host names and origins are served, against web pages that reach us under a name of their own. Pure.

A page whose name resolves to our address (DNS rebinding) shows that name as `Host`; any page shows where it is from as
`Origin`. Programs of people show neither another host than the one they were given, nor an origin.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))


@dataclass(frozen=True, slots=True)
class Served:
    """What is served. Names are without ports: a port is no protection."""

    hosts: frozenset[str] | None
    """Host names; None: any."""
    origins: frozenset[str]
    """Origins, as `https://app.example`, beside those whose host is served."""

    @classmethod
    def of(cls, hosts: tuple[str, ...], origins: tuple[str, ...], *, listens_on: str, has_token: bool) -> Served:
        """By the settings. Where none names a host, a token is asked for and we listen on more than loopback, nobody
        knows by which names we are reached, and the token protects."""
        named = frozenset(host.lower() for host in hosts)
        is_any = not named and has_token and listens_on not in _LOOPBACK
        return cls(None if is_any else named | _LOOPBACK | {listens_on}, frozenset(each.lower() for each in origins))

    def refusal(self, host: str, origin: str | None) -> tuple[int, str] | None:
        """Status and reason for a request with these headers that is not served; None: it is."""
        if self.hosts is not None and _name(f"//{host}") not in self.hosts:
            return 421, "Host: expected a name of LUFTPAUSE_RUNTIME_HOSTS"
        if origin and origin.lower() not in self.origins and _name(origin) not in (self.hosts or ()):
            return 403, "Origin: expected one of LUFTPAUSE_RUNTIME_ORIGINS"
        return None


def _name(url: str) -> str | None:
    try:
        return urllib.parse.urlsplit(url).hostname
    except ValueError:
        return None
