"""Changing a host's configuration: what would be changed, and doing it. Nothing that is there is ever lost."""

from __future__ import annotations

import copy
import difflib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, cast

from ava_server.errors import ConfigError
from ava_server.files import create_file, is_own, replace_file
from ava_server.hosts.formats import Format, at, put_in, take_out
from ava_server.hosts.host import Host, Launch, Piece

BACKUP = "ava-backup"
_OURS = frozenset({"ava", "ava_server", "ava-subagents"})
_BOM = "\ufeff"


@dataclass(frozen=True)
class Change:
    """A change of a host's configuration.

    Attributes:
        path: The file, as it is named.
        target: The file that is written: where a link leads.
        before: Its text; None where there is none.
        after: Its text from then on; None where it goes away.
        lines: What changes, a line each, with `+` or `-` before it.
        notes: What was left alone, and why.
    """

    path: Path
    target: Path
    before: str | None
    after: str | None
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """There is nothing to change."""
        return self.before == self.after


def adding(host: Host, name: str, launch: Launch, path: Path) -> Change:
    """Return the change that gives a host the server; one that has it already is brought up to date.

    Raises:
        ConfigError: The configuration cannot be changed, or has another server of that name; it is left alone.
    """
    file = _File.read(host, path)
    entry, *others = host.pieces(name, launch)
    old = _there(file.data, entry)
    if old is not None and not is_ours(old):
        raise ConfigError(
            f"{path} has a server called {name} already, and it is not Ava: it was left alone. Give Ava another name"
            f" there with --name, or remove that one yourself."
        )
    if old is None:
        file.put(entry, entry.value)
        for piece in others:
            if file.takes(piece) and _there(file.data, piece) is None:
                file.put(piece, piece.value)
    else:
        file.put(entry, _renewed(old, entry.value, host.env, launch))
    return file.change(*_unasked(host, name, file.data))


def removing(host: Host, name: str, path: Path) -> Change:
    """Return the change that takes the server out of a host's configuration.

    Raises:
        ConfigError: The configuration cannot be changed, or what has that name is not Ava; it is left alone.
    """
    file = _File.read(host, path)
    entry, *others = host.pieces(name, Launch(""))
    old, changed = _there(file.data, entry), False
    if old is not None and not is_ours(old):
        raise ConfigError(f"The server called {name} in {path} is not Ava; it was left alone.")
    for piece in (entry, *others):
        there = _there(file.data, piece)
        if there is not None and (piece is entry or there == piece.value):
            file.remove(piece)
            changed = True
    if changed:
        file.restore()
    return file.change()


def apply(change: Change) -> Path | None:
    """Write a change, and return where the backup is of what was there.

    Raises:
        ConfigError: It cannot be written, or somebody else has changed the file; it is left as it is.
    """
    target = change.target
    try:
        if change.before is None:
            target.parent.mkdir(parents=True, exist_ok=True)
        elif target.read_bytes() != change.before.encode():
            raise ConfigError(f"{change.path} was changed by another program just now. Nothing was written; try again.")
        if change.before is None:
            create_file(target, (change.after or "").encode(), 0o644)
            return None
        mode = stat.S_IMODE(target.stat().st_mode)
        backup = _back_up(target, change.before.encode(), mode)
        if change.after is None:
            target.unlink()
        else:
            replace_file(target, change.after.encode(), mode)
        return backup
    except OSError as failed:
        why = failed.strerror or type(failed).__name__
        raise ConfigError(f"{change.path} cannot be written: {why}. It was left as it is.") from failed


def is_ours(entry: object) -> bool:
    """Tell whether a server's entry starts Ava, whatever starts it."""
    if not isinstance(entry, Mapping):
        return False
    table = cast("Mapping[str, object]", entry)
    words: list[object] = []
    for part in (table.get("command"), table.get("args")):
        words += cast("list[object]", part) if isinstance(part, list) else [part]
    stems = [PureWindowsPath(word).stem for word in words if isinstance(word, str)]
    return "serve" in stems and not _OURS.isdisjoint(stems)


