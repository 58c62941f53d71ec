"""The formats of hosts' configurations: what a text says, and the text with one thing in it changed."""

from __future__ import annotations

import copy
import os
import re
import stat
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol, cast

from ava_server.core.errors import ConfigError
from ava_server.core.files import is_own
from ava_server.hosts import jsonc
from ava_server.hosts.jsonc import Step

KeyPath = Sequence[Step]
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

    def put(self, text: str, path: KeyPath, value: Any) -> str:
        """Return the text with a value set; tables that are missing on the way are made."""
        ...

    def remove(self, text: str, path: KeyPath) -> str:
        """Return the text without something that is there."""
        ...

    def is_bare(self, text: str, path: KeyPath) -> bool:
        """Tell whether an empty table or list can be taken out without losing a comment."""
        ...

    def shown(self, path: KeyPath, value: Any) -> list[str]:
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

    def put(self, text: str, path: KeyPath, value: Any) -> str:
        """Return the text with a value set."""
        return jsonc.put(text, path, value)

    def remove(self, text: str, path: KeyPath) -> str:
        """Return the text without something."""
        return jsonc.remove(text, path)

    def is_bare(self, text: str, path: KeyPath) -> bool:
        """Tell whether an empty table or list has no comment in it either."""
        return jsonc.is_bare(text, path)

    def shown(self, path: KeyPath, value: Any) -> list[str]:
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

    def put(self, text: str, path: KeyPath, value: Any) -> str:
        """Return the text with a value set."""
        import tomlkit

        document = tomlkit.parse(text)
        put_in(document, path, value)
        return _with_every_comment(text, tomlkit.dumps(document))

    def remove(self, text: str, path: KeyPath) -> str:
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

    def is_bare(self, text: str, path: KeyPath) -> bool:
        """Say no: an empty table is one line, and a comment below it may be about what was in it."""
        del text, path
        return False

    def shown(self, path: KeyPath, value: Any) -> list[str]:
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


def at(data: Any, path: KeyPath) -> Any:
    """Return what is at a place.

    Raises:
        LookupError: Nothing is.
        TypeError: Something else than a table or list is on the way.
    """
    for step in path:
        data = data[step]
    return data


def put_in(data: Any, path: KeyPath, value: Any) -> None:
    """Put a value into nested tables and lists; what is missing on the way is made."""
    for step, below in pairwise(path):
        if isinstance(step, str) and step not in data:
            data[step] = [] if isinstance(below, int) else {}
        data = data[step]
    if isinstance(path[-1], int) and path[-1] == len(data):
        data.append(value)
    else:
        data[path[-1]] = value


def take_out(data: Any, path: KeyPath) -> None:
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


Steps = tuple[Step, ...]
_BOM = "\ufeff"


class Missing:
    """What stands where nothing does; null is something."""


NOTHING: Final = Missing()


