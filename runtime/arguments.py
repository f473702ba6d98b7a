"""Arguments of a tool call as a model made them: brought to the types the schema asks for, then checked. Pure.

Models write `"3"` for 3, a JSON text for an object, null for what they leave out, or copy the schema. `prepare` mends
what has one meaning, and answers everything else with the shape that was expected. How long that takes is up to the
schema, so `checks` has it done elsewhere. Must not call tools, fetch schemas, or guess.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.exceptions import best_match, relevance
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from runtime.schemas import (
    Schema,
    branches_of,
    is_of,
    list_of,
    properties_of,
    resolved,
    shape,
    type_name,
    types_of,
)

DEPTH_MAX = 32
"""Deepest nesting of arguments that is looked at; deeper ones are refused."""
ARGUMENTS_CHARS_MAX = 1024 * 1024
"""Longest arguments, in characters; longer ones are refused."""
_STEPS_MAX = 20_000
"""How many schemas are applied to values, and in the check how many `$ref` are followed, before the rest is left as it
is. References are the only way for a schema of some size to cost more than its size."""
_ERRORS_MAX = 20
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_NUMBER_CHARS_MAX = 32
_SHAPE_CHARS_MAX = 600
_SHOWN_CHARS_MAX = 80
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Good:
    """Arguments that the schema allows."""

    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bad:
    """Arguments that it does not."""

    text: str
    """For the model: what is wrong, and the shape that is expected."""


def prepare(tool: str, schema: Schema, raw: str | Mapping[str, Any] | None) -> Good | Bad:
    """The arguments of a call of `tool` whose arguments have the JSON schema `schema`.

    `raw` is what the model made: usually a JSON text, empty or None for no arguments. Never raises. A schema that is
    itself not valid, or refers to another document, checks nothing but that the arguments are an object: it is not the
    model's fault, and the server checks too.
    """
    try:
        return _prepare(tool, schema, raw)
    except RecursionError:
        return Bad(f"Error: the arguments of {tool} are nested too deeply. {_expected(tool, schema)}")
    except ArithmeticError:
        return Bad(f"Error: the arguments of {tool} have a number that is too large. {_expected(tool, schema)}")


def _prepare(tool: str, schema: Schema, raw: str | Mapping[str, Any] | None) -> Good | Bad:
    arguments = _decoded(raw)
    if isinstance(arguments, str):
        return Bad(f"Error: the arguments of {tool} are not a JSON object: {arguments}. {_expected(tool, schema)}")
    if _depth_exceeds(arguments, DEPTH_MAX):
        return Bad(f"Error: the arguments of {tool} are nested too deeply. {_expected(tool, schema)}")
    if _is_schema(arguments, schema):
        return Bad(
            f"Error: these arguments are the schema of {tool}, not values for it. "
            f"Call it again with a value for each argument. {_expected(tool, schema)}"
        )
    coerced = _Coercion(schema).of(arguments, schema)
    assert isinstance(coerced, dict)
    problem = _problem(coerced, schema)
    return Bad(f"Error: bad arguments for {tool}: {problem}. {_expected(tool, schema)}") if problem else Good(coerced)


def _decoded(raw: str | Mapping[str, Any] | None) -> dict[str, Any] | str:
    """The arguments as an object, or what is wrong with them. A text that holds a JSON text is decoded twice."""
    value: object = raw
    for _ in range(2):
        if not isinstance(value, str) or not value.strip():
            break
        if len(value) > ARGUMENTS_CHARS_MAX:
            return f"longer than {ARGUMENTS_CHARS_MAX} characters"
        try:
            value = _whole_characters(json.loads(value, parse_constant=_refused))
        except ValueError as error:
            return str(error)
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    return dict(value) if isinstance(value, Mapping) else f"{type_name(value)} {_shown(value)}"


def _whole_characters(value: object) -> object:
    """`value` with "?" for halves of characters: a model may write one of an emoji, which no encoding has."""
    text = json.dumps(value, ensure_ascii=False)
    return value if text.isascii() else json.loads(text.encode("utf-8", "replace"))


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _depth_exceeds(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for item in level
            if isinstance(item, Mapping | list)
            for child in (item.values() if isinstance(item, Mapping) else item)
        ]
        if not level:
            return False
    return True


def _is_schema(arguments: dict[str, Any], schema: Schema) -> bool:
    """Whether the model sent back a schema: `properties` and `type: object`, where the tool has no such arguments."""
    own = properties_of(schema)
    if isinstance(arguments.get("properties"), Mapping) and "properties" not in own:
        return arguments.get("type") == "object" or "required" in arguments or "$schema" in arguments
    # Or one argument after the other, each as its schema: {"query": {"type": "string", "title": "Query"}}.
    told = [(own[name], value) for name, value in arguments.items() if name in own]
    return bool(told) and all(
        isinstance(value, Mapping)
        and isinstance(of, Mapping)
        and "type" in value
        and all(of.get(key, _ABSENT) == part for key, part in value.items())
        for of, value in told
    )


class _Coercion:
    """One walk through arguments and the schema they have."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._steps = 0

    def of(self, value: object, schema: object, depth: int = 0) -> object:
        """`value` in the type that `schema` asks for where that has one meaning, else as it is."""
        schema = resolved(schema, self._root)
        self._steps += 1
        if schema is None or depth > DEPTH_MAX or self._steps > _STEPS_MAX:
            return value
        types = types_of(schema, self._root)
        if types and not any(is_of(value, kind) for kind in types):
            value = _converted(value, types)
        if isinstance(value, Mapping | list):
            fitting = [b for b in branches_of(schema, self._root) if _fits_branch(value, b, self._root)]
            if len(fitting) == 1:
                value = self.of(value, fitting[0], depth + 1)
        for part in list_of(schema, "allOf"):
            value = self.of(value, part, depth + 1)
        if isinstance(value, Mapping):
            return self._object(value, schema, depth)
        if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
            return [self.of(item, schema["items"], depth + 1) for item in value]
        return value

    def _object(self, value: Mapping[str, Any], schema: Schema, depth: int) -> dict[str, Any]:
        properties = properties_of(schema)
        required = list_of(schema, "required")
        made: dict[str, Any] = {}
        for name, item in value.items():
            of = properties.get(name, schema.get("additionalProperties"))
            left_out = item is None and name in properties and name not in required
            if not left_out or _allows_null(of, self._root):
                made[name] = self.of(item, of, depth + 1)
        return made