class _File:
    """A configuration while it is being changed: its text, what that says, and what it must say in the end."""

    def __init__(self, host: Host, path: Path, target: Path, text: str | None) -> None:
        self.path = path
        self.target = target
        self.before = text
        self._bom = _BOM if text is not None and text.startswith(_BOM) else ""
        self.text = (text or "").removeprefix(_BOM)
        self._format: Format = host.format
        self._env = host.env
        self._lines: list[str] = []
        self._emptied = False
        self.data = self._parsed(self.text)

    @classmethod
    def read(cls, host: Host, path: Path) -> _File:
        """Read a configuration that may be changed; a missing one is empty.

        Raises:
            ConfigError: It may not, or cannot, be changed.
        """
        try:
            target = path.resolve() if path.is_symlink() else path
            if not target.exists():
                return cls(host, path, target, None)
            status = target.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path} is no file; it was left alone.")
            if not is_own(status):
                raise ConfigError(f"{path} belongs to another user; it was left alone. Run this as that user.")
            if not status.st_mode & stat.S_IWUSR or not os.access(target, os.W_OK):
                raise ConfigError(f"{path} is read-only; it was left alone. Make it writable and try again.")
            return cls(host, path, target, target.read_bytes().decode())
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text; it was left alone.") from None
        except (OSError, RuntimeError) as failed:  # RuntimeError: links in a circle
            why = getattr(failed, "strerror", None) or str(failed)
            raise ConfigError(f"{path} cannot be used: {why}. It was left alone.") from failed

    def _parsed(self, text: str) -> Any:
        try:
            data = self._format.parse(text)
        except ValueError as wrong:
            raise ConfigError(
                f"{self.path} cannot be read: {wrong}. It was left alone; mend it there, and try again."
            ) from None
        if not isinstance(data, dict):
            raise ConfigError(f"{self.path} holds no table; it was left alone.")
        return cast("dict[str, Any]", data)

    def takes(self, piece: Piece) -> bool:
        """Tell whether a piece can be put in: what is on the way to it, if anything, is a table or its list."""
        data: Any = self.data
        for step in piece.path if piece.listed else piece.path[:-1]:
            if not isinstance(data, dict):
                return False
            if step not in data:
                return True
            data = cast("dict[str, Any]", data)[step]
        return isinstance(data, list if piece.listed else dict)

    def put(self, piece: Piece, value: Any) -> None:
        """Put a piece in, or bring it up to date."""
        if not self.takes(piece):
            raise ConfigError(f"{'.'.join(piece.path[:-1])} in {self.path} is no table; the file was left alone.")
        old = _there(self.data, piece)
        if old == value:
            return
        wanted, place = copy.deepcopy(self.data), _place(self.data, piece)
        put_in(wanted, place, value)
        self._turn(self._format.put(self.text, place, value), wanted)
        self._tell(piece, old, value)

    def remove(self, piece: Piece) -> None:
        """Take a piece out, and the tables that it leaves empty."""
        old, place = _there(self.data, piece), _place(self.data, piece)
        while len(place) > 1 and len(at(self.data, place[:-1])) == 1:
            place = place[:-1]
        wanted = copy.deepcopy(self.data)
        take_out(wanted, place)
        self._turn(self._format.remove(self.text, place), wanted)
        self._tell(piece, old, None)

    def _turn(self, text: str, wanted: Any) -> None:
        """Take the text that an edit made, if it says exactly what it should."""
        try:
            said = self._format.parse(text)
        except ValueError:
            said = None
        if said != wanted:
            raise ConfigError(
                f"{self.path} is written in a way that cannot be changed safely; it was left alone. Change it by hand"
                " (`--print` shows what belongs there)."
            )
        self.text, self.data = text, wanted

    def _tell(self, piece: Piece, old: Any, new: Any) -> None:
        """Note what changes, as lines; an entry that is brought up to date shows the lines that differ."""
        before, after = (
            self._format.shown(_place({}, piece), _masked(value, piece, self._env)) if value is not None else []
            for value in (old, new)
        )
        self._lines += [line for line in difflib.ndiff(before, after) if line[0] in "+-"]

    def restore(self) -> None:
        """Bring back the very text of the last backup that says what is left; a file that only held Ava goes away."""
        for backup in _backups(self.target):
            try:
                text = backup.read_bytes().decode()
                if _essence(self._format.parse(text.removeprefix(_BOM))) == _essence(self.data):
                    self.text, self._bom = text, ""
                    return
            except (OSError, ValueError):
                continue
        self._emptied = self.text.strip() in ("", "{}")

    def change(self, *notes: str) -> Change:
        """Return the change from what was there to what is to be."""
        after: str | None = self._bom + self.text
        if not self._lines:
            after = self.before
        elif self._emptied:
            after = None
        return Change(self.path, self.target, self.before, after, tuple(self._lines), notes)


