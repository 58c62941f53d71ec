"""Reading a provider's error, whatever its shape.

The shapes are those of OpenAI ({error: {message, type, code}}), Anthropic ({type: "error", error: {type, message,
details: {error_code}}, request_id}), OpenRouter ({error: {code, message, metadata: {raw, headers}}}), Google (the same
in a list), and servers that send no more than words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ava_server.models import wire_json
from ava_server.models.wire_json import as_list, as_object

_MOST_CHARS = 4_000
"""Characters of an error that are looked at."""


@dataclass(frozen=True)
class Said:
    """An error as a provider said it.

    Attributes:
        words: Its message, with its code, for people.
        codes: Every type and code in it, in small letters.
        headers: What stands in it that is a header elsewhere.
        request_id: The provider's id of the call.
    """

    words: str = ""
    codes: frozenset[str] = frozenset()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    request_id: str | None = None


def read(content: bytes) -> Said:
    """Read the body of an error."""
    text, _ = wire_json.decode_text(content)
    try:
        answer = wire_json.decode(text)
    except wire_json.NotJsonError:
        return Said("" if text.lstrip().startswith("<") else text[:_MOST_CHARS])
    if isinstance(answer, list) and len(as_list(answer)) == 1:  # Google
        answer = as_list(answer)[0]
    outer = as_object(answer) or {}
    return said_in(outer.get("error") or answer, outer.get("request_id"))


def said_in(error: Any, request_id: Any = None) -> Said:
    """Read an error that stands in an answer's place."""
    fields = as_object(error)
    if fields is None:
        return Said(str(error)[:_MOST_CHARS])
    metadata, details = as_object(fields.get("metadata")) or {}, as_object(fields.get("details")) or {}
    words = fields.get("message") or fields.get("detail") or ""
    code = details.get("error_code") or fields.get("code") or fields.get("type")
    if raw := metadata.get(
        "raw"
    ):  # what the provider behind OpenRouter said; its own message is "Provider returned error"
        words = f"{words}: {raw}"
    told = (fields.get("type"), fields.get("code"), details.get("error_code"), metadata.get("error_type"),
            fields.get("status"))  # fmt: skip
    own_id = fields.get("request_id") or request_id
    return Said(
        words=f"{words[:_MOST_CHARS]} [{code}]" if code and isinstance(words, str) else str(words)[:_MOST_CHARS],
        codes=frozenset(str(one).lower() for one in told if isinstance(one, str | int)),
        headers=_headers_in(fields, metadata),
        request_id=own_id if isinstance(own_id, str) else None,
    )


def _headers_in(fields: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that stand in an error (OpenRouter), and a wait that has a field of its own (Codex)."""
    found = dict(as_object(metadata.get("headers")) or {})
    if "resets_in_seconds" in fields:
        found["retry-after"] = fields["resets_in_seconds"]
    return {name.lower(): str(value) for name, value in found.items() if isinstance(value, str | int | float)}