def _converted(value: object, types: set[str]) -> object:
    """`value` as one of `types`, none of which it is, or unchanged."""
    match value:
        case str():
            return _from_text(value, types)
        case bool() | int() | float() if "string" in types:
            return json.dumps(value)
        case float() if "integer" in types and math.isfinite(value) and value.is_integer():
            return int(value)
        case _:
            return value


def _from_text(text: str, types: set[str]) -> object:
    stripped = text.strip()
    if types & {"integer", "number"} and len(stripped) <= _NUMBER_CHARS_MAX:
        number = _number(stripped)
        if isinstance(number, int) or (number is not None and "number" in types):
            return number
    if "boolean" in types and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if "null" in types and stripped.lower() in ("null", "none", ""):
        return None
    if types & {"object", "array"} and stripped[:1] in ("{", "["):
        try:
            decoded = json.loads(stripped)
        except (ValueError, RecursionError):
            return text
        fits = any(is_of(decoded, kind) for kind in types) and not _depth_exceeds(decoded, DEPTH_MAX)
        return decoded if fits else text
    return text


def _number(text: str) -> int | float | None:
    try:
        number = json.loads(text)
    except ValueError:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        return None
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _fits_branch(value: object, branch: Schema, root: Schema) -> bool:
    """Whether a branch is meant: by its type, by what it requires, and by its constants (a tag, say)."""
    types = types_of(branch, root)
    if types and not any(is_of(value, kind) for kind in types):
        return False
    if not isinstance(value, Mapping):
        return True
    named = properties_of(branch).items()
    constants = {name: of["const"] for name, of in named if isinstance(of, Mapping) and "const" in of}
    return all(name in value for name in list_of(branch, "required")) and all(
        value.get(name, _ABSENT) == constant for name, constant in constants.items()
    )


