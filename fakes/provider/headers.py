"""The headers by which providers tell of their limits, in each family's form. Pure; dates are seconds since 1970."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Literal

from fakes.provider.windows import Bucket, Quota

Family = Literal["openai", "groq", "anthropic", "plain", "none"]
"""`groq`: requests by the day, where the account has such a window; `plain`: requests only, without
a dimension in the name; `none`: nothing is told."""
RetryForm = Literal["seconds", "date", "ms", "none"]
"""`ms`: in a header of its own, exactly."""


def tell(family: Family, quota: Quota, now: float) -> dict[str, str]:
    """The headers of an answer at `now`."""
    told: dict[str, str] = {}
    by_day = quota.day_requests if family == "groq" else None
    windows = {"requests": by_day or quota.requests}
    if family != "plain":
        windows["tokens"] = quota.tokens
    if family == "none":
        return told
    for name, bucket in windows.items():
        values = _values(bucket, quota.says)
        for field, number in values.items():
            if family == "anthropic":
                told[f"anthropic-ratelimit-{name}-{field}"] = (
                    datetime.fromtimestamp(now + number, UTC).isoformat() if field == "reset" else f"{number:.0f}"
                )
            elif family == "plain":
                told[f"ratelimit-{field}"] = f"{math.ceil(number) if field == 'reset' else math.floor(number)}"
            else:
                told[f"x-ratelimit-{field}-{name}"] = duration(number) if field == "reset" else f"{number:.0f}"
    return told


def retry_after(form: RetryForm, wait_s: float, now: float) -> dict[str, str]:
    """The header of a 429 at `now`, in whole seconds, rounded up."""
    if form == "none":
        return {}
    if form == "ms":
        return {"retry-after-ms": f"{max(1, math.ceil(wait_s * 1000))}"}
    if form == "date":
        return {"retry-after": formatdate(math.ceil(now + wait_s), usegmt=True)}
    return {"retry-after": f"{max(1, math.ceil(wait_s))}"}


def duration(seconds: float) -> str:
    """As OpenAI and Groq write it: `120ms`, `1s`, `6m0s`, `2m59.56s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{minutes:.0f}m{text}s" if minutes else f"{text}s"


def _values(bucket: Bucket, says: float) -> dict[str, float]:
    left = max(0.0, bucket.level) + bucket.limit * (says - 1)
    return {"limit": bucket.limit * says, "remaining": max(0.0, left), "reset": bucket.reset_s() / says}
