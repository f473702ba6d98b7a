"""What an exception of a turn says of a rate limit, whichever client raised it. Pure."""

from __future__ import annotations

from luftpause_client.windows import retry_after_s

RETRY_S = 1.0
"""Where a refusal does not tell when to come again."""


def refused_for_s(error: BaseException, unix_s: float) -> float | None:
    """Seconds until the turn may be tried again, if `error` is an answer 429; None for any other."""
    response = getattr(error, "response", None)
    statuses = (
        getattr(error, "status_code", None),
        getattr(response, "status_code", None),
        getattr(error, "code", None),
    )
    if 429 not in statuses:
        return None
    for headers in (getattr(response, "headers", None), getattr(error, "headers", None)):
        if headers is not None and hasattr(headers, "items"):  # a mapping, or a message of email
            found = retry_after_s(dict(headers.items()), unix_s)
            if found is not None:
                return found
    return RETRY_S
