"""Any message of a type, with fields of any value: right ones, wrong ones, and ids that meet again."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

_TEXTS = st.sampled_from(["", "a", "b", "r-1", "t-1", "t-2", "m", "n", "a b", "x" * 200, "\x00"]) | st.text(max_size=5)
_NUMBERS = st.sampled_from([0, 1, 2, 100, 2**31 - 1])
_LARGE = _NUMBERS | st.sampled_from([2**53, 2**63 - 1])
_DEPTH_MAX = 4


def _value(field: Any, depth: int) -> st.SearchStrategy[Any]:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_MESSAGE:
        return fields(field.message_type, depth + 1)
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return st.binary(max_size=5) if field.type == FieldDescriptor.TYPE_BYTES else _TEXTS
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return st.sampled_from([*field.enum_type.values_by_number, 99])
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return st.sampled_from([0.0, 0.01, -1.0, 1e30, float("nan"), float("inf")])
    if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64):
        return _LARGE
    return _NUMBERS


def fields(descriptor: Any, depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    """Keyword arguments of a message of the type that `descriptor` describes (of either implementation of protobuf)."""
    if depth > _DEPTH_MAX:
        return st.just({})
    made: dict[str, st.SearchStrategy[Any]] = {}
    for field in descriptor.fields:
        value = _value(field, depth)
        made[field.name] = st.lists(value, max_size=3) if field.is_repeated else value
    return st.fixed_dictionaries({}, optional=made)
