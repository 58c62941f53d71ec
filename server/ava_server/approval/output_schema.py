"""Output schemas: which JSON schemas a spawn may give, and whether a result matches one.

Schema and result come from models. Neither may make the server fetch something, follow an endless reference, match a
hostile pattern or compute for hours. A schema that could is refused at the proposal, with the reason; the rest is
bounded by the size of schema and result and by a budget of steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from ava_server.models.json_text import deeper_than

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

SCHEMA_CHARS = 20_000
DEPTH = 32
SUBSCHEMAS = 2_000
"""Most subschemas, each counted as often as references lead to it: a few can expand to millions."""
MOST_FOLLOWED = 4 * DEPTH
"""Subschemas in a row that are followed down from the top; a limit above `DEPTH` that keeps the recursion short."""
VALUE_CHARS = 200_000
STEPS = 100_000
"""Budget of one check, in keywords applied; about a second."""

_SINGLE = (
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if"),
    *("items", "not", "propertyNames", "then"),
)
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPS = ("$defs", "definitions", "dependencies", "dependentSchemas", "properties")
_REFUSED = {
    "pattern": "a regular expression can keep the server busy for ever; say in the description what it must look like",
    "patternProperties": "a regular expression can keep the server busy for ever; use additionalProperties",
    "$dynamicRef": "only $ref to a place in this schema is followed",
    "$recursiveRef": "only $ref to a place in this schema is followed",
    "unevaluatedItems": "use items or prefixItems",
    "unevaluatedProperties": "use additionalProperties",
}
_ERROR_STEPS = 20
_MESSAGE_CHARS = 300
_ERRORS = 20
_Path = tuple[str, ...]


class _TooMuch(Exception):
    """The budget of steps is used up."""


def check_schema(schema: Mapping[str, Any]) -> str | None:
    """Return why a schema cannot be used, to follow `output_schema: `; None where it can. Blocks."""
    why = _why_refused(schema)
    if why is not None:
        return why
    from jsonschema.exceptions import SchemaError

    try:
        _draft(schema).check_schema(dict(schema))
    except SchemaError as error:
        where = _path_words(tuple(str(part) for part in error.absolute_path))
        return f"at {where}: not a valid JSON schema: {error.message[:_MESSAGE_CHARS]}"
    except Exception as error:  # a schema may break the checker in unknown ways
        return f"it cannot be checked ({type(error).__name__}); make it simpler"
    return None


def find_mismatch(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a result, for the model to fix; None where it matches. Bounded, fetches nothing."""
    why = _why_refused(schema)
    if why:
        return f"the schema that was asked for cannot be used: {why}"
    try:
        size = len(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        return "output is not a JSON value, or is nested too deep; hand over plain JSON"
    if size > VALUE_CHARS:
        return (
            f"output has {size:,} characters as JSON, more than the {VALUE_CHARS:,} that are checked against a schema; "
            "hand over less, and put the rest into an artifact"
        )
    from referencing import Registry

    best_match: Any = import_module("jsonschema.exceptions").best_match  # has no types
    draft = _draft(schema)
    # `$schema` would select the plain class, which counts no steps.
    own = {key: part for key, part in schema.items() if key not in ("$schema", "$id", "id")}
    registry: Registry[Any] = Registry()  # empty, and fetches nothing; the default one fetches
    try:
        checker = _counting(draft)(own, registry=registry)
        error = best_match(islice(checker.iter_errors(value), _ERRORS))
    except _TooMuch:
        return "output takes too long to be checked against the schema that was asked for; hand over less"
    except Exception as broken:  # neither schema nor result may end a run by breaking the checker
        return f"output could not be checked against the schema that was asked for ({type(broken).__name__})"
    if error is None:
        return None
    where = _path_words(tuple(str(part) for part in error.absolute_path)) if error.absolute_path else "output"
    return f"output does not match the schema that was asked for, at {where}: {error.message[:_MESSAGE_CHARS]}"


def embed_schema(schema: Mapping[str, Any], at: str) -> dict[str, Any]:
    """Return a schema to embed in another one at the pointer `at`; its references are adapted."""
    top = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    return cast("dict[str, Any]", _move_references(top, at))


# -- what can be asked for ----------------------------------------------------------------------------------------


def _why_refused(schema: Mapping[str, Any]) -> str | None:
    """Return why a schema is not safe to use, from its structure alone."""
    if deeper_than(schema, DEPTH + 1):
        return f"it is nested deeper than {DEPTH}; make it flatter"
    try:
        size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError):
        return "it is not JSON (NaN, infinite numbers and lone surrogates are not allowed); write it again"
    if size > SCHEMA_CHARS:
        return f"it has {size:,} bytes, more than {SCHEMA_CHARS:,}; make it smaller"
    if str(schema.get("$schema", _LATEST)).rstrip("#") not in _DRAFTS:
        return f"its $schema {str(schema['$schema'])[:80]!r} is not known; leave it out (2020-12 is meant then)"
    subschemas = dict(_all(schema))
    draft4 = _draft_name(schema) == "Draft4Validator"
    for path, part in subschemas.items():
        why = _why_part_refused(path, part, subschemas, draft4=draft4)
        if why:
            return f"at {_path_words(path)}: {why}"
    return _reference_fault(subschemas)


