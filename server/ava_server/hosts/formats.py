"""Configuration files of hosts: their formats, and edits that keep everything else."""

from __future__ import annotations

import copy
import os
import re
import stat
import tomllib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol, cast

from ava_server.core.errors import ConfigError
from ava_server.core.files import is_own
from ava_server.hosts.jsonc import Step

KeyPath = Sequence[Step]
"""A place in nested tables and lists; a list's length as the last step means after its end."""


class ConfigFormat(Protocol):
    """A format of configuration files; an edit keeps every other character.

    An edit may raise any error: the caller uses its result only if that, parsed, says what it should.
    """

    def parse(self, text: str) -> Any:
        """A blank text is an empty table. Raises ValueError if it has another format; says where."""
        ...

    def put(self, text: str, path: KeyPath, value: Any) -> str:
        """Missing tables on the way are made."""
        ...

    def remove(self, text: str, path: KeyPath) -> str: ...

    def is_bare(self, text: str, path: KeyPath) -> bool:
        """Tell whether an empty table or list can be removed without losing a comment."""
        ...

    def lines_of(self, path: KeyPath, value: Any) -> list[str]:
        """Return the lines of a file with nothing but this value."""
        ...


class Toml:
    """TOML."""

    def parse(self, text: str) -> Any:
        try:
            return tomllib.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def put(self, text: str, path: KeyPath, value: Any) -> str:
        import tomlkit

        document = tomlkit.parse(text)
        if path[1:] == (0,) and isinstance(value, dict) and path[0] not in document:
            document.append(str(path[0]), tomlkit.aot())  # [[name]], not name = [{}]
        put_in(document, path, value)
        return _with_every_comment(text, tomlkit.dumps(document))

    def remove(self, text: str, path: KeyPath) -> str:
        """Only the value's own lines are removed."""
        import tomlkit

        lines = _LINE.findall(text)
        table = _lines_of_table(lines, tuple(path))
        if table:
            return "".join(line for number, line in enumerate(lines) if number not in table)
        document = tomlkit.parse(text)
        take_out(document, path)
        return _with_every_comment(text, tomlkit.dumps(document))

    def is_bare(self, text: str, path: KeyPath) -> bool:
        """An empty table is one line, and a comment below it may belong to it."""
        del text, path
        return False

    def lines_of(self, path: KeyPath, value: Any) -> list[str]:
        return self.put("", path, value).splitlines()


