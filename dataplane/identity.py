"""Who asks, for which run, in which class: read from a request's headers. Pure.

Where no run is named, the tool call ids in the messages (`chat`) identify it; the scheduler resolves those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from common.ids import ANONYMOUS, ID_SHAPE, Caller, RunId, cut_caller, is_id
from dataplane.errors import ApiError, invalid
from protos import turn_pb2

RUN_ID = b"x-luftpause-run-id"
CLASS = b"x-luftpause-class"
CALLER = b"x-luftpause-caller"

_CLASSES = {b"interactive": turn_pb2.RUN_CLASS_INTERACTIVE, b"batch": turn_pb2.RUN_CLASS_BATCH}


@dataclass(frozen=True, slots=True)
class Identity:
    """What the headers say of a turn."""

    run_id: RunId | None
    caller: Caller
    run_class: turn_pb2.RunClass.ValueType


_ANONYMOUS = Identity(None, ANONYMOUS, turn_pb2.RUN_CLASS_INTERACTIVE)


def identify(headers: Mapping[bytes, bytes]) -> Identity | ApiError:
    """The identity that `headers` (lower-case names) carry, or a 400 that names the header and what was expected."""
    if RUN_ID not in headers and CLASS not in headers and CALLER not in headers:
        return _ANONYMOUS
    run_id = None
    if RUN_ID in headers:
        text = headers[RUN_ID].decode("latin-1")
        if not is_id(text):
            return invalid(RUN_ID.decode(), f"expected {ID_SHAPE}")
        run_id = RunId(text)
    run_class = _CLASSES.get(headers.get(CLASS, b"interactive").strip())
    if run_class is None:
        return invalid(CLASS.decode(), "expected 'interactive' or 'batch'")
    return Identity(run_id, cut_caller(headers.get(CALLER, b"").decode("utf-8", "replace").strip()), run_class)