def _why_part_refused(path: _Path, part: Any, subschemas: Mapping[_Path, Any], *, draft4: bool) -> str | None:
    """Return why a subschema cannot be used, whatever is below it; None if it can."""
    if not isinstance(part, dict):
        return None
    keys = cast("dict[str, Any]", part)
    for key, why in _REFUSED.items():
        if key in keys:
            return f"{key} is not offered: {why}"
    if keys.get("format") == "regex":
        return "format regex is not offered; leave it out"
    only_at_top = {"$schema", "$id"}
    if draft4:
        only_at_top.add("id")
    is_top = not path
    if not is_top and not only_at_top.isdisjoint(keys):
        return "$schema and $id may only stand at the top; leave them out here"
    if "$ref" in keys and _target(keys["$ref"]) not in subschemas:
        return f"$ref {str(keys['$ref'])[:80]!r} leads to no subschema of this schema; write #/$defs/NAME"
    return None


def _reference_fault(subschemas: Mapping[_Path, Any]) -> str | None:
    """Return why a schema is endless or too large once its references are followed, or None.

    Each subschema is measured once, so that a schema that would expand to millions costs no more than its text.
    """
    measured: dict[_Path, tuple[int, int]] = {}
    being_measured: set[_Path] = set()

    def measure(path: _Path, depth: int) -> tuple[int, int]:
        """Return how many subschemas are at and below a path, and how many levels they have."""
        if path in being_measured or depth > MOST_FOLLOWED:
            raise _TooMuch
        if path not in measured:
            being_measured.add(path)
            count, height = 1, 0
            for child in _children(path, subschemas[path]):
                child_count, child_height = measure(child, depth + 1)
                count += child_count
                height = max(height, child_height)
            being_measured.discard(path)
            measured[path] = count, height + 1
        return measured[path]

    try:
        count, height = measure((), 0)
    except _TooMuch:
        return "a $ref leads back to itself, or through too many others; write the form out, without recursion"
    if height > DEPTH:
        return f"it is nested deeper than {DEPTH} once references are followed; make it flatter"
    if count > SUBSCHEMAS:
        return f"it has {count:,} subschemas once references are followed, more than {SUBSCHEMAS:,}; make it smaller"
    return None


def _children(path: _Path, part: Any) -> Iterator[_Path]:
    """Yield the paths of the direct subschemas of a schema, and of the one to which its `$ref` leads."""
    for step, _below in _parts(part):
        yield path + step
    if isinstance(part, dict) and "$ref" in part:
        target = _target(cast("dict[str, Any]", part)["$ref"])
        if target is not None:
            yield target


def _target(ref: Any) -> _Path | None:
    if ref == "#":
        return ()
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return None
    return tuple(unquote(step).replace("~1", "/").replace("~0", "~") for step in ref[2:].split("/"))


