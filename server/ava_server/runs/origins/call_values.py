"""The values in the arguments of a call, in the definition of a tool, and in a result that is JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pydantic_core

from ava_server.runs.record.quotes import unwrap_output

if TYPE_CHECKING:
    from ava_audit.events import ToolResult
    from ava_roles.tool import ToolSpec

_JSON = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


def values_of_call(spec: ToolSpec, args: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of a call, each with its argument; also the names of arguments that its definition lacks."""
    known = spec.args.model_fields if spec.foreign is None else spec.foreign.get("properties", ())
    for name, value in args.items():
        if name not in known:
            yield name, name
        for leaf in leaves(value):
            yield name, leaf


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values in an argument, and the names in it that the model has chosen."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            for name, inner in reversed(cast("dict[str, Any]", each).items()):
                left += (inner, name)
        elif isinstance(each, list | tuple):
            left += reversed(cast("Sequence[Any]", each))
        else:
            yield each


def is_free(value: Any) -> bool:
    """Tell whether a value may come from anywhere in every call: true, false, and an empty one."""
    return isinstance(value, bool) or value is None or value == ""


def values_in_schema(schema: Any) -> frozenset[Any]:
    """Return what the approved definition of a tool names itself: its fields, and the values of its lists."""
    values: set[Any] = set()
    if isinstance(schema, dict):
        for key, each in cast("dict[str, Any]", schema).items():
            if key == "properties" and isinstance(each, dict):
                values.update(cast("dict[str, Any]", each))
            elif key in ("enum", "const", "default"):
                choices = cast("list[Any]", each) if isinstance(each, list) else [each]
                for choice in choices:
                    if isinstance(choice, str | int | float) and not isinstance(choice, bool):
                        values.add(choice)
            values |= values_in_schema(each)
    elif isinstance(schema, list):
        for each in cast("list[Any]", schema):
            values |= values_in_schema(each)
    return frozenset(values)


def fields_of_result(result: ToolResult, key: str) -> Iterator[str]:
    """Yield the values of all fields with a name in a result, if it is JSON; it may have been cut.

    Of several JSON values the last one counts: it is the structured form of the others.
    """
    text = unwrap_output(result.output).strip()
    at = 0
    value: Any = None
    try:
        while at < len(text):
            value, end = _JSON.raw_decode(text, at)
            at = cast("re.Match[str]", _SPACE.match(text, end)).end()
    except (ValueError, RecursionError):
        try:
            value = pydantic_core.from_json(text[at:], allow_partial=True)
        except ValueError:
            return
    yield from _values_of_fields(value, key)


def _values_of_fields(value: Any, key: str) -> Iterator[str]:
    left = [value]  # not by recursion: a server chooses how deep it goes
    while left:
        each = left.pop()
        if isinstance(each, dict):
            fields = cast("dict[str, Any]", each)
            yield from map(str, leaves(fields.get(key, ())))
            left += (inner for name, inner in fields.items() if name != key)
        elif isinstance(each, list):
            left += cast("list[Any]", each)