class Yaml:
    """YAML in block style, which is how people and their programs write configurations."""

    def parse(self, text: str) -> Any:
        import yaml

        try:
            return yaml.safe_load(text) or {}
        except (yaml.YAMLError, RecursionError) as wrong:
            raise ValueError(" ".join(str(wrong).split())[:200]) from None

    def put(self, text: str, path: KeyPath, value: Any) -> str:
        """Add the value as lines of its own, after the other values of its parent."""
        try:
            at(self.parse(text), path)
        except LookupError:
            pass
        else:
            text = self.remove(text, path)
        lines = _LINE.findall(text)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        parent, depth = self._deepest(text, path)
        for step in reversed(path[depth:]):
            value = [value] if isinstance(step, int) else {step: value}
        indent = ""
        line = len(lines)
        if parent is not None:
            if parent.flow_style:
                raise ValueError("a table in one line")
            indent = " " * parent.start_mark.column
            line = _last_line(parent) + 1
        lines[line:line] = [indent + one for one in _block(value).splitlines(keepends=True)]
        return _with_every_comment(text, "".join(lines))

    def remove(self, text: str, path: KeyPath) -> str:
        parent, depth = self._deepest(text, path)
        if parent is None or depth != len(path) - 1 or parent.flow_style:
            raise ValueError("it is not there")
        if len(parent.value) == 1 and depth > 0:  # without its last line, it would be null
            empty: Any = [] if isinstance(path[-1], int) else {}
            return self.put(text, path[:-1], empty)
        lines = _LINE.findall(text)
        for number, item in enumerate(cast("list[Any]", parent.value)):
            if isinstance(item, tuple):
                first, last = cast("tuple[Any, Any]", item)
                step = first.value
            else:
                first, last, step = item, item, number
            if step == path[-1]:
                del lines[first.start_mark.line : _last_line(last) + 1]
                break
        return "".join(lines)

    def is_bare(self, text: str, path: KeyPath) -> bool:
        """Tell whether the line of an empty table or list has no comment."""
        parent, depth = self._deepest(text, path)
        if parent is None or depth != len(path) - 1:
            return False
        for key, value in parent.value:
            if key.value == path[-1]:
                line = _LINE.findall(text)[value.start_mark.line]
                return not value.value and "#" not in line
        return False

    def lines_of(self, path: KeyPath, value: Any) -> list[str]:
        in_new_lists = [0 if isinstance(step, int) else step for step in path]
        return self.put("", in_new_lists, value).splitlines()

    def _deepest(self, text: str, path: KeyPath) -> tuple[Any, int]:
        """Return the deepest table or list on the way to a place, and how many steps lead to it."""
        import yaml

        node = yaml.compose(text, Loader=yaml.SafeLoader)
        depth = 0
        while node is not None and depth < len(path) - 1:
            step = path[depth]
            child: Any = None
            if isinstance(node, yaml.MappingNode):
                child = next((value for key, value in node.value if key.value == step), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                child = node.value[step]
            if not isinstance(child, yaml.CollectionNode) or not child.value:
                break
            node = child
            depth += 1
        return node, depth


def _last_line(node: Any) -> int:
    """A table ends with its last value, not at the comments below."""
    value = node.value
    if isinstance(value, list) and value:
        last = cast("list[Any]", value)[-1]
        if isinstance(last, tuple):
            _key, last = cast("tuple[Any, Any]", last)
        return _last_line(last)
    line = int(node.end_mark.line)
    if node.end_mark.column == 0 and line > node.start_mark.line:
        line -= 1
    return line


def _block(value: Any) -> str:
    import yaml

    dump = cast("Callable[..., str]", yaml.safe_dump)  # pyright: ignore[reportUnknownMemberType] (the stubs leave it open)
    return dump(value, allow_unicode=True, sort_keys=False, default_flow_style=False, width=1000)


_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def _lines_of_table(lines: Sequence[str], path: tuple[Step, ...]) -> set[int]:
    """Return the numbers of the lines of a TOML table that has a head, and of its subtables; none without a head.

    Of the blank lines around them, one stays.
    """
    heads: list[tuple[int, tuple[str, ...]]] = []
    for number, line in enumerate(lines):
        head = _head(line)
        if head is not None:
            heads.append((number, head))
    table: set[int] = set()
    for (start, head), (end, next_head) in pairwise([*heads, (len(lines), ())]):
        if head[: len(path)] != path:
            continue
        if next_head[: len(path)] != path:  # comments before the next table belong to it
            while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
                end -= 1
        table.update(range(start, end))
    if table:
        first = min(table)
        behind = "".join(lines[max(table) + 1 : max(table) + 2])
        while not behind.strip() and first > 0 and not lines[first - 1].strip():
            first -= 1
            table.add(first)
    return table


def _head(line: str) -> tuple[str, ...] | None:
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
    """Raises LookupError if there is none; TypeError: no table or list on the way."""
    for step in path:
        data = data[step]
    return data


def put_in(data: Any, path: KeyPath, value: Any) -> None:
    """Missing tables and lists on the way are made."""
    for step, below in pairwise(path):
        if isinstance(step, str) and step not in data:
            data[step] = [] if isinstance(below, int) else {}
        data = data[step]
    last = path[-1]
    if isinstance(last, int) and last == len(data):
        data.append(value)
    else:
        data[last] = value


def take_out(data: Any, path: KeyPath) -> None:
    del at(data, path[:-1])[path[-1]]


def _with_every_comment(before: str, after: str) -> str:
    """Return an edited text with the line ends of the original. Raises ValueError if the edit lost a comment."""
    if after.count("#") < before.count("#"):
        raise ValueError("a comment would be lost")
    ends = before.count("\r\n")
    if ends and ends == before.count("\n"):  # added text has Unix line ends
        return after.replace("\r\n", "\n").replace("\n", "\r\n")
    return after


Steps = tuple[Step, ...]
_BOM = "\ufeff"


class Missing:
    """The value of a place where nothing is; null is a value."""


NOTHING: Final = Missing()


class Configuration:
    """A configuration: its text (None without a file), and its data.

    `target` is the file where a link (`path`) leads.
    """

    def __init__(self, path: Path, target: Path, text: str | None, form: ConfigFormat) -> None:
        """Raises ConfigError if the text does not have the format, or is not a table."""
        self.path = path
        self.target = target
        self.text = text
        self._format = form
        try:
            data = form.parse(self.body)
        except ValueError as wrong:
            raise ConfigError(
                f"{path} cannot be read: {wrong}. It was left alone; correct it there, and try again."
            ) from None
        if not isinstance(data, dict):
            raise ConfigError(f"{path} is not a table; it was left alone.")
        self.data = cast("dict[str, Any]", data)

    @classmethod
    def read(cls, path: Path, form: ConfigFormat, *, to_change: bool = True) -> Configuration:
        """Read a host's file; a missing one is empty.

        Raises ConfigError if it cannot be read or, with `to_change`, does not belong to this user or is read-only.
        """
        try:
            target = path
            if path.is_symlink():
                target = path.resolve(strict=False)
            if target.is_symlink():
                raise ConfigError(f"{path} is a link that leads in a circle; it was left alone.")
            if not target.exists():
                return cls(path, target, None, form)
            status = target.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path} is not a file; it was left alone.")
            if to_change:
                if not is_own(status):
                    raise ConfigError(f"{path} belongs to another user; it was left alone. Run this as that user.")
                is_writable = status.st_mode & stat.S_IWUSR and os.access(target, os.W_OK)
                if not is_writable:
                    raise ConfigError(f"{path} is read-only; it was left alone. Make it writable and try again.")
            return cls(path, target, target.read_bytes().decode(), form)
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text; it was left alone.") from None
        except (OSError, RuntimeError) as failed:  # RuntimeError: links in a circle, before Python 3.13
            why = getattr(failed, "strerror", None) or str(failed)
            raise ConfigError(f"{path} cannot be used: {why}. It was left alone.") from failed

    @property
    def body(self) -> str:
        """The text without the byte order mark that some Windows editors write."""
        return (self.text or "").removeprefix(_BOM)

    def get(self, path: Steps) -> Any:
        try:
            return at(self.data, path)
        except (LookupError, TypeError):
            return NOTHING

    def takes(self, path: Steps) -> bool:
        """Tell whether a value can be put at a place: everything on the way to it is a table, if it exists."""
        data: object = self.data
        for step in path[:-1]:
            if isinstance(data, list) and isinstance(step, int):
                data = cast("list[object]", data)[step]
                continue
            if not isinstance(data, dict):
                return False
            if step not in data:
                return True
            data = cast("dict[Step, object]", data)[step]
        if isinstance(path[-1], int):
            return isinstance(data, list)
        return isinstance(data, dict)

    def put(self, path: Steps, value: Any) -> None:
        """Raises ConfigError if this is impossible without touching anything else; nothing was changed."""
        if not self.takes(path):
            raise ConfigError(f"{dotted_name(path[:-1])} in {self.path} is not a table; the file was left alone.")
        self._apply(lambda: self._format.put(self.body, path, value), lambda data: put_in(data, path, value))

    def remove(self, path: Steps) -> None:
        """Remove tables that are empty then, too. Raises ConfigError: impossible without touching anything else."""
        self._apply(lambda: self._format.remove(self.body, path), lambda data: take_out(data, path))
        above = path[:-1]
        if above and self.get(above) in ({}, []) and self._format.is_bare(self.body, above):
            self.remove(above)

    def _apply(self, edit: Callable[[], str], change: Callable[[Any], None]) -> None:
        """Accept the text that an edit makes, if its data is exactly what the change makes."""
        try:
            changed = copy.deepcopy(self.data)
            change(changed)
            body = edit()
            correct = _plain(self._format.parse(body)) == _plain(changed)
        except Exception:  # whatever goes wrong, the file stays as it is
            correct = False
            body = ""
        if not correct:
            raise ConfigError(
                f"{self.path} cannot be changed without touching parts that are not Ava's; it was left alone."
                " Edit it by hand."
            )
        self.data = self._format.parse(body)
        if self.text is not None and self.text.startswith(_BOM):
            body = _BOM + body
        self.text = body


def dotted_name(path: Steps) -> str:
    return ".".join(map(str, path))


def _plain(data: object) -> object:
    """Return a value for a comparison: true is not 1, and an empty table equals a missing one."""
    if isinstance(data, dict):
        members = {key: _plain(value) for key, value in cast("dict[str, object]", data).items()}
        return {key: value for key, value in members.items() if value != {}}
    if isinstance(data, list):
        return [_plain(value) for value in cast("list[object]", data)]
    return type(data).__name__, repr(data)
