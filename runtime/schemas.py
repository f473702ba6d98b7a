"""Reading JSON schemas of tools, which strangers wrote: references within the document, types, shape. Pure.

Nothing is ever fetched, and every walk is bounded. Used by `arguments`, which has the rules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

_REFS_MAX = 8
"""How many `$ref` in a row are followed."""
_SHAPE_DEPTH_MAX = 3


def resolved(schema: object, root: Schema) -> Schema | None:
    """`schema` behind its `$ref` within `root`; None where it says nothing or points elsewhere."""
    for _ in range(_REFS_MAX):
        if not isinstance(schema, Mapping):
            return None
        if not isinstance(schema.get("$ref"), str):
            return schema
        schema = _target(schema["$ref"], root)
    return None


def _target(ref: str, root: Schema) -> object:
    """What `ref` points to in `root`, or None."""
    if not ref.startswith("#"):
        return None
    found: object = root
    for part in ref[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and len(name) < 9 and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def branches_of(schema: Schema, root: Schema) -> list[Schema]:
    """The schemas of its anyOf and oneOf."""
    found = (resolved(branch, root) for key in ("anyOf", "oneOf") for branch in list_of(schema, key))
    return [branch for branch in found if branch is not None]


def types_of(schema: Schema, root: Schema) -> set[str]:
    """The JSON types that `schema` names, itself or in the branches of anyOf and oneOf; empty: any."""
    own = schema.get("type")
    if isinstance(own, str):
        return {own}
    if isinstance(own, list):
        return {kind for kind in own if isinstance(kind, str)}
    named = [branch.get("type") for branch in branches_of(schema, root)]
    return {kind for kind in named if isinstance(kind, str)} if all(isinstance(kind, str) for kind in named) else set()


def is_of(value: object, kind: str) -> bool:
    """Whether `value` has the JSON type `kind`; 1.0 is no integer here, since many servers are strict about it."""
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "object":
            return isinstance(value, Mapping)
        case "array":
            return isinstance(value, list)
        case _:
            return True


def type_name(value: object) -> str:
    """The JSON type of `value`."""
    return next(
        k for k in ("string", "integer", "number", "boolean", "null", "object", "array", "?") if is_of(value, k)
    )


def list_of(schema: Schema, key: str) -> list[Any]:
    """The list under `key`; empty if there is none."""
    value = schema.get(key)
    return value if isinstance(value, list) else []


def properties_of(schema: Schema) -> Mapping[str, Any]:
    """Its properties; empty if it names none."""
    value = schema.get("properties")
    return value if isinstance(value, Mapping) else {}


def shape(schema: object, root: Schema, depth: int = 0) -> str:
    """The schema in the fewest words: `{query: string, limit?: integer, mode?: "a" | "b"}`."""
    schema = resolved(schema, root)
    if schema is None:
        return "any"
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if isinstance(schema.get("enum"), list):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"][:20])
    if depth < _SHAPE_DEPTH_MAX and (branches := branches_of(schema, root)):
        return " | ".join(dict.fromkeys(shape(branch, root, depth + 1) for branch in branches[:8]))
    types = types_of(schema, root)
    if types == {"array"}:
        return f"[{shape(schema.get('items'), root, depth + 1)}, …]" if depth < _SHAPE_DEPTH_MAX else "array"
    properties = properties_of(schema)
    if (types == {"object"} or properties) and depth < _SHAPE_DEPTH_MAX:
        required = list_of(schema, "required")
        parts = [f"{n}{'' if n in required else '?'}: {shape(of, root, depth + 1)}" for n, of in properties.items()]
        return "{" + ", ".join(parts) + "}"
    return " | ".join(sorted(types)) or "any"