def _unasked(host: Host, name: str, data: Any) -> tuple[str, ...]:
    """Return a note where a person has told a host not to ask before `confirm_spawn`, which stays as it is."""
    if host.asks is None:
        return ()
    path, value = host.asks
    steps = [step.format(name=name) for step in path]
    for step in steps:
        data = cast("dict[str, Any]", data).get(step) if isinstance(data, dict) else data
    if data == value:
        return ()
    return (f'{host.title} may not ask before confirm_spawn: {".".join(steps)} is not "{value}". It was left alone.',)


def _place(data: Any, piece: Piece) -> tuple[str | int, ...]:
    """Return where a piece is, or would be put."""
    if not piece.listed:
        return piece.path
    try:
        elements = at(data, piece.path)
    except LookupError:
        return (*piece.path, 0)
    index = next((number for number, each in enumerate(elements) if _id(each) == _id(piece.value)), len(elements))
    return (*piece.path, index)


def _there(data: Any, piece: Piece) -> Any:
    """Return what stands in a piece's place; None where nothing does."""
    try:
        return at(data, _place(data, piece))
    except (LookupError, TypeError):
        return None


def _id(element: object) -> object:
    return cast("Mapping[str, object]", element).get("id") if isinstance(element, Mapping) else None


def _renewed(old: Mapping[str, Any], entry: Mapping[str, Any], env: str, launch: Launch) -> dict[str, Any]:
    """Return an entry of ours brought up to date: how it is started is ours, all else is the person's."""
    new = {**entry, **old, **{key: entry[key] for key in ("command", "args") if key in entry}}
    if launch.env:
        new[env] = {**cast("dict[str, Any]", old.get(env) or {}), **launch.env}
    elif env not in old:
        new.pop(env, None)
    return {key: new[key] for key in [*old, *(key for key in new if key not in old)] if key in new}


def _masked(value: Any, piece: Piece, env: str) -> Any:
    """Return a piece as it may be shown: the variables that a person has set may be keys."""
    table = cast("dict[str, Any]", value) if isinstance(value, dict) else dict[str, Any]()
    variables = table.get(env)
    if not isinstance(variables, dict):
        return cast("Any", value)
    known, ours = cast("dict[str, object]", variables), cast("Mapping[str, object]", piece.value.get(env) or {})
    return {**table, env: {name: text if text == ours.get(name) else "…" for name, text in known.items()}}


def _essence(data: object) -> object:
    """Return data without the tables and lists that are empty."""
    if not isinstance(data, dict):
        return data
    kept = {key: _essence(value) for key, value in cast("dict[str, object]", data).items()}
    return {key: value for key, value in kept.items() if value not in ({}, [])}


def _backups(target: Path) -> list[Path]:
    """Return the backups of a file, the newest first."""
    return sorted(target.parent.glob(f"{target.name}.{BACKUP}-*"), reverse=True)


def _back_up(target: Path, data: bytes, mode: int) -> Path:
    for path in _names(target):
        try:
            create_file(path, data, mode)
        except FileExistsError:
            continue
        return path
    raise AssertionError("there is always another name")


def _names(target: Path) -> Iterator[Path]:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    number = 0
    while True:
        yield target.with_name(f"{target.name}.{BACKUP}-{stamp}{f'-{number}' if number else ''}")
        number += 1
