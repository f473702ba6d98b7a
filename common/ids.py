"""Names of runs, turns, callers, replicas and dataplanes, and which of them are well formed. Pure."""

from __future__ import annotations

import re
from typing import NewType

RunId = NewType("RunId", str)
TurnId = NewType("TurnId", str)
Caller = NewType("Caller", str)
ReplicaName = NewType("ReplicaName", str)
DataplaneId = NewType("DataplaneId", str)
Model = NewType("Model", str)

ANONYMOUS = Caller("")
"""All clients that name no caller are this one."""

CALLER_BYTES_MAX = 128

ID_SHAPE = "1 to 128 characters of A-Z a-z 0-9 . _ : -"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)


def is_id(text: str) -> bool:
    """Whether `text` may name a run, a turn, a replica or a dataplane (see `ID_SHAPE`)."""
    return _ID.fullmatch(text) is not None


def cut_caller(text: str) -> Caller:
    """The caller named by `text`: its first 128 bytes of UTF-8, never half a character."""
    raw = text.encode("utf-8", "replace")
    return Caller(text if len(raw) <= CALLER_BYTES_MAX else raw[:CALLER_BYTES_MAX].decode("utf-8", "ignore"))
