"""A host's configuration while it is being changed: an edit is read back, and taken only if it says what it should."""

from __future__ import annotations

import copy
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from ava_server.core.atomic_file import is_own
from ava_server.core.errors import ConfigError
from ava_server.hosts.formats import Format, at, put_in, take_out
from ava_server.hosts.jsonc import Step

Steps = tuple[Step, ...]
_BOM = "\ufeff"


class Nothing:
    """What stands where nothing does; null is something."""


NOTHING: Final = Nothing()


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
