"""What a bundle brings in is held to the rules of the runtime that takes it, not of whoever wrote the file. Pure.

`check` refuses what no client could have asked for, `judged` decides anew about the calls that are still to be made:
the file may say that a destructive tool needs nobody's approval, or that it may be called twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import msgspec

from common.ids import ID_SHAPE, is_id
from common.trace_context import usable
from runtime import calls, orders
from runtime.orders import NUMBER_MAX, SpawnRequest, clean_caller
from runtime.records import Answered, AnyRecord, Call, Intended, Order, Replied, Returned, Started
from runtime.refusals import InvalidArgumentError
from runtime.run import RunState, fold
from runtime.tool_specs import EffectKind, ToolSpec

_AT_MAX = 253_402_300_799.0
"""The end of the year 9999, in seconds since 1970: later times are no dates."""


def check(records: Iterable[AnyRecord], run: RunState, parent: RunState | None) -> None:
    """Raises InvalidArgumentError where `records`, which fold into `run`, hold what this release does not write."""
    try:
        for record in records:
            _check_record(record)
        orders.check(_asked(run.order), run.order.model, parent, lambda _name: None)
    except InvalidArgumentError as error:
        problem = f"run {run.run_id[:128]!r}: {error.argument}: {error.problem}"
        raise InvalidArgumentError("bundle", problem) from None
    if parent is not None and run.caller != parent.caller:
        raise InvalidArgumentError("bundle", f"run {run.run_id}: expected the caller of its parent")


def judged(records: Sequence[AnyRecord], find: Callable[[str], ToolSpec | None]) -> list[AnyRecord]:
    """`records` of a run as this runtime goes on with it: its calls that have no outcome are judged by the tools that
    `find` knows by name, and what a person elsewhere allowed of them is asked again."""
    run = fold(records)
    kept = list(records)
    if run.end is not None or not run.steps:
        return kept
    last = len(run.steps) - 1
    begun = {record.call for record in records if isinstance(record, Intended) and record.step == last}

    def anew(position: int, call: Call) -> Call:
        if position not in run.steps[last].open_calls:
            return call
        here = calls.judged(call, find(call.name), run.order)
        if position not in begun:
            return here
        # It was allowed, or needed nobody, where it began. If it does here, it is not made again without a question.
        effect = EffectKind.AT_MOST_ONCE if here.needs_approval else here.effect
        return msgspec.structs.replace(call, effect=effect)

    for position in run.steps[last].open_calls:
        if not run.steps[last].calls[position].intended:
            _drop_answer(kept, last, position)
    return [
        msgspec.structs.replace(record, calls=tuple(anew(number, call) for number, call in enumerate(record.calls)))
        if isinstance(record, Replied) and record.step == last
        else record
        for record in kept
    ]


def _drop_answer(records: list[AnyRecord], step: int, call: int) -> None:
    """Takes out the last answer about a call, if there is one."""
    for number in range(len(records) - 1, -1, -1):
        record = records[number]
        if isinstance(record, Answered) and (record.step, record.call) == (step, call):
            del records[number]
            return


def _check_record(record: AnyRecord) -> None:
    _expect("at", 0 <= record.at <= _AT_MAX, f"seconds since 1970, 0 to {_AT_MAX:g}")
    match record:
        case Started():
            names = (record.run_id, record.root, record.parent, record.forked_from)
            _expect("id", all(is_id(name) for name in names if name is not None), ID_SHAPE)
            _expect("caller", record.caller == clean_caller(record.caller), "printable text of at most 128 bytes")
            _expect("traceparent", record.traceparent in (None, usable(record.traceparent)), "a W3C trace context")
        case Replied():
            counts = (record.prompt_tokens, record.completion_tokens, record.cached_tokens)
            _expect("tokens", all(0 <= count <= NUMBER_MAX for count in counts), f"0 to {NUMBER_MAX}")
            _expect("duration_s", 0 <= record.duration_s <= NUMBER_MAX, f"0 to {NUMBER_MAX}")
            _expect(
                "calls", all(_is_object(call.arguments) for call in record.calls), "arguments that are JSON objects"
            )
        case Returned():
            _expect("duration_s", 0 <= record.duration_s <= NUMBER_MAX, f"0 to {NUMBER_MAX}")
        case _:
            pass


def _expect(what: str, holds: bool, expected: str) -> None:
    if not holds:
        raise InvalidArgumentError(what, f"expected {expected}")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _asked(order: Order) -> SpawnRequest:
    """The request that leads to `order`."""
    return SpawnRequest(
        task=order.task,
        model=order.model,
        service_class=order.run_class,
        system=order.system,
        max_tool_calls=order.tool_calls_max,
        tools=order.tools,
        max_tokens=order.tokens_max,
        parallel_tool_calls=order.parallel_tool_calls,
        budget_tokens=order.limits.tokens,
        budget_tool_calls=order.limits.tool_calls,
        budget_seconds=order.limits.seconds,
        approve_tools=order.approve_tools,
    )
