"""Arguments as models make them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.arguments import Bad, Good, prepare

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What to look for"},
        "limit": {"type": "integer", "default": 10},
        "score": {"type": "number"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "filter": {"type": "object", "properties": {"year": {"type": "integer"}}},
        "mode": {"enum": ["fast", "slow"]},
        "page": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "where": {"$ref": "#/$defs/place"},
    },
    "required": ["query"],
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
}


def good(raw: Any, schema: dict[str, Any] = SEARCH) -> dict[str, Any]:
    """The arguments, which must be good."""
    prepared = prepare("search", schema, raw)
    assert isinstance(prepared, Good), prepared
    return prepared.arguments


def bad(raw: Any, schema: dict[str, Any] = SEARCH) -> str:
    """What the model is told, which must be an error."""
    prepared = prepare("search", schema, raw)
    assert isinstance(prepared, Bad), prepared
    assert prepared.text.startswith("Error: ")
    assert len(prepared.text) < 2000
    return prepared.text


@pytest.mark.parametrize(
    ("made", "meant"),
    [
        ({"limit": "3"}, {"limit": 3}),
        ({"limit": " 3 "}, {"limit": 3}),
        ({"limit": 3.0}, {"limit": 3}),
        ({"limit": "3.0"}, {"limit": 3}),
        ({"score": "0.5"}, {"score": 0.5}),
        ({"score": "1e3"}, {"score": 1000}),
        ({"score": 2}, {"score": 2}),
        ({"exact": "true"}, {"exact": True}),
        ({"exact": "False"}, {"exact": False}),
        ({"query": 42}, {"query": "42"}),
        ({"query": True}, {"query": "true"}),
        ({"query": "42"}, {"query": "42"}),
        ({"tags": '["a", "b"]'}, {"tags": ["a", "b"]}),
        ({"tags": [1, "b"]}, {"tags": ["1", "b"]}),
        ({"filter": '{"year": "1999"}'}, {"filter": {"year": 1999}}),
        ({"filter": {"year": "1999"}}, {"filter": {"year": 1999}}),
        ({"page": "2"}, {"page": 2}),
        ({"page": None}, {"page": None}),
        ({"page": "null"}, {"page": None}),
        ({"limit": None}, {}),
        ({"tags": None, "mode": None}, {}),
        ({"where": {"lat": "47.5"}}, {"where": {"lat": 47.5}}),
        ({"where": '{"lat": 47}'}, {"where": {"lat": 47}}),
        ({"unheard": "3"}, {"unheard": "3"}),
    ],
)
def test_what_has_one_meaning_is_mended(made: dict[str, Any], meant: dict[str, Any]) -> None:
    assert good(json.dumps({"query": "x"} | made)) == {"query": "x"} | meant


def test_mended_integers_are_integers() -> None:
    assert type(good({"query": "x", "limit": 3.0})["limit"]) is int


@pytest.mark.parametrize("raw", [None, "", "  ", "{}", "null", '""', "{ }", {}])
def test_no_arguments_are_an_empty_object(raw: Any) -> None:
    assert good(raw, {"type": "object", "properties": {}}) == {}


def test_arguments_encoded_twice_are_decoded_twice() -> None:
    assert good(json.dumps(json.dumps({"query": "x", "limit": "3"}))) == {"query": "x", "limit": 3}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({}, "'query' missing"),
        ({"query": None}, "'query' must be string, not null null"),
        ({"query": "x", "limit": "many"}, "'limit' must be integer, not string \"many\""),
        ({"query": "x", "limit": 1.5}, "'limit' must be integer, not number 1.5"),
        ({"query": "x", "limit": True}, "'limit' must be integer, not boolean true"),
        ({"query": "x", "exact": "perhaps"}, "'exact' must be boolean"),
        ({"query": "x", "mode": "medium"}, '\'mode\' must be one of "fast", "slow", not "medium"'),
        ({"query": "x", "page": "two"}, "'page' must be integer or null"),
        ({"query": "x", "where": {}}, "'lat' missing in 'where'"),
        ({"query": "x", "tags": ["a", {}]}, "'tags.1' must be string"),
        ({"query": "x", "limit": "9" * 5000}, "'limit' must be integer"),
        ({"query": "x", "limit": "NaN"}, "'limit' must be integer"),
    ],
)
def test_a_bad_call_is_told_which_argument_and_what_was_expected(made: dict[str, Any], said: str) -> None:
    text = bad(json.dumps(made))
    assert said in text
    assert "Expected: search({query: string, limit?: integer, " in text
    assert 'mode?: "fast" | "slow"' in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('{"query": "x"', "not a JSON object"),
        ("[1, 2]", "array [1, 2]"),
        ("3", "integer 3"),
        ('{"query": NaN}', "NaN is not JSON"),
        ('"words"', "not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"query":' + "[" * 100 + "]" * 100 + "}", "nested too deeply"),
        ('{"query": "' + "x" * 2_000_000 + '"}', "longer than 1048576 characters"),
    ],
)
def test_what_is_no_object_is_told(raw: str, said: str) -> None:
    assert said in bad(raw)


@pytest.mark.parametrize(
    "copied",
    [
        SEARCH,
        {"type": "object", "properties": {"query": {"type": "string"}}},
        {"properties": SEARCH["properties"], "required": ["query"]},
        {"query": SEARCH["properties"]["query"]},
        {"query": {"type": "string"}, "limit": {"type": "integer"}},
    ],
)
def test_arguments_that_are_the_schema_are_recognised(copied: dict[str, Any]) -> None:
    assert "are the schema of search, not values for it" in bad(json.dumps(copied))


def test_an_argument_called_properties_is_no_schema() -> None:
    schema = {"type": "object", "properties": {"properties": {"type": "object"}, "type": {"type": "string"}}}
    made = {"type": "object", "properties": {"a": 1}}
    assert good(made, schema) == made


def test_an_argument_that_is_a_schema_for_a_tool_that_takes_one_is_good() -> None:
    schema = {"type": "object", "properties": {"shape": {"type": "object"}}, "required": ["shape"]}
    made = {"shape": {"type": "object", "properties": {"a": {"type": "string"}}}}
    assert good(made, schema) == made


def test_unknown_arguments_are_refused_only_where_the_schema_says_so() -> None:
    closed = SEARCH | {"additionalProperties": False}
    assert "unknown: 'querry'" in bad({"query": "x", "querry": "x"}, closed)
    assert good({"query": "x", "querry": "x"}) == {"query": "x", "querry": "x"}


def test_the_branch_of_a_union_is_found_by_its_tag() -> None:
    branches = [
        {"type": "object", "properties": {"kind": {"const": kind}, "size": of}, "required": ["kind", "size"]}
        for kind, of in (("box", {"type": "integer"}), ("name", {"type": "string"}))
    ]
    schema = {"type": "object", "properties": {"it": {"oneOf": branches}}}
    assert good({"it": {"kind": "box", "size": "3"}}, schema) == {"it": {"kind": "box", "size": 3}}
    assert good({"it": {"kind": "name", "size": 3}}, schema) == {"it": {"kind": "name", "size": "3"}}


TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}}},
}


def test_a_recursive_schema_is_followed_as_deep_as_the_arguments() -> None:
    made = {"value": "1", "children": [{"value": "2", "children": [{"value": "3"}]}]}
    assert good(made, TREE) == {"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}]}
    assert "'children.0.value' must be integer" in bad({"children": [{"value": "x"}]}, TREE)


def _doubling(levels: int, key: str = "allOf") -> dict[str, Any]:
    """Of little size and much work: each level applies the next one twice."""
    defs = {f"d{n}": {key: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{levels}": {"type": "object"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}, {"type": "object"}]},
        _doubling(40),
        _doubling(40, "anyOf"),
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/schema.json"},
        {"properties": {"query": {"$ref": "file:///etc/passwd"}}},
        {"$schema": "https://example.com/unheard", "type": "object"},
        {"type": "nonsense"},
        {"properties": {"query": {"type": "string", "pattern": "("}}},
        {"properties": []},
        {},
    ],
)
def test_a_schema_that_cannot_be_followed_checks_nothing_and_takes_no_time(schema: dict[str, Any]) -> None:
    began = time.process_time()
    assert good({"query": "x"}, schema) == {"query": "x"}
    assert time.process_time() - began < 2.0


def test_the_shape_of_a_schema_without_end_is_told_short() -> None:
    endless = {"anyOf": [{"$ref": "#/$defs/n"}] * 2}
    schema = {"properties": {"n": endless}, "$defs": {"n": endless}, "required": ["query"]}
    assert "'query' missing" in bad("{}", schema)


@pytest.mark.parametrize("both", [{"allOf": [{"$ref": "#/$defs/n"}] * 2}, {"anyOf": [{"$ref": "#/$defs/n"}] * 2}])
def test_a_schema_that_explodes_with_the_depth_of_the_arguments_takes_no_time(both: dict[str, Any]) -> None:
    schema = {"properties": {"n": both}, "$defs": {"n": {"type": "object", "properties": {"n": both}}}}
    made: dict[str, Any] = {}
    for _ in range(25):
        made = {"n": made}
    began = time.process_time()
    assert good(made, schema) == made
    assert time.process_time() - began < 3.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SCHEMAS = st.recursive(
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "number", "boolean", "null", "x", ["a"]])}),
    lambda inner: (
        st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("ab"), inner)})
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"allOf": st.lists(inner, max_size=2)})
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=200)
@given(SCHEMAS | st.dictionaries(st.sampled_from(["type", "properties", "$ref", "enum", "required"]), JSON), JSON)
def test_nothing_raises(schema: dict[str, Any], made: Any) -> None:
    assert isinstance(prepare("t", schema, json.dumps(made)), Good | Bad)


@given(st.text())
def test_no_text_raises(raw: str) -> None:
    assert isinstance(prepare("t", SEARCH, raw), Good | Bad)


@settings(deadline=None, max_examples=200)
@given(
    st.fixed_dictionaries(
        {"query": st.text()},
        optional={"limit": st.integers(), "score": st.floats(allow_nan=False, allow_infinity=False), "page": st.none()},
    )
)
def test_good_arguments_stay_as_they_are(made: dict[str, Any]) -> None:
    assert good(json.dumps(made)) == made


def test_a_number_too_large_for_its_schema_is_the_models_fault() -> None:
    prepared = prepare("act", {"properties": {"n": {"type": "number", "multipleOf": 0.5}}}, '{"n": 1' + "0" * 400 + "}")
    assert isinstance(prepared, Bad)
    assert prepared.text.startswith("Error: the arguments of act have a number that is too large.")
