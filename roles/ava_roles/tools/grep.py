"""Search for lines that match, in pure Python.

A literal search runs in a thread. A regular expression from a model could block Python's matcher, and with it the
whole server, for hours; so it runs in a child process (`main`) with a time limit.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.paths import Root
from ava_roles.texts import child
from ava_roles.texts.encodings import Decoded, decode
from ava_roles.texts.passages import split_lines
from ava_roles.texts.text_files import WalkFilter, patterns, unpacked

MAX_FILE_BYTES = 10_000_000
MAX_ENTRIES = 20_000
CHILD_SECONDS = 30
_LINE_CHARS = 240


@dataclass(frozen=True)
class LineQuery:
    """What to search for: a literal, in any case, or with `regex` a Python regular expression, case-sensitive.

    `path` is a folder or a file. `glob` is a pattern that a file's path must match, as in `.gitignore`. At most `most`
    lines are returned.
    """

    text: str
    path: str = ""
    regex: bool = False
    glob: str | None = None
    most: int = 50


@dataclass
class GrepResult:
    """The result of a search: path, line number and line of each match; `more`: there are others.

    `files` were searched; `skipped` ones are binary, too large or not readable. `cut`: there are more files than a
    search covers. `notes`: how files with a match were read, where that is worth saying ("read as Windows-1251").
    `hashes`: the SHA-256 of the files with a match.
    """

    hits: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    files: int = 0
    skipped: int = 0
    more: bool = False
    cut: bool = False
    notes: dict[str, str] = field(default_factory=dict[str, str])
    hashes: dict[str, str] = field(default_factory=dict[str, str])


def search(
    root: Root, query: LineQuery, hide: Callable[[str], str] = str, check: Callable[[], None] = lambda: None
) -> GrepResult:
    """Return the lines that match, by path and line; stop after the most. Raises ToolFailed: expression, glob or path.

    `hide` replaces secrets in a whole file, and keeps its number of lines: the query cannot match what it replaces.
    `check` is called for each file; it raises to stop.
    """
    matching = _matcher(query)
    wanted_names = None
    if query.glob:
        wanted_names = patterns(unicodedata.normalize("NFC", query.glob))
        if wanted_names is None:
            raise ToolFailed(f"glob {query.glob!r} is not a pattern; give one such as *.py or src/**/*.ts")
    walk_filter = WalkFilter(root, check)
    result = GrepResult()
    for entry in root.walk(root.find(query.path), limit=MAX_ENTRIES, keep=walk_filter):
        if wanted_names is not None and not wanted_names.match_file(unicodedata.normalize("NFC", entry.name)):
            continue
        data = _read(root, entry.name, entry.size)
        decoded = _decoded(data)
        if data is None or decoded is None:
            result.skipped += 1
            continue
        text = decoded.text
        result.files += 1
        if next(matching(text), None) is None:  # as in most files, which then need no hiding
            continue
        for number, line in matching(hide(text)):
            if len(result.hits) >= query.most:
                result.more = True
                return result
            result.hits.append((entry.name, number, line))
            if entry.name not in result.hashes:
                result.hashes[entry.name] = hashlib.sha256(data).hexdigest()
            if decoded.note:
                result.notes[entry.name] = decoded.note
    result.cut = walk_filter.seen >= MAX_ENTRIES
    return result


def _read(root: Root, name: str, size: int) -> bytes | None:
    """Return the bytes of a file; None if it is too large, or cannot be read."""
    if size > MAX_FILE_BYTES:
        return None
    try:
        data, more = root.read(name, MAX_FILE_BYTES)
    except ToolFailed:
        return None
    return None if more else data


def _decoded(data: bytes | None) -> Decoded | None:
    if data is None:
        return None
    text, more = unpacked(data, MAX_FILE_BYTES)
    return None if more else decode(text)


def _matcher(query: LineQuery) -> Callable[[str], Generator[tuple[int, str]]]:
    """Return a function that yields the number and an excerpt of each line of a text that matches the query."""
    if query.regex:
        return partial(_lines_with_match, _compiled(query))
    return partial(_lines_with_literal, query.text.lower())


def _compiled(query: LineQuery) -> re.Pattern[str]:
    try:
        return re.compile(query.text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolFailed(
            f"{query.text[:80]!r} is not a regular expression ({error}); correct it, or search without regex"
        ) from None


def _lines_with_literal(literal: str, text: str) -> Generator[tuple[int, str]]:
    if literal not in text.lower():
        return
    for number, line in enumerate(split_lines(text), 1):
        at = line.lower().find(literal)
        if at >= 0:
            yield number, _excerpt(line, at)


def _lines_with_match(expression: re.Pattern[str], text: str) -> Generator[tuple[int, str]]:
    for number, line in enumerate(split_lines(text), 1):
        match = expression.search(line)
        if match is not None:
            yield number, _excerpt(line, match.start())


def _excerpt(line: str, at: int) -> str:
    """Return a line; of a long one what is around a place, with the column at which that begins."""
    if len(line) <= _LINE_CHARS:
        return line.strip()
    start = max(0, at - _LINE_CHARS // 3)
    end = start + _LINE_CHARS
    piece = line[start:end]
    text = piece.strip() + ("…" if end < len(line) else "")
    if start == 0:
        return text
    column = start + 1 + len(piece) - len(piece.lstrip())
    return f"from column {column:,}: {text}"


def main() -> None:
    """Run the child: read a request from stdin, search the inherited folder; the server hides secrets in each match."""
    child.limit_lifetime(CHILD_SECONDS)
    order = child.receive()
    root = Root.adopt(Path(order["path"]), order["descriptor"])
    try:
        answer: dict[str, object] = asdict(search(root, LineQuery(**order["query"]), _hide))
    except ToolFailed as failed:
        answer = {"failed": str(failed)}
    child.send(answer)


def _hide(text: str) -> str:
    """Let the server hide the secrets in a text; the time limit is the expression's, so this does not count."""
    child.limit_lifetime(0)
    shown = child.hide(text)
    child.limit_lifetime(CHILD_SECONDS)
    return shown
