"""The form of a result can be asked for; no schema and no answer makes the server fetch, loop or count for ever."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ava_server.approval.output_schema import check_schema, embed_schema, find_mismatch

PRICES: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.org/prices.schema.json",
    "type": "object",
    "required": ["prices"],
    "properties": {"prices": {"type": "array", "items": {"$ref": "#/$defs/price~1unit"}}, "pattern": {"type": "null"}},
    "additionalProperties": False,
    "$defs": {"price/unit": {"type": "object", "properties": {"cents": {"type": "integer", "minimum": 0}}}},
}


def laughs(levels: int, wide: int) -> dict[str, Any]:
    names = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * wide} for level in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**names, f"d{levels}": {"type": "string"}}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def test_checks_an_answer_against_its_schema() -> None:
    assert check_schema(PRICES) is None
    assert find_mismatch({"prices": [{"cents": 12}]}, PRICES) is None
    assert find_mismatch({"prices": [{"cents": 12}, {"cents": -1}]}, PRICES) == (
        "output does not match the schema that was asked for, at prices/1/cents: -1 is less than the minimum of 0"
    )
    assert "'price' was unexpected" in str(find_mismatch({"prices": [], "price": 3}, PRICES))


@pytest.mark.parametrize("draft", ["draft-04/schema#", "draft-06/schema#", "draft-07/schema#", "draft/2019-09/schema"])
def test_supports_older_json_schema_drafts(draft: str) -> None:
    start = "https" if "2019" in draft else "http"
    schema = {"$schema": f"{start}://json-schema.org/{draft}", "items": {"$ref": "#/definitions/a"},
              "definitions": {"a": {"type": "string"}}}  # fmt: skip
    assert check_schema(schema) is None
    assert find_mismatch(["a"], schema) is None
    assert "at 1: 2 is not of type 'string'" in str(find_mismatch(["a", 2], schema))


@pytest.mark.parametrize(
    ("schema", "because"),
    [
        ({"type": "nonsense"}, "at type: not a valid JSON schema: 'nonsense'"),
        ({"properties": {"a": 3}}, "at properties/a: not a valid JSON schema"),
        ({"$ref": "#"}, "leads back to itself"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "leads back to itself"),
        ({"properties": {"a": {"items": {"$ref": "#/properties/a"}}}}, "leads back to itself"),
        ({"$ref": "#/$defs/none"}, "leads to no subschema"),
        ({"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}}, "leads to no subschema"),
        ({"$ref": "other.json#/a"}, "leads to no subschema"),
        ({"$ref": 3}, "leads to no subschema"),
        ({"$dynamicRef": "#/$defs/a", "$defs": {"a": {}}}, "$dynamicRef is not offered"),
        ({"$recursiveRef": "#"}, "$recursiveRef is not offered"),
        ({"items": {"$id": "http://127.0.0.1/"}}, "may only stand at the top"),
        ({"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "may only stand at the top"),
        ({"$schema": "https://example.org/mine"}, "'https://example.org/mine' is not known"),
        ({"items": {"pattern": "^(a+)+$"}}, "at items: pattern is not offered"),
        ({"patternProperties": {"^(a+)+$": {}}}, "at its top: patternProperties is not offered"),
        ({"properties": {"a": {"$ref": "#/const/x"}}, "const": {"x": {"pattern": "a"}}}, "leads to no subschema"),
        ({"properties": {"a": {"$ref": "#/x-mine/x"}}, "x-mine": {"x": {"pattern": "a"}}}, "leads to no subschema"),
        ({"format": "regex"}, "format regex is not offered"),
        ({"unevaluatedProperties": False}, "use additionalProperties"),
        ({"enum": ["a" * 100] * 300}, "more than 20,000"),
        ({"enum": [float("nan")]}, "it is not JSON"),
        ({"title": "\ud800"}, "it is not JSON"),
        (deep(33), "nested deeper than 32"),
        (deep(100_000), "nested deeper than 32"),
        (laughs(20, 2), "nested deeper than 32 once references are followed"),
        (laughs(10, 3), "subschemas once references are followed, more than 2,000"),
    ],
)
def test_rejects_an_invalid_or_harmful_schema_with_the_reason(schema: dict[str, Any], because: str) -> None:
    began = time.process_time()
    assert because in str(check_schema(schema))
    assert time.process_time() - began < 1


def test_accepts_schema_keywords_as_property_names_and_data() -> None:
    names = {"pattern": {"type": "string"}, "$ref": {"type": "string"}, "format": {"const": "regex"}}
    schema = {"properties": names, "enum": [{"pattern": "x", "$ref": "http://example.org/"}]}
    assert check_schema(schema) is None
    assert find_mismatch({"pattern": "x", "$ref": "http://example.org/"}, schema) is None


@pytest.mark.parametrize("key", ["$ref", "$dynamicRef", "$recursiveRef", "$schema", "$id"])
def test_a_schema_never_causes_a_network_connection(key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        schema = {"items": {key: f"http://127.0.0.1:{listening.getsockname()[1]}/schema.json"}}
        assert check_schema(schema) is not None
        assert "cannot be used" in str(find_mismatch([1], schema))  # a run from before such schemas were refused
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"anyOf": [{"type": "null"}] * 800}, "x" * 190_000),
        ({"allOf": [{"items": {"type": "integer"}}] * 300}, [0] * 60_000),
        ({"anyOf": [{"items": {"type": "null"}}] * 3}, [0] * 60_000),
        ({"items": {"enum": list(range(3_000))}}, ["a"] * 40_000),
        ({"allOf": [{"uniqueItems": True}] * 500}, [{"a": number} for number in range(15_000)]),
        ({"items": {"not": {"not": {"anyOf": [{"type": "null"}] * 500}}}}, [0] * 60_000),
    ],
)
def test_aborts_a_schema_check_that_takes_too_long(schema: dict[str, Any], value: Any) -> None:
    assert check_schema(schema) is None
    began = time.process_time()
    assert find_mismatch(value, schema) is not None
    assert time.process_time() - began < 3


def test_accepts_a_large_valid_answer() -> None:
    row = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}
    rows = [{"name": f"name {number}", "n": number} for number in range(5_000)]
    assert find_mismatch(rows, {"type": "array", "items": row, "uniqueItems": True}) is None


@pytest.mark.parametrize(
    ("items", "twins"),
    [([1, 1.0], True), ([1, True], False), ([{"a": [1]}, {"a": [1]}], True), ([[], {}, "", None, 0, False], False)],
)
def test_unique_items_compares_values_by_json_equality(items: list[Any], twins: bool) -> None:
    assert (find_mismatch(items, {"uniqueItems": True}) is not None) is twins


def test_explains_every_failure_of_the_check() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert "nested too deep" in str(find_mismatch(nested, {"type": "array"}))
    assert "OverflowError" in str(find_mismatch(10**400, {"multipleOf": 0.1}))
    assert "not a JSON value" in str(find_mismatch({"a", "b"}, {"type": "array"}))
    assert "more than the 200,000" in str(find_mismatch("x" * 200_000, {"type": "string"}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
keywords = st.sampled_from(
    ["$ref", "$id", "$defs", "type", "properties", "items", "anyOf", "not", "enum", "required", "minimum", "$schema"]
)
schemas = st.recursive(
    st.dictionaries(keywords, json_values, max_size=3),
    lambda inner: st.dictionaries(keywords, inner | st.lists(inner, max_size=3), max_size=4),
    max_leaves=8,
)


@given(schemas, json_values)
def test_no_combination_of_schema_and_answer_raises(schema: dict[str, Any], value: Any) -> None:
    why, wrong = check_schema(schema), find_mismatch(value, schema)
    assert why is None or (why and "\n" not in why[:1])
    assert wrong is None or wrong.startswith(("output ", "the schema "))


def test_references_keep_their_target_in_an_embedded_schema() -> None:
    inside = embed_schema({**PRICES, "const": {"$ref": "#/x"}}, "#/properties/output")
    assert inside["properties"]["prices"]["items"] == {"$ref": "#/properties/output/$defs/price~1unit"}
    assert inside["const"] == {"$ref": "#/x"}
    assert not {"$schema", "$id"} & set(inside)
    outer = {"properties": {"output": embed_schema(PRICES, "#/properties/output")}}
    assert check_schema(outer) is None
    assert find_mismatch({"output": {"prices": [{"cents": 1}]}}, outer) is None
    assert "at output/prices/0/cents" in str(find_mismatch({"output": {"prices": [{"cents": "x"}]}}, outer))