def _allows_null(schema: object, root: Schema) -> bool:
    schema = resolved(schema, root)
    if schema is None:
        return True
    types = types_of(schema, root)
    return "null" in types or (not types and not schema.keys() & {"enum", "const"}) or None in list_of(schema, "enum")


class _TooMuchError(Exception):
    """A schema takes more steps to check than it is worth."""


@dataclass(slots=True)
class _Checker:
    """The validator of one schema. It fetches nothing, its registry is empty."""

    validator: Validator
    steps: int = 0

    def errors(self, arguments: dict[str, Any]) -> list[ValidationError]:
        """The first errors, the most telling first; none where the schema cannot be followed."""
        self.steps = 0
        try:
            found = list(itertools.islice(self.validator.iter_errors(arguments), _ERRORS_MAX))
        except (Unresolvable, RecursionError, _TooMuchError):
            return []
        return sorted(found, key=relevance, reverse=True)


@functools.lru_cache(maxsize=256)
def _checker(schema_text: str) -> _Checker | None:
    """The checker of a schema, or None for one that is not valid."""
    schema = json.loads(schema_text)
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except (SchemaError, Unresolvable, RecursionError):
        return None

    def counted(follow: Any) -> Any:
        def check(validator: Any, ref: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            checker.steps += 1
            if checker.steps > _STEPS_MAX:
                raise _TooMuchError
            yield from follow(validator, ref, instance, schema) or ()

        return check

    refs = {key: counted(follow) for key, follow in kind.VALIDATORS.items() if key in _REFS}
    counting: Any = extend(kind, refs)  # type: ignore[no-untyped-call]
    checker = _Checker(counting(schema, registry=Registry()))
    return checker


def _problem(arguments: dict[str, Any], schema: Schema) -> str:
    """What the schema has against the arguments, in a few words; empty if nothing."""
    checker = _checker(json.dumps(schema, sort_keys=True))
    errors = checker.errors(arguments) if checker is not None else []
    return "; ".join(dict.fromkeys(_told(error, schema) for error in errors[:3]))


def _told(error: ValidationError, root: Schema) -> str:
    """An error of the validator in the words of a call."""
    types = types_of(_schema_of(error), root) if error.validator in ("type", "anyOf", "oneOf") else set()
    if error.context and (not types or any(is_of(error.instance, kind) for kind in types)):
        error = best_match([error]) or error
    value: Any = error.validator_value
    instance: Any = error.instance
    where = ".".join(str(part) for part in error.absolute_path)
    name = f"'{where}'" if where else "the arguments"
    inside = f" in {name}" if where else ""
    if types and not any(is_of(instance, kind) for kind in types):
        return f"{name} must be {' or '.join(sorted(types))}, not {type_name(instance)} {_shown(instance)}"
    match error.validator:
        case "required":
            missing = [key for key in value if key not in instance]
            return f"{', '.join(repr(key) for key in missing[:10])} missing{inside}"
        case "enum":
            allowed = ", ".join(json.dumps(each, ensure_ascii=False) for each in value[:20])
            return f"{name} must be one of {allowed}, not {_shown(instance)}"
        case "additionalProperties":
            unknown = [key for key in instance if key not in properties_of(_schema_of(error))]
            return f"unknown: {', '.join(repr(key) for key in unknown[:5])}{inside}"
        case _:
            return f"{name}: {error.message[:200]}"


def _schema_of(error: ValidationError) -> Schema:
    return error.schema if isinstance(error.schema, Mapping) else {}


def _expected(tool: str, schema: Schema) -> str:
    text = shape(schema, schema)
    return f"Expected: {tool}({text if len(text) <= _SHAPE_CHARS_MAX else text[:_SHAPE_CHARS_MAX] + '…'})"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "…"
