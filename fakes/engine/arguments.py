"""Values that fit a JSON schema, as far as a tool call needs them: what is required, and no more. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

_DEPTH_MAX = 8
"""Schemas may refer to themselves; below this depth null has to do."""


def fitting(schema: Mapping[str, Any], chance: random.Random) -> Any:
    """A seeded value that fits `schema`; an object without properties where the schema itself is broken.

    Understood: types, required, enum, const, bounds, lengths, local $ref, and the first of anyOf, oneOf or allOf. A
    tool's parameters are an object, so a schema without a type counts as one.
    """
    try:
        return _value({"type": "object", **schema}, chance, schema, 0)
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def _value(schema: Any, chance: random.Random, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        return None
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return chance.choice(schema["enum"])
    elsewhere = _elsewhere(schema, root)
    if elsewhere is not None:
        return _value(elsewhere, chance, root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    match kind:
        case "object":
            return _object(schema, chance, root, depth)
        case "array":
            return [_value(schema.get("items"), chance, root, depth + 1) for _ in range(schema.get("minItems", 1))]
        case "integer" | "number":
            return _number(schema, chance)
        case "boolean":
            return chance.random() < 0.5
        case "null":
            return None
        case _:
            text = f"{chance.randrange(16**6):06x}".ljust(schema.get("minLength", 0), "x")
            return text[: schema.get("maxLength")]


def _elsewhere(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """The schema that this one refers to, or None."""
    if "$ref" in schema:
        node: Any = root
        for part in schema["$ref"].removeprefix("#").split("/")[1:]:
            node = node[part]
        return node
    return next((schema[name][0] for name in ("anyOf", "oneOf", "allOf") if schema.get(name)), None)


def _object(schema: Mapping[str, Any], chance: random.Random, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    return {name: _value(properties.get(name), chance, root, depth + 1) for name in schema.get("required") or ()}


def _number(schema: Mapping[str, Any], chance: random.Random) -> int:
    low = int(schema.get("minimum", schema.get("exclusiveMinimum", 0)))
    low += "exclusiveMinimum" in schema
    high = int(schema.get("maximum", schema.get("exclusiveMaximum", low + 10)))
    high -= "exclusiveMaximum" in schema
    return chance.randint(low, max(low, high))