class Configuration:
    """A configuration: its text, and what that says.

    Attributes:
        path: The file, as it is named.
        target: The file that is read and written: where a link leads.
        text: What is in it; None where there is none.
        data: What that says.
    """

    def __init__(self, path: Path, target: Path, text: str | None, form: Format) -> None:
        """Read a text.

        Raises:
            ConfigError: It is not of the format, or holds no table.
        """
        self.path = path
        self.target = target
        self.text = text
        self._format = form
        self.data = self._said(self.body)

    @classmethod
    def read(cls, path: Path, form: Format, *, to_change: bool = True) -> Configuration:
        """Read a file; a missing one is empty.

        Args:
            path: The file.
            form: Its format.
            to_change: It is going to be changed, so it must be this user's and writable.

        Raises:
            ConfigError: It cannot be read, or may not be changed.
        """
        try:
            target = path.resolve(strict=False) if path.is_symlink() else path
            if target.is_symlink():
                raise ConfigError(f"{path} is a link that leads in a circle; it was left alone.")
            if not target.exists():
                return cls(path, target, None, form)
            status = target.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path} is no file; it was left alone.")
            if to_change and not is_own(status):
                raise ConfigError(f"{path} belongs to another user; it was left alone. Run this as that user.")
            if to_change and not (status.st_mode & stat.S_IWUSR and os.access(target, os.W_OK)):
                raise ConfigError(f"{path} is read-only; it was left alone. Make it writable and try again.")
            return cls(path, target, target.read_bytes().decode(), form)
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text; it was left alone.") from None
        except (OSError, RuntimeError) as failed:  # RuntimeError: links in a circle, before Python 3.13
            why = getattr(failed, "strerror", None) or str(failed)
            raise ConfigError(f"{path} cannot be used: {why}. It was left alone.") from failed

    @property
    def body(self) -> str:
        """The text without the mark that some editors of Windows begin a file with."""
        return (self.text or "").removeprefix(_BOM)

    def get(self, path: Steps) -> Any:
        """Return what is at a place; `NOTHING` where nothing is."""
        try:
            return at(self.data, path)
        except (LookupError, TypeError):
            return NOTHING

    def takes(self, path: Steps) -> bool:
        """Tell whether something can be put at a place: what is on the way to it, if anything, is a table."""
        data: object = self.data
        for step in path[:-1]:
            if not isinstance(data, dict):
                return False
            if step not in data:
                return True
            data = cast("dict[Step, object]", data)[step]
        return isinstance(data, list if isinstance(path[-1], int) else dict)

    def put(self, path: Steps, value: Any) -> None:
        """Set a value.

        Raises:
            ConfigError: It cannot be done without touching anything else; nothing was changed.
        """
        if not self.takes(path):
            raise ConfigError(f"{named(path[:-1])} in {self.path} is no table; the file was left alone.")
        self._turn(lambda: self._format.put(self.body, path, value), lambda data: put_in(data, path, value))

    def remove(self, path: Steps) -> None:
        """Take something out, and the tables that are left with nothing in them, not even a comment.

        Raises:
            ConfigError: It cannot be done without touching anything else; nothing was changed.
        """
        self._turn(lambda: self._format.remove(self.body, path), lambda data: take_out(data, path))
        above = path[:-1]
        if above and self.get(above) in ({}, []) and self._format.is_bare(self.body, above):
            self.remove(above)

    def _turn(self, edit: Callable[[], str], change: Callable[[Any], None]) -> None:
        """Take the text that an edit makes, if what it says is changed just so."""
        try:
            wanted = copy.deepcopy(self.data)
            change(wanted)
            body = edit()
            says = _plain(self._format.parse(body)) == _plain(wanted)
        except Exception:  # whatever an edit cannot do, the file is left as it is
            says, body = False, ""
        if not says:
            raise ConfigError(
                f"{self.path} is written in a way that cannot be changed without touching what is not Ava's; it was"
                " left alone. Change it by hand."
            )
        mark = _BOM if (self.text or "").startswith(_BOM) else ""
        self.text, self.data = mark + body, self._format.parse(body)

    def _said(self, body: str) -> dict[str, Any]:
        try:
            data = self._format.parse(body)
        except ValueError as wrong:
            raise ConfigError(
                f"{self.path} cannot be read: {wrong}. It was left alone; mend it there, and try again."
            ) from None
        if not isinstance(data, dict):
            raise ConfigError(f"{self.path} holds no table; it was left alone.")
        return cast("dict[str, Any]", data)


def named(path: Steps) -> str:
    """Return how a place is called."""
    return ".".join(map(str, path))


def _plain(data: object) -> object:
    """Return data as it is compared: true is not 1, and a table that has nothing in it may be missing."""
    if isinstance(data, dict):
        members = {key: _plain(value) for key, value in cast("dict[str, object]", data).items()}
        return {key: value for key, value in members.items() if value != {}}
    if isinstance(data, list):
        return [_plain(value) for value in cast("list[object]", data)]
    return type(data).__name__, repr(data)
