"""Text files: unpacking, pieces that fit an answer, and which files of a folder to read."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from gzip import GzipFile
from typing import TYPE_CHECKING, NamedTuple

from ava_roles.encodings import decode
from ava_roles.errors import ToolFailed
from ava_roles.sandbox.path_access import FolderEntry
from ava_roles.sandbox.paths import Root

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
    content, more = bytearray(), False
    try:
        with GzipFile(fileobj=io.BytesIO(data)) as file:
            while len(content) <= cap and (piece := file.read1(min(_PIECE, cap + 1 - len(content)))):
                content += piece
    except (OSError, EOFError, zlib.error):
        more = True
    return bytes(content[:cap]), more or len(content) > cap


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
    """Return the lines from number `offset` on that fit, of the first one what begins at `column`; at least one.

    A line with a column that does not fit is shown as far as there is room; nothing follows it.
    """
    taken: list[str] = []
    cut: list[tuple[int, int]] = []
    room = max_chars
    if column > 1 and lines[offset - 1 : offset]:
        rest = lines[offset - 1][column - 1 :]
        if len(rest) > room:
            return LineWindow(rest[:room], offset, offset, ((offset, column + room),))
        lines = [*lines[: offset - 1], rest[:], *lines[offset:]]
    for number, line in enumerate(lines[offset - 1 :], offset):
        if limit is not None and len(taken) >= limit:
            break
        whole_rest = column > 1 and number == offset
        if len(line) > _MAX_LINE_CHARS and not whole_rest:
            line = line[:_MAX_LINE_CHARS]
            cut.append((number, _MAX_LINE_CHARS + 1))
        if taken and len(line) + 1 > room:
            cut = [each for each in cut if each[0] < number]
            break
        room -= len(line) + 1
        taken.append(line)
    return LineWindow("\n".join(taken), offset, offset + len(taken) - 1, tuple(cut))


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
        folder = entry.name.rpartition("/")[2]
        return entry.kind == "file" or (entry.kind == "folder" and folder not in _HIDDEN | _PACKAGES)

    for entry in root.walk(limit=_MAX_KEY_ENTRIES, keep=keep):
        if len(_PRIVATE_KEYS[0]) < entry.size <= _MAX_KEY_FILE:
            with suppress(ToolFailed):
                data, _more = read_unpacked(root, entry.name, _MAX_KEY_FILE)
                decoded = decode(data) if any(mark in data for mark in _PRIVATE_KEY_BYTES) else None
                if decoded is not None and any(mark in decoded.text for mark in _PRIVATE_KEYS):
                    yield decoded.text


_MAX_STARS, _MAX_DEEP = 6, 2
"""Most stars of a pattern, and most `**` before the end: it becomes a regular expression, which may take forever."""
_STAR, _DEEP = r"\[\^/\]\*", ".+"
_CHARACTER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\](?!\*)|[^\\\[\]()*+?.^$|/]", re.DOTALL)
_BETWEEN = re.compile(rf"{_STAR}((?:{_CHARACTER.pattern})*)(?={_STAR})", re.DOTALL)
"""In the regular expression of a pattern: a star of a name, and what is between it and the next one."""


class WalkFilter:
    """Decides which entries of one walk are visited."""

    def __init__(self, root: Root, check: Callable[[], None] = lambda: None) -> None:
        self.asked = 0
        self._root = root
        self._check = check
        self._specs: dict[str, GitIgnoreSpec | None] = {}

    def __call__(self, entry: FolderEntry) -> bool:
        """Tell whether to visit an entry; the nearest `.gitignore` decides first."""
        self._check()
        self.asked += 1
        above, _, name = entry.name.rpartition("/")
        if name in _HIDDEN or entry.kind not in ("file", "folder"):
            return False
        while True:
            spec = self._spec(above)
            if spec is not None:
                rel = entry.name[len(above) + 1 :] if above else entry.name
                ignored = spec.check_file(rel + "/" if entry.kind == "folder" else rel).include
                if ignored is not None:
                    return not ignored
            if not above:
                return True
            above = above.rpartition("/")[0]

    def _spec(self, folder: str) -> GitIgnoreSpec | None:
        if folder not in self._specs:
            try:
                data, _ = self._root.read(f"{folder}/.gitignore" if folder else ".gitignore", 100_000)
                decoded = decode(data)
                self._specs[folder] = patterns(*decoded.text.splitlines()) if decoded is not None else None
            except ToolFailed:
                self._specs[folder] = None
        return self._specs[folder]


def patterns(*lines: str) -> GitIgnoreSpec | None:
    """Return the `.gitignore` patterns in lines; None if there are none. Other lines are ignored."""
    from pathspec import GitIgnoreSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    found: list[GitIgnoreSpecPattern] = []
    for line in lines:
        if line.strip() and not line.startswith("#") and line.count("*") <= _MAX_STARS:
            with suppress(ValueError):
                regex, include = GitIgnoreSpecPattern.pattern_to_regex(line)
                if regex is not None and regex.count(_DEEP) <= _MAX_DEEP:
                    found.append(GitIgnoreSpecPattern(re.compile(_BETWEEN.sub(_once, regex)), include))
    return GitIgnoreSpec(found, backend="simple") if found else None  # others know no atomic groups


def _once(found: re.Match[str]) -> str:
    """Return a star of a name and what follows where it comes first: enough before another star, and in linear time."""
    characters = _CHARACTER.findall(found[1])
    between = "".join(f"(?!/){each}" if each.startswith("[") else each for each in characters)
    return f"(?>[^/]*?{between})"
