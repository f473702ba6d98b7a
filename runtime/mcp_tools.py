"""How methods become MCP tools: arguments known and described, refusals and wrong types told in our words. No I/O.

Must not know what the tools do: that is `mcp_server`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp_types import ToolAnnotations
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from runtime.orders import COUNT_MAX, SpawnRequest
from runtime.refusals import RefusedError
from runtime.store import StoreError
from runtime.tool_descriptions import ARGUMENTS, DESCRIPTIONS

FAULTS_TOLD_MAX = 5
"""Of the arguments of a call."""


def _no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


A_NUMBER = BeforeValidator(_no_truth)
"""Of arguments that are numbers: true is not 1. A number that a model writes as a string is taken."""


class _Tool(Tool):
    """One of them, which tells arguments of a wrong type in our words."""

    async def run(self, *args: Any, **options: Any) -> Any:
        """As the SDK's."""
        try:
            return await super().run(*args, **options)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            known = ", ".join(self.parameters["properties"]) or "none"
            errors = error.__cause__.errors(include_url=False, include_context=False, include_input=False)
            faults = (_fault(each, known) for each in errors[:FAULTS_TOLD_MAX])
            raise ToolError(f"Error executing tool {self.name}: {'; '.join(faults)}") from None


def _fault(error: ErrorDetails, known: str) -> str:
    """Which argument is not what was expected; `known` are all there are."""
    where = ".".join(map(str, error["loc"]))
    match error["type"]:
        case "extra_forbidden":
            return f"{where}: there is no such argument; there are: {known}"
        case "missing":
            return f"{where}: it is needed"
        case "too_long":
            return f"{where}: expected at most {COUNT_MAX}"
        case "tuple_type":
            return f"{where}: expected a list"
        case _:
            return f"{where}: {error['msg'].replace('Input should be', 'expected').removeprefix('Value error, ')}"


def tool(name: str, method: Callable[..., Any], hints: ToolAnnotations) -> Tool:
    """The tool, which refuses arguments that it does not know: one that is misspelt is not silently left out."""
    made = _Tool.from_function(
        _refusing(method), name=name, description=DESCRIPTIONS[name], annotations=hints, structured_output=False
    )
    known = made.fn_metadata.arg_model
    strict: Any = type(known.__name__, (known,), {"model_config": ConfigDict(extra="forbid"), "__module__": __name__})
    made.fn_metadata = made.fn_metadata.model_copy(update={"arg_model": strict})
    made.parameters = strict.model_json_schema(by_alias=True)
    return made


def _refusing(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, whose refusals the client reads as errors of the tool."""

    @functools.wraps(method)
    async def answer(*args: Any, **arguments: Any) -> Any:
        try:
            return await method(*args, **arguments)
        except (RefusedError, StoreError) as error:
            raise ToolError(str(error)) from None

    return answer


def with_spawn_arguments(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, with the arguments of `SpawnRequest` in its signature, by which the SDK knows them."""

    @functools.wraps(method)
    async def spawning(ctx: Context, **arguments: Any) -> Any:
        return await method(ctx, **arguments)

    hints = get_type_hints(SpawnRequest)
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Context)]
    for field in dataclasses.fields(SpawnRequest):
        name = _camel(field.name)
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        # What `Annotated[hint, Field(...)]` is, which mypy would read as a type. Since Python 3.13 it is no class.
        hint = hints[field.name]
        kinds = (hint, *get_args(hint))
        is_list = any(get_origin(each) is tuple for each in kinds)
        limits: dict[str, Any] = {"max_length": COUNT_MAX, "fail_fast": True} if is_list else {}
        told = Field(description=ARGUMENTS[name], **limits)
        numbers = (A_NUMBER,) if int in kinds or float in kinds else ()
        described = operator.getitem(cast("Any", Annotated), (hint, told, *numbers))
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=described)
        )
    spawning.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return spawning


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each.title() for each in others)


def spawn_request(arguments: dict[str, Any]) -> SpawnRequest:
    """What the arguments of `spawn` or `run` ask for."""
    named = {_camel(field.name): field.name for field in dataclasses.fields(SpawnRequest)}
    return SpawnRequest(**{named[name]: value for name, value in arguments.items()})
