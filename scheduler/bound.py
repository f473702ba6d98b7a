"""What a token that is bound to a caller or to classes may ask of the scheduler itself. Pure.

The dataplane looks at tokens before it asks; here they are looked at for clients that call gRPC themselves.
"""

from __future__ import annotations

from common.grants import ForbiddenError, Grant
from common.ids import cut_caller
from protos import turn_pb2
from scheduler.events import RunEnded
from scheduler.state import State
from scheduler.wire import Fault, ReportEvent

_NAMES: dict[int, str] = {
    turn_pb2.RUN_CLASS_UNSPECIFIED: "",
    turn_pb2.RUN_CLASS_INTERACTIVE: "interactive",
    turn_pb2.RUN_CLASS_BATCH: "batch",
}
_CLASSES = {"interactive": turn_pb2.RUN_CLASS_INTERACTIVE, "batch": turn_pb2.RUN_CLASS_BATCH}


def bind(turn: turn_pb2.Turn, grant: Grant) -> Fault | None:
    """Gives `turn` the caller and class that `grant` gives it; or says why it may not be asked for."""
    try:
        turn.caller = grant.caller_of(cut_caller(turn.caller))
    except ForbiddenError as error:
        return Fault(f"turn.caller: {error}")
    name = _NAMES.get(turn.run_class)
    if name is not None:  # what is no class is told by `wire`
        try:
            turn.run_class = _CLASSES[grant.class_of(name)]
        except ForbiddenError as error:
            return Fault(f"turn.run_class: {error}")
    return None


def may_report(state: State, event: ReportEvent, grant: Grant) -> bool:
    """Whether `grant` covers a report: it is about a turn or run of its caller, or about none that is known."""
    if grant.caller is None:
        return True
    if isinstance(event, RunEnded):
        return event.caller == grant.caller
    turn = state.turns.get(event.turn_id)
    return turn is None or turn.request.caller == grant.caller
