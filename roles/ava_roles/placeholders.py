"""`{{secret:NAME}}`, the placeholder for a secret's value, which a tool call inserts at the last moment.

Also the form of the other names that people choose: labels, which say what a machine has and roles ask for, and the
names of MCP servers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import quote

from ava_roles.errors import ToolFailed

SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
PLACEHOLDER = re.compile(r"\{\{secret:(" + SECRET_NAME.pattern + r")\}\}")
_LIKE_PLACEHOLDER = re.compile(r"\{\{\s*+secret\b", re.IGNORECASE)


@dataclass(frozen=True)
class InjectedSecret:
    """A secret that one tool call may send to `hosts`: `host`, or `host:port` if not 443. No repr has its value."""

    name: str
    value: str = field(repr=False)
    hosts: frozenset[str]


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[object, object]", value).items():
            yield str(name)
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            yield from texts_in(item)


def has_placeholder(value: object) -> bool:
    """Tell whether arguments contain a placeholder, or a misspelt one."""
    return any(_LIKE_PLACEHOLDER.search(text) for text in texts_in(value))


def has_misspelt(value: object) -> bool:
    return any(len(_LIKE_PLACEHOLDER.findall(text)) > len(PLACEHOLDER.findall(text)) for text in texts_in(value))


def secret_names(value: object) -> tuple[str, ...]:
    """Return the names of the secrets whose placeholders are in arguments, in order, each once."""
    names: dict[str, None] = {}
    for text in texts_in(value):
        names.update(dict.fromkeys(PLACEHOLDER.findall(text)))
    return tuple(names)


def fill_query(url: str, secrets: Collection[InjectedSecret]) -> str:
    """Return a URL with placeholders in its query replaced, quoted. Raises ToolFailed if there is one elsewhere."""
    before_fragment, fragment_mark, fragment = url.partition("#")
    address, query_mark, query = before_fragment.partition("?")
    if has_placeholder(address) or has_placeholder(fragment):
        raise ToolFailed("a secret can be used only in headers, or in the query of url (after the ?)")
    values = {secret.name: quote(secret.value, safe="") for secret in secrets}
    return f"{address}{query_mark}{_fill(query, values)}{fragment_mark}{fragment}"


def fill_header(text: str, secrets: Collection[InjectedSecret]) -> str:
    """Return a header's value with secrets for placeholders. Raises ToolFailed if no header can carry a secret."""
    for secret in secrets:
        if secret.name in PLACEHOLDER.findall(text) and not secret.value.isascii():
            raise ToolFailed(f"the secret {secret.name} has characters that a header cannot carry; go on without it")
    return _fill(text, {secret.name: secret.value for secret in secrets})


def _fill(text: str, values: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda match: values[match[1]], text)


SERVER_NAME = re.compile(r"[A-Za-z0-9](?:_?[A-Za-z0-9-]){0,31}")
"""The form of an MCP server's name; two `_` in a row would make `mcp__server__tool` ambiguous.

Nothing in it closes the quotation marks that it has in every sentence.
"""
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def label(value: str) -> str:
    """Return a label. Raises ValueError if it is not one word of at most 64 characters."""
    if not _LABEL.fullmatch(value):
        raise ValueError("must be labels of letters, digits, . - and _, each of at most 64 characters")
    return value