def _all(schema: Any, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yield a schema and every subschema, each with its path; data such as `enum` is not a subschema."""
    yield path, schema
    for step, below in _parts(schema):
        yield from _all(below, path + step)


def _parts(part: Any) -> Iterator[tuple[_Path, Any]]:
    """Yield the direct subschemas of a schema, each with its path in it."""
    if not isinstance(part, dict):
        return
    for key, value in cast("dict[str, Any]", part).items():
        if key in _SINGLE and isinstance(value, dict | bool):
            yield (key,), value
        elif key in _LISTS and isinstance(value, list):
            for number, below in enumerate(cast("list[Any]", value)):
                yield (key, str(number)), below
        elif key in _MAPS and isinstance(value, dict):
            for name, below in cast("dict[str, Any]", value).items():
                yield (key, name), below


def _move_references(part: Any, at: str) -> Any:
    """Return a schema that can stand at `at` in another one: its references to itself begin with `at`."""
    if not isinstance(part, dict):
        return part
    moved: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", part).items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = at + value[1:]
        elif key in _LISTS and isinstance(value, list):
            moved[key] = [_move_references(below, at) for below in cast("list[Any]", value)]
        elif key in _MAPS and isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            moved[key] = {name: _move_references(below, at) for name, below in members.items()}
        elif key in _SINGLE:
            moved[key] = _move_references(value, at)
        else:
            moved[key] = value
    return moved


def _path_words(path: _Path) -> str:
    return "/".join(path)[:120] or "its top"


# -- the check ----------------------------------------------------------------------------------------------------

_LATEST = "https://json-schema.org/draft/2020-12/schema"
_DRAFTS = {
    "http://json-schema.org/draft-04/schema": "Draft4Validator",
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    _LATEST: "Draft202012Validator",
}


def _draft_name(schema: Mapping[str, Any]) -> str:
    return _DRAFTS[str(schema.get("$schema", _LATEST)).rstrip("#")]


def _draft(schema: Mapping[str, Any]) -> type[Validator]:
    import jsonschema

    return cast("type[Validator]", getattr(jsonschema, _draft_name(schema)))


def _counting(draft: type[Validator]) -> type[Validator]:
    """Return a validator class like `draft` that counts its steps and stops at the budget."""
    extend: Any = import_module("jsonschema.validators").extend  # has no types
    left = STEPS

    def spend(steps: int) -> None:
        nonlocal left
        left -= steps
        if left < 0:
            raise _TooMuch

    def counted(check: Callable[..., Any]) -> Callable[..., Any]:
        def apply(checker: Any, rule: Any, instance: Any, schema: Any) -> Iterator[Any]:
            spend(1 + (_width(rule) + _width(instance)) // 8)
            for error in check(checker, rule, instance, schema) or ():
                spend(_ERROR_STEPS + len(error.message) // 100)
                error.message = error.message[:_MESSAGE_CHARS]  # it contains the whole value
                yield error

        return apply

    checks: dict[str, Any] = {**draft.VALIDATORS, "uniqueItems": partial(_unique, spend)}
    return cast("type[Validator]", extend(draft, {key: counted(check) for key, check in checks.items()}))


def _width(value: Any) -> int:
    return len(cast("list[Any]", value)) if isinstance(value, dict | list) else 0


def _unique(spend: Callable[[int], None], checker: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    """Find duplicates in one pass; jsonschema compares every pair."""
    from jsonschema.exceptions import ValidationError

    if wanted and checker.is_type(instance, "array"):
        items = cast("list[Any]", instance)
        if len({_key(item, spend) for item in items}) < len(items):
            yield ValidationError("its items are not all different")


def _key(value: Any, spend: Callable[[int], None]) -> Any:
    """Return a key that is equal for equal JSON values: 1 is 1.0, and is not true."""
    spend((1 + _width(value)) // 2)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return "object", frozenset((key, _key(each, spend)) for key, each in members)
    if isinstance(value, list):
        return "array", tuple(_key(each, spend) for each in cast("list[Any]", value))
    if isinstance(value, bool):
        return "boolean", value
    return value
