"""luftpause itself as telemetry: its forecast of a run, the headers of a run's turns, and the end of a run.

Turns themselves go through the agent's own client; see `adapters`.
"""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from typing import Literal

from luftpause_client.errors import LuftpauseError
from luftpause_client.outlook import WAIT_S_MAX

ANSWER_S_MAX = 6.0
"""luftpause waits 5 s for its scheduler before it says that it is not there."""
BASE_URL = "http://127.0.0.1:8080/v1"


class Luftpause:
    """A dataplane at `base_url`, which ends in /v1; `token` where it wants one; see `headers` for the others.

    ValueError for a URL that is none.
    """

    def __init__(
        self,
        base_url: str = BASE_URL,
        *,
        token: str | None = None,
        caller: str | None = None,
        run_class: Literal["interactive", "batch"] = "interactive",
    ) -> None:
        parts = urllib.parse.urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url: expected a URL like {BASE_URL}, got {base_url!r}")
        if run_class not in ("interactive", "batch"):
            raise ValueError(f"run_class: expected 'interactive' or 'batch', got {run_class!r}")
        self._base_url = base_url.rstrip("/")
        self._headers: dict[str, str] = {"x-luftpause-class": run_class}
        if caller is not None:
            self._headers["x-luftpause-caller"] = caller
        self._token = token

    def headers(self, run_id: str, wait_s_max: float = WAIT_S_MAX) -> dict[str, str]:
        """What the run's turns carry: its id, class and caller, and that luftpause refuses a turn (429, with the exact
        time) rather than hold it for more than `wait_s_max` seconds for a rate limit."""
        limit = {"x-luftpause-wait-s-max": f"{wait_s_max:.3f}"}
        return {"x-luftpause-run-id": run_id, **self._headers, **limit}

    def wait_s(self, run_id: str) -> float | None:
        """Seconds that the run's next step is likely to be held for a rate limit. None where luftpause does not know
        the run (yet), or does not answer: then its turns are held until it does. LuftpauseError where it refuses."""
        answer = self._ask("GET", f"/forecast?{urllib.parse.urlencode({'run': run_id, 'steps': 1})}")
        match answer:
            case None:
                return None
            case {"wait_s": {"mean": int() | float() as mean}} if math.isfinite(mean) and mean >= 0:
                return float(mean)
            case _:
                raise LuftpauseError(200, f"expected a forecast with wait_s, got {str(answer)[:200]}")

    def end(self, run_id: str) -> None:
        """Tells that the run is over. Where luftpause does not answer, nothing is raised: it forgets runs by itself."""
        self._ask("DELETE", f"/runs/{urllib.parse.quote(run_id, safe='')}")

    def _ask(self, method: str, path: str) -> object:
        headers = {key: value for key, value in self._headers.items() if key == "x-luftpause-caller"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        # The scheme was checked: no file is opened here.
        request = urllib.request.Request(self._base_url + path, headers=headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as response:  # noqa: S310
                body: object = json.load(response)
                return body
        except urllib.error.HTTPError as refusal:
            with refusal:
                if refusal.code == 404 or refusal.code >= 500:
                    return None
                raise LuftpauseError(refusal.code, _message(refusal.read())) from None
        except (OSError, http.client.HTTPException):
            return None
        except ValueError as problem:
            raise LuftpauseError(200, f"expected JSON from {self._base_url}{path}: {problem}") from None


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
