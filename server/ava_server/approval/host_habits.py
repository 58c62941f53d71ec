"""How hosts write arguments, read before they are checked: the one place for all arguments of all six tools.

| given | for | read as |
|---|---|---|
| null | any argument that has a default | left out |
| empty or blank text | any argument that has a default | left out |
| "null" | any argument that is no text | null |
| a list or an object as JSON text | an argument that is a list or an object | that list or object |
| a single text | an argument that is a list of texts | a list of one |
| a number, true or false as text | an argument that is one | that number, true or false |

Everything else stays as it was given. An argument that is text is never parsed, whatever it looks like: a task may be
about JSON. So are the texts in a list, such as a line to approve.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ava_server.models.json_text import as_list, as_object, deeper_than

DEEPEST = 100
"""Most levels of nested lists and objects in arguments; no tool needs ten."""
_NOTHING = object()


def read_habits(model: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments as its model expects them; what cannot be read stays, and is refused by name."""
    # With it, the earlier run gives all that is left out.
    optional = ("role", "task") if _is_given(given.get("retry_of")) else ()
    read: dict[str, Any] = {}
    for name, value in given.items():
        field = model.model_fields.get(name)
        if field is not None:
            value = _read_field(field, value, is_optional=name in optional or not field.is_required())
        if value is not _NOTHING:
            read[name] = value
    return read


def _is_given(value: Any) -> bool:
    """Tell whether an argument says anything: it is neither null nor blank text."""
    is_blank = isinstance(value, str) and not value.strip()
    return value is not None and not is_blank


def _read_field(field: FieldInfo, value: Any, *, is_optional: bool) -> Any:
    """Return a value as its field expects it, or `_NOTHING` if it says nothing."""
    if is_optional and not _is_given(value):
        return _NOTHING
    kind = _kind_of(field.annotation)
    if isinstance(value, str):
        value = _read_text(kind, value)
    if is_optional and value is None:
        return _NOTHING
    return _read_members(kind, value)


def _read_text(kind: Any, text: str) -> Any:
    """Return the list, object, number or boolean that a host gave as text; the text itself for any other field."""
    if get_origin(kind) is list:
        [member, *_others] = get_args(kind)
        if _is_object(_kind_of(member)):
            return _read_objects(text)
        return _read_list(text)
    if _is_object(kind):
        return _read_object(text)
    if kind in (int, float, bool):
        return _read_plain(text)
    return text


def _read_list(text: str) -> Any:
    """Return the texts that JSON text lists; any other text is a list of one, as models often give it."""
    value = _from_json(text)
    if value is None:
        return None
    if isinstance(value, list):
        texts = as_list(value)
        if all(isinstance(each, str) for each in texts):
            return texts
    return [text]


def _read_objects(text: str) -> Any:
    """Return the list that JSON text has; any other text as it is, to be refused."""
    value = _from_json(text)
    if value is None or isinstance(value, list):
        return cast("list[Any] | None", value)
    return text


def _read_object(text: str) -> Any:
    value = _from_json(text)
    if value is not None and as_object(value) is None:
        return text
    return value


def _read_plain(text: str) -> str | None:
    """Return the text of a number, true or false, as pydantic reads it."""
    return None if text.strip() == "null" else text.strip()


def _read_members(kind: Any, value: Any) -> Any:
    """Return an object whose members are arguments, too, with those read."""
    if not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return read_habits(kind, members)
    if get_origin(kind) is not dict:
        return members
    inner = _kind_of(get_args(kind)[1])
    if not _is_object(inner):
        return members
    read: dict[str, Any] = {}
    for name, member in members.items():
        if isinstance(member, str):
            member = _read_object(member)
        read[name] = _read_members(inner, member)
    return read


def _from_json(text: str) -> Any:
    """Return the value of JSON text; the text itself where it is not JSON, or is nested too deeply to be walked."""
    if text.lstrip()[:1] not in ("[", "{", "n"):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if deeper_than(value, DEEPEST) else value


def _kind_of(annotation: Any) -> Any:
    """Return an annotation without what it adds: bounds, validators, and None as an alternative."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType):
            annotation = next(each for each in get_args(annotation) if each is not type(None))
        else:
            return annotation


def _is_object(kind: Any) -> bool:
    return get_origin(kind) is dict or (isinstance(kind, type) and issubclass(kind, BaseModel))
