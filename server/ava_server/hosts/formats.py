"""The formats of hosts' configurations: what a text says, and the text with one thing in it changed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, cast

from ava_server.hosts import jsonc
from ava_server.hosts.jsonc import Step

Path = Sequence[Step]
"""Where something is in nested tables and lists; a list's length as its last step means behind its end."""


class Format(Protocol):
    """A format of configuration files, in which whatever is not changed keeps every character.

    A change may raise any error where a text is beyond it: whoever asks for one reads the text that comes out, and
    takes it only if it says what it should.
    """

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

    def is_bare(self, text: str, path: Path) -> bool:
        """Tell whether an empty table or list can be taken out without losing a comment."""
        ...

    def shown(self, path: Path, value: Any) -> list[str]:
        """Return the lines that a value takes in a file."""
        ...


@dataclass(frozen=True)
class Json:
    """JSON, with comments and trailing commas where the host takes them."""

    comments: bool = False
    trailing_commas: bool = False

    def parse(self, text: str) -> Any:
        """Return what a text says."""
        return jsonc.parse(text, comments=self.comments, trailing_commas=self.trailing_commas)

    def put(self, text: str, path: Path, value: Any) -> str:
        """Return the text with a value set."""
        return jsonc.put(text, path, value)

    def remove(self, text: str, path: Path) -> str:
        """Return the text without something."""
        return jsonc.remove(text, path)

    def is_bare(self, text: str, path: Path) -> bool:
        """Tell whether an empty table or list has no comment in it either."""
        return jsonc.is_bare(text, path)

    def shown(self, path: Path, value: Any) -> list[str]:
        """Return the lines that a value takes in a file, between the outermost braces."""
        return jsonc.put("", path, value).splitlines()[1:-1]


class Toml:
    """TOML."""

    def parse(self, text: str) -> Any:
        """Return what a text says."""
        try:
            return tomllib.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def put(self, text: str, path: Path, value: Any) -> str:
        """Return the text with a value set."""
        import tomlkit

        document = tomlkit.parse(text)
        put_in(document, path, value)
        return _with_every_comment(text, tomlkit.dumps(document))

    def remove(self, text: str, path: Path) -> str:
        """Return the text without something: its own lines, and none of what follows them."""
        import tomlkit

        lines = _LINE.findall(text)
        heads = [(number, head) for number, line in enumerate(lines) if (head := _head(line)) is not None]
        gone: set[int] = set()
        for (start, head), (end, following) in pairwise([*heads, (len(lines), ())]):
            if head[: len(path)] != tuple(path):
                continue
            if following[: len(path)] != tuple(path):  # comments before the next table are about that one
                while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
                    end -= 1
            gone |= set(range(start, end))
        if gone:
            first, behind = min(gone), "".join(lines[max(gone) + 1 : max(gone) + 2])
            while not behind.strip() and first > 0 and not lines[first - 1].strip():
                first -= 1  # one blank line is enough between what is left
                gone.add(first)
            return "".join(line for number, line in enumerate(lines) if number not in gone)
        document = tomlkit.parse(text)
        take_out(document, path)
        return _with_every_comment(text, tomlkit.dumps(document))

    def is_bare(self, text: str, path: Path) -> bool:
        """Say no: an empty table is one line, and a comment below it may be about what was in it."""
        del text, path
        return False

    def shown(self, path: Path, value: Any) -> list[str]:
        """Return the lines that a value takes in a file."""
        return self.put("", path, value).splitlines()


_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def _head(line: str) -> tuple[str, ...] | None:
    """Return the name of the table that begins with a line; None where none does."""
    if not line.lstrip().startswith("["):
        return None
    try:
        data: Any = tomllib.loads(line)
    except ValueError:
        return None
    names: list[str] = []
    while isinstance(data, dict) and data:
        name, data = next(iter(cast("dict[str, Any]", data).items()))
        names.append(name)
    return tuple(names)


def at(data: Any, path: Path) -> Any:
    """Return what is at a place.

    Raises:
        LookupError: Nothing is.
        TypeError: Something else than a table or list is on the way.
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
    if isinstance(path[-1], int) and path[-1] == len(data):
        data.append(value)
    else:
        data[path[-1]] = value


def take_out(data: Any, path: Path) -> None:
    """Take something out of nested tables and lists."""
    del at(data, path[:-1])[path[-1]]


def _with_every_comment(before: str, after: str) -> str:
    """Return an edited text, with the line ends of the one before, unless a comment was lost on the way.

    Raises:
        ValueError: One was.
    """
    if after.count("#") < before.count("#"):
        raise ValueError("a comment would be lost")
    ends = before.count("\r\n")
    if ends and ends == before.count("\n"):  # what was added has the line ends of Unix
        return after.replace("\r\n", "\n").replace("\n", "\r\n")
    return after
