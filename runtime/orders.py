"""What a client may ask of a new run, checked argument by argument. Pure.

The names in the errors are those of the MCP tools; `wire.field_of` knows those of the gRPC messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sized
from dataclasses import dataclass

from common.ids import Caller, cut_caller
from runtime.records import Limits, Order, RunClass
from runtime.refusals import InvalidArgumentError
from runtime.run import RunState

COUNT_MAX = 1000
"""Most names, handles or labels in one request."""
TEXT_CHARS_MAX = 1_000_000
"""Longest task or system text."""
NAME_CHARS_MAX = 512
NUMBER_MAX = 2**53
"""Above it, JSON numbers are no longer whole numbers for every client."""
DEPTH_MAX = 32
"""Most runs from the top of a tree down to one of its ends: what a run may still spend is asked of all above it."""
TOOL_CALLS_MAX = 10_000
"""Most tool calls of one run: a journal has to be read as a whole."""


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """The arguments of `spawn`, as they came."""

    task: str
    model: str | None = None
    service_class: str | None = None
    system: str | None = None
    max_tool_calls: int = 8
    tools: tuple[str, ...] | None = None
    max_tokens: int = 256
    parallel_tool_calls: bool = False
    parent: str | None = None
    budget_tokens: int | None = None
    budget_tool_calls: int | None = None
    budget_seconds: float | None = None
    approve_tools: tuple[str, ...] = ()


def check(request: SpawnRequest, model: str, parent: RunState | None, missing: Callable[[str], str | None]) -> Order:
    """The order of the new run. Raises InvalidArgumentError.

    `model` is the one named by the request, or what stands for it. `parent` is the run named by it. `missing` says of a
    tool's name what to answer where there is no such tool, or None.
    """
    check_text("task", request.task)
    if not request.task.strip():
        raise InvalidArgumentError("task", "expected a text that is not empty")
    if request.system is not None:
        check_text("system", request.system)
    if not 1 <= len(model) <= NAME_CHARS_MAX:
        raise InvalidArgumentError("model", f"expected the name of a model, 1 to {NAME_CHARS_MAX} characters")
    check_text("model", model)
    for argument, names in (("tools", request.tools or ()), ("approveTools", request.approve_tools)):
        check_count(argument, names)
        for name in names:
            problem = missing(name)
            if problem is not None:
                raise InvalidArgumentError(argument, problem)
    _check_range("maxToolCalls", request.max_tool_calls, 0, TOOL_CALLS_MAX)
    _check_range("maxTokens", request.max_tokens, 0, NUMBER_MAX)
    for argument, budget in (("budgetTokens", request.budget_tokens), ("budgetToolCalls", request.budget_tool_calls)):
        if budget is not None:
            _check_range(argument, budget, 1, NUMBER_MAX)
    seconds = request.budget_seconds
    if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= NUMBER_MAX):
        raise InvalidArgumentError(
            "budgetSeconds", f"expected a number more than 0, at most {NUMBER_MAX}; leave it out for no limit"
        )
    return Order(
        task=request.task,
        model=model,
        run_class=_run_class(request.service_class, parent),
        system=request.system,
        tool_calls_max=request.max_tool_calls,
        tools=request.tools,
        tokens_max=request.max_tokens,
        parallel_tool_calls=request.parallel_tool_calls,
        limits=Limits(request.budget_tokens, request.budget_tool_calls, seconds),
        approve_tools=request.approve_tools,
    )


def clean_caller(text: str) -> Caller:
    """A caller as it can stand in a header: printable, cut at 128 bytes, no space around; such a one stays as it is."""
    printable = "".join(char for char in text if char.isprintable())
    return Caller(cut_caller(printable.strip()).strip())


def _run_class(asked: str | None, parent: RunState | None) -> RunClass:
    if asked is not None and asked not in (*RunClass,):
        raise InvalidArgumentError("serviceClass", "expected 'interactive' or 'batch'")
    if parent is None:
        return RunClass(asked or RunClass.INTERACTIVE)
    inherited = parent.order.run_class
    if asked not in (None, inherited):
        raise InvalidArgumentError("serviceClass", f"a child has the class of its parent, '{inherited}'; leave it out")
    return inherited


def check_count(argument: str, given: Sized) -> None:
    """Raises InvalidArgumentError where there are too many to look at each."""
    if len(given) > COUNT_MAX:
        raise InvalidArgumentError(argument, f"expected at most {COUNT_MAX}, not {len(given)}")


def check_text(argument: str, text: str) -> None:
    """Raises InvalidArgumentError where `text` is too long, or is none."""
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidArgumentError(argument, f"expected at most {TEXT_CHARS_MAX} characters")
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise InvalidArgumentError(argument, "expected Unicode text, without lone surrogates")


def _check_range(argument: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise InvalidArgumentError(argument, f"expected a whole number from {least} to {most}")
