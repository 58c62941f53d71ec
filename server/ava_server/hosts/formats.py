"""The formats of hosts' configurations: what a text says, and the text with one thing in it changed."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from ava_server.hosts import jsonc
from ava_server.hosts.jsonc import Step

Path = Sequence[Step]
"""Where something is in nested tables and lists; a list's length as its last step means behind its end."""


class Format(Protocol):
    """A format of configuration files. Whatever is not changed keeps every character."""

    def parse(self, text: str) -> Any:
        """Return what a text says; a blank one is an empty table.

        Raises:
            ValueError: It is not of this format; says where.
        """
        ...

    def put(self, text: str, path: Path, value: Any) -> str:
        """Return the text with a value set; tables that are missing on the way are made."""
        ...

    def remove(self, text: str, path: Path) -> str:
        """Return the text without something that is there."""
        ...

    def shown(self, path: Path, value: Any) -> list[str]:
        """Return the lines that a value takes in a file."""
        ...


@dataclass(frozen=True)
class Json:
    """JSON, with comments and trailing commas where the host takes them."""

    comments: bool

    def parse(self, text: str) -> Any:
        """Return what a text says."""
        return jsonc.parse(text, comments=self.comments)

    def put(self, text: str, path: Path, value: Any) -> str:
        """Return the text with a value set."""
        return jsonc.put(text, path, value)

    def remove(self, text: str, path: Path) -> str:
        """Return the text without something."""
        return jsonc.remove(text, path)

    def shown(self, path: Path, value: Any) -> list[str]:
        """Return the lines that a value takes in a file, between the outermost braces."""
        return jsonc.put("", path, value).splitlines()[1:-1]


class Toml:
    """TOML."""

    def parse(self, text: str) -> Any:
        """Return what a text says."""
        return tomllib.loads(text)

    def put(self, text: str, path: Path, value: Any) -> str:
        """Return the text with a value set."""
        import tomlkit

        document = tomlkit.parse(text)
        put_in(document, path, value)
        return _with_line_ends_of(text, tomlkit.dumps(document))

    def remove(self, text: str, path: Path) -> str:
        """Return the text without something."""
        import tomlkit

        document = tomlkit.parse(text)
        take_out(document, path)
        return _with_line_ends_of(text, tomlkit.dumps(document))

    def shown(self, path: Path, value: Any) -> list[str]:
        """Return the lines that a value takes in a file."""
        return self.put("", path, value).splitlines()


def at(data: Any, path: Path) -> Any:
    """Return what is at a place.

    Raises:
        LookupError: Nothing is.
    """
    for step in path:
        data = data[step]
    return data


def put_in(data: Any, path: Path, value: Any) -> None:
    """Put a value into nested tables and lists; what is missing on the way is made."""
    for step, below in pairwise(path):
        if isinstance(step, str) and step not in data:
            data[step] = [] if isinstance(below, int) else {}
        data = data[step]
    if path[-1] == len(data) and isinstance(path[-1], int):
        data.append(value)
    else:
        data[path[-1]] = value


def take_out(data: Any, path: Path) -> None:
    """Take something out of nested tables and lists."""
    del at(data, path[:-1])[path[-1]]


def _with_line_ends_of(before: str, after: str) -> str:
    """Return a text with the line ends of another: what was added to it has those of Unix."""
    if "\r\n" not in before:
        return after
    return after.replace("\r\n", "\n").replace("\n", "\r\n")
