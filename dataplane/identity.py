"""Who asks, for which run, in which class: read from a request's headers, as far as its token allows. Pure.

Where no run is named, the tool call ids in the messages (`chat`) identify it; the scheduler resolves those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from common.grants import ANYTHING, ForbiddenError, Grant
from common.ids import ANONYMOUS, ID_SHAPE, Caller, RunId, cut_caller, is_id
from dataplane import limits
from dataplane.errors import ApiError, forbidden, invalid
from protos import turn_pb2

RUN_ID = b"x-luftpause-run-id"
CLASS = b"x-luftpause-class"
CALLER = b"x-luftpause-caller"
OURS = frozenset((RUN_ID, CLASS, CALLER, limits.WAIT_S_MAX, limits.DEADLINE, limits.BUDGET_USD))
"""All headers of requests that luftpause means."""

_CLASSES = {"interactive": turn_pb2.RUN_CLASS_INTERACTIVE, "batch": turn_pb2.RUN_CLASS_BATCH}


@dataclass(frozen=True, slots=True)
class Identity:
    """What the headers say of a turn."""

    run_id: RunId | None
    caller: Caller
    run_class: turn_pb2.RunClass.ValueType
    limits: limits.TurnLimits = limits.NO_LIMITS


_ANONYMOUS = Identity(None, ANONYMOUS, turn_pb2.RUN_CLASS_INTERACTIVE)


def identify(headers: Mapping[bytes, bytes], grant: Grant = ANYTHING) -> Identity | ApiError:
    """The identity that `headers` (lower-case names) carry under `grant`, or an error that names the header and what
    was expected: 400 where it is malformed, 403 where the token does not allow it."""
    if grant is ANYTHING and headers.keys().isdisjoint(OURS):
        return _ANONYMOUS
    run_id = None
    if RUN_ID in headers:
        text = headers[RUN_ID].decode("latin-1")
        if not is_id(text):
            return invalid(RUN_ID.decode(), f"expected {ID_SHAPE}")
        run_id = RunId(text)
    class_name = headers.get(CLASS, b"").decode("latin-1").strip()
    if CLASS in headers and class_name not in _CLASSES:
        return invalid(CLASS.decode(), "expected 'interactive' or 'batch'")
    caller = identify_caller(headers, grant)
    if isinstance(caller, ApiError):
        return caller
    try:
        run_class = _CLASSES[grant.class_of(class_name)]
    except ForbiddenError as error:
        return forbidden(CLASS.decode(), str(error))
    own_limits = limits.begin(headers)
    return own_limits if isinstance(own_limits, ApiError) else Identity(run_id, caller, run_class, own_limits)


def identify_caller(headers: Mapping[bytes, bytes], grant: Grant) -> Caller | ApiError:
    """The caller that `headers` name under `grant`, or a 403."""
    try:
        return grant.caller_of(cut_caller(headers.get(CALLER, b"").decode("utf-8", "replace").strip()))
    except ForbiddenError as error:
        return forbidden(CALLER.decode(), str(error))
