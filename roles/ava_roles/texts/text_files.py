"""Text files: unpacking, pieces that fit an answer, and which files of a folder to read."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from gzip import GzipFile
from typing import TYPE_CHECKING, NamedTuple

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.path_access import FolderEntry
from ava_roles.sandbox.paths import Root
from ava_roles.texts.encodings import decode

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


_MAX_LINE_CHARS = 4_000
_GZIP = b"\x1f\x8b\x08"
_PIECE = 65_536


def read_unpacked(root: Root, name: str, cap: int) -> tuple[bytes, bool]:
    """Return the first `cap` bytes of a file, of a `.gz` file its unpacked bytes, and whether there is more. Blocks.

    A damaged file has more, too. zlib holds only a window and what was asked for: no child process need bound it.
    Raises AccessRefused, ToolFailed: as `Root.read` does.
    """
    data, more = root.read(name, cap)
    shown, further = unpacked(data, cap)
    return shown, more or further


def unpacked(data: bytes, cap: int) -> tuple[bytes, bool]:
    """Return at most `cap` bytes of what is in a `.gz` file, or of another one as it is; and whether it has more."""
    if not data.startswith(_GZIP):
        return data[:cap], len(data) > cap
    content = bytearray()
    is_damaged = False
    try:
        with GzipFile(fileobj=io.BytesIO(data)) as file:
            while len(content) <= cap:
                piece = file.read1(min(_PIECE, cap + 1 - len(content)))
                if not piece:
                    break
                content += piece
    except (OSError, EOFError, zlib.error):
        is_damaged = True
    return bytes(content[:cap]), is_damaged or len(content) > cap


def is_binary(head: bytes) -> bool:
    return b"\0" in head and decode(head, cut=True) is None


class LineWindow(NamedTuple):
    """A range of lines that fits an answer (none: `last` is `first - 1`).

    `cut`: the lines that are shown in part, each with the column (from 1) of its first character that is not shown.
    """

    text: str
    first: int
    last: int
    cut: tuple[tuple[int, int], ...]


def take_lines(lines: Sequence[str], offset: int, limit: int | None, max_chars: int, column: int = 1) -> LineWindow:
    """Return the lines from number `offset` on that fit into `max_chars`, at least one; the first from `column` on.

    A long line is cut, and the window says at which column it goes on. A first line with a `column` is cut only where
    it does not fit; then nothing follows it.
    """
    shown: list[str] = []
    cut: list[tuple[int, int]] = []
    room = max_chars
    if column > 1 and offset <= len(lines):
        line_end = lines[offset - 1][column - 1 :]
        if len(line_end) > room:
            return LineWindow(line_end[:room], offset, offset, ((offset, column + room),))
        lines = [*lines[: offset - 1], line_end, *lines[offset:]]
    for number, line in enumerate(lines[offset - 1 :], offset):
        if limit is not None and len(shown) >= limit:
            break
        begins_at_column = column > 1 and number == offset
        is_cut = len(line) > _MAX_LINE_CHARS and not begins_at_column
        if is_cut:
            line = line[:_MAX_LINE_CHARS]
        if shown and len(line) + 1 > room:
            break
        if is_cut:
            cut.append((number, _MAX_LINE_CHARS + 1))
        room -= len(line) + 1
        shown.append(line)
    return LineWindow("\n".join(shown), offset, offset + len(shown) - 1, tuple(cut))


_HIDDEN = frozenset({".git", ".hg", ".svn"})
_PACKAGES = frozenset({".venv", "venv", "node_modules", "__pypackages__", "vendor", "bower_components"})
_MAX_KEY_FILE = 200_000
_MAX_KEY_ENTRIES = 50_000
_PRIVATE_KEYS = ("PRIVATE KEY", "LS0tLS1CRUdJTi")
"""What a file with a private key contains; the second one is the same in base64."""
_PRIVATE_KEY_BYTES = tuple(
    mark.encode(codec)
    for mark in _PRIVATE_KEYS
    for codec in ("ascii", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
)


def find_private_key_files(root: Root, check: Callable[[], None] = lambda: None) -> Iterator[str]:
    """Yield the texts of files that may contain a PEM private key, except in installed packages. Blocks."""

    def keep(entry: FolderEntry) -> bool:
        check()
        if entry.kind != "folder":
            return entry.kind == "file"
        return entry.name.rpartition("/")[2] not in _HIDDEN | _PACKAGES

    for entry in root.walk(limit=_MAX_KEY_ENTRIES, keep=keep):
        if len(_PRIVATE_KEYS[0]) < entry.size <= _MAX_KEY_FILE:
            with suppress(ToolFailed):
                data, _more = read_unpacked(root, entry.name, _MAX_KEY_FILE)
                if not any(mark in data for mark in _PRIVATE_KEY_BYTES):
                    continue
                decoded = decode(data)
                if decoded is not None and any(mark in decoded.text for mark in _PRIVATE_KEYS):
                    yield decoded.text


_MAX_STARS = 6
"""Stars that a pattern may have: it becomes a regular expression, and one with many takes forever."""
_MAX_DEEP = 2
"""How many `**` a pattern may have before its end."""
_STAR = r"\[\^/\]\*"
"""Matches, in the regular expression of a pattern, a star of a name."""
_DEEP = ".+"
"""How a regular expression has a `**`."""
_CHARACTER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\](?!\*)|[^\\\[\]()*+?.^$|/]", re.DOTALL)
_BETWEEN = re.compile(rf"{_STAR}((?:{_CHARACTER.pattern})*)(?={_STAR})", re.DOTALL)
"""In the regular expression of a pattern: a star of a name, and what is between it and the next one."""


class WalkFilter:
    """Decides which entries of one walk are visited."""

    def __init__(self, root: Root, check: Callable[[], None] = lambda: None) -> None:
        self.seen = 0
        self._root = root
        self._check = check
        self._specs: dict[str, GitIgnoreSpec | None] = {}

    def __call__(self, entry: FolderEntry) -> bool:
        """Tell whether to visit an entry; the nearest `.gitignore` decides first."""
        self._check()
        self.seen += 1
        above, _, name = entry.name.rpartition("/")
        if name in _HIDDEN or entry.kind not in ("file", "folder"):
            return False
        while True:
            spec = self._spec(above)
            if spec is not None:
                relative_name = entry.name[len(above) + 1 :] if above else entry.name
                if entry.kind == "folder":
                    relative_name += "/"
                is_ignored = spec.check_file(relative_name).include
                if is_ignored is not None:
                    return not is_ignored
            if not above:
                return True
            above = above.rpartition("/")[0]

    def _spec(self, folder: str) -> GitIgnoreSpec | None:
        if folder not in self._specs:
            self._specs[folder] = self._read_spec(folder)
        return self._specs[folder]

    def _read_spec(self, folder: str) -> GitIgnoreSpec | None:
        try:
            data, _more = self._root.read(f"{folder}/.gitignore" if folder else ".gitignore", 100_000)
        except ToolFailed:
            return None
        decoded = decode(data)
        if decoded is None:
            return None
        return patterns(*decoded.text.splitlines())


def patterns(*lines: str) -> GitIgnoreSpec | None:
    """Return the `.gitignore` patterns in lines; None if there are none. Other lines are ignored."""
    from pathspec import GitIgnoreSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    usable: list[GitIgnoreSpecPattern] = []
    for line in lines:
        if line.startswith("#") or not line.strip():
            continue
        if line.count("*") > _MAX_STARS:
            continue
        with suppress(ValueError):
            regex, include = GitIgnoreSpecPattern.pattern_to_regex(line)
            if regex is not None and regex.count(_DEEP) <= _MAX_DEEP:
                linear_regex = _BETWEEN.sub(_take_first_place, regex)
                usable.append(GitIgnoreSpecPattern(re.compile(linear_regex), include))
    if not usable:
        return None
    return GitIgnoreSpec(usable, backend="simple")  # others know no atomic groups


def _take_first_place(star: re.Match[str]) -> str:
    """Return an expression in which a star ends where what follows it comes first, so that it takes linear time.

    The first place is enough, because another star follows.
    """
    expression = "(?>[^/]*?"
    for character in _CHARACTER.findall(star[1]):
        if character.startswith("["):
            expression += "(?!/)"
        expression += character
    return f"{expression})"
