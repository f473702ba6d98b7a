"""Any message of a type: right ones, and such with some or many wrong values; ids meet again."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.fuzz.fuzzing import mutated, some, some_bytes, some_text

M = TypeVar("M", bound=Message)
Known = Mapping[str, Sequence[Any]]
"""Right values of fields, by their names; none: where it is right, the field is left out."""

_IDS = ["a", "b", "r-1", "t-1", "t-2"]
_WRONG_TEXTS = ["", "a b", "x" * 200, "\x00"]
_DEPTH_MAX = 4

_BOOLS = ([False, True], [False, True])
_FLOATS = ([0.0, 0.01, 1.0], [-1.0, 1e30, float("nan"), float("inf")])
_INTS = ([1, 2, 100], [0, 2**31 - 1])
_LONGS = ([1, 2, 100], [0, 2**31 - 1, 2**53, 2**63 - 1])
_NUMBERS: dict[int, tuple[list[Any], list[Any]]] = {
    FieldDescriptor.CPPTYPE_BOOL: _BOOLS,
    FieldDescriptor.CPPTYPE_DOUBLE: _FLOATS,
    FieldDescriptor.CPPTYPE_FLOAT: _FLOATS,
    FieldDescriptor.CPPTYPE_INT64: _LONGS,
    FieldDescriptor.CPPTYPE_UINT64: _LONGS,
}
"""Right values and wrong ones; of all other kinds: `_INTS`."""


def any_of(chance: random.Random, message: type[M], known: Known) -> M:
    """A message."""
    return message(**_Maker(chance, known).fields(message.DESCRIPTOR, 0))


class _Maker:
    """Makes one message, whose values are wrong, and there, as often as it has drawn."""

    def __init__(self, chance: random.Random, known: Known) -> None:
        self.chance = chance
        self.known = known
        self.wrong = chance.choice((0.0, 0.0, 0.05, 0.5))
        self.present = chance.choice((0.6, 0.95, 1.0))

    def fields(self, descriptor: Any, depth: int) -> dict[str, Any]:
        """Arguments of a message of the type that `descriptor` describes (of either implementation of protobuf)."""
        if depth > _DEPTH_MAX:
            return {}
        return {
            field.name: some(self.chance, 3, lambda _, field=field: self.value(field, depth))  # type: ignore[misc]
            if field.is_repeated
            else self.value(field, depth)
            for field in _fields_of(descriptor)
            if self.chance.random() < (self.present if self.known.get(field.name, _IDS) else self.wrong)
        }

    def value(self, field: Any, depth: int) -> Any:
        """One value, also of a repeated field."""
        kind, is_wrong = field.cpp_type, self.chance.random() < self.wrong
        if kind == FieldDescriptor.CPPTYPE_MESSAGE:
            return self.fields(field.message_type, depth + 1)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            _, *right = field.enum_type.values_by_number
            return self.chance.choice([0, 99] if is_wrong else right)
        if kind != FieldDescriptor.CPPTYPE_STRING:
            known = None if is_wrong else self.known.get(field.name)
            return self.chance.choice(known or _NUMBERS.get(kind, _INTS)[is_wrong])
        if field.type == FieldDescriptor.TYPE_BYTES:
            known = self.known.get(field.name)
            return mutated(self.chance, self.chance.choice(known)) if known else some_bytes(self.chance, 5)
        if is_wrong:
            return self.chance.choice([*_WRONG_TEXTS, some_text(self.chance, 5)])
        return self.chance.choice(self.known.get(field.name) or _IDS)


@functools.cache
def _fields_of(descriptor: Any) -> list[Any]:
    return list(descriptor.fields)
