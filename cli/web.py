"""HTTP as the commands need it: one GET, without proxies of the environment, and with the token where there is one."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass

TIMEOUT_S = 2.0
_SHOWN_CHARACTERS = 60
"""Of what is no HTTP."""
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a GET brought: a status and body, or an error."""

    status: int | None
    """None where nothing answered."""
    body: bytes
    error: str
    """Why nothing answered, for people."""

    @property
    def is_ok(self) -> bool:
        """Whether it is a 2xx."""
        return self.status is not None and 200 <= self.status < 300


def get(url: str, token: str | None = None, *, caller: str = "") -> Answer:
    """GETs `url`, showing `token` if there is one, for `caller` if one is named. Never raises for what the other side
    does."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if caller:
        headers["x-luftpause-caller"] = caller
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - callers pass http and https URLs
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as response:
            return Answer(response.status, response.read(), "")
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.read(), "")
    except urllib.error.URLError as error:
        return Answer(None, b"", _plain(error.reason))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(None, b"", _plain(error))


def _plain(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {TIMEOUT_S:.0f} s"
    if isinstance(reason, http.client.BadStatusLine) and not isinstance(reason, http.client.RemoteDisconnected):
        return f"what listens there speaks no HTTP: {str(reason).strip()[:_SHOWN_CHARACTERS]!r}"
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return text[:1].lower() + text[1:]
