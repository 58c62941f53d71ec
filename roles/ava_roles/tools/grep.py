"""Lines that match, found in pure Python.

A literal search runs in a thread. A regular expression of a model's making can keep Python's matcher, and
with it the whole server, busy for hours; so it runs in a child process (`main`) that is ended in time.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.linux import NotOnThisSystem, end_with_parent, end_within
from ava_roles.sandbox.paths import Root
from ava_roles.tools.text_files import WalkFilter, decode_text, patterns

FILE_MAX = 2_000_000
ENTRIES_MAX = 20_000
CHILD_SECONDS = 30
_SHOWN = 240
TOO_SLOW = b"Timeout ("
"""How what a child says begins that ended itself because its time was over."""


@dataclass(frozen=True)
class Query:
    """What to look for.

    Attributes:
        text: A literal, found in any case; or an expression when `regex`.
        path: Folder or file to search.
        regex: `text` is a Python regular expression, found as it stands.
        glob: Pattern that a file's path must match, as in `.gitignore`.
        most: Lines to return.
    """

    text: str
    path: str = ""
    regex: bool = False
    glob: str | None = None
    most: int = 50


@dataclass
class GrepResult:
    """What a search brought.

    Attributes:
        hits: Path, line number and line of each match.
        files: Files that were searched.
        skipped: Files that are binary, too large or may not be read.
        more: There are more matches.
        cut: There are more files than a search looks at.
    """

    hits: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    files: int = 0
    skipped: int = 0
    more: bool = False
    cut: bool = False


def search(root: Root, query: Query, check: Callable[[], None] = lambda: None) -> GrepResult:
    """Return the lines that match, by path and line; stops as soon as it has one more than asked for.

    Raises:
        ToolFailed: The expression, the glob or the path cannot be used.
    """
    matching = _matcher(query)
    wanted_names = patterns(query.glob) if query.glob else None
    if query.glob and wanted_names is None:
        raise ToolFailed(f"glob {query.glob!r} is not a pattern; give one such as *.py or src/**/*.ts")
    wanted = WalkFilter(root, check)
    found = GrepResult()
    for entry in root.walk(query.path, limit=ENTRIES_MAX, keep=wanted):
        if wanted_names is not None and not wanted_names.match_file(entry.name):
            continue
        text = _readable(root, entry.name, entry.size)
        if text is None:
            found.skipped += 1
            continue
        found.files += 1
        for number, line in matching(text):
            if len(found.hits) >= query.most:
                found.more = True
                return found
            found.hits.append((entry.name, number, line))
    found.cut = wanted.asked >= ENTRIES_MAX
    return found


def _readable(root: Root, name: str, size: int) -> str | None:
    if size > FILE_MAX:
        return None
    try:
        data, more = root.read(name, FILE_MAX)
    except ToolFailed:
        return None
    return None if more else decode_text(data)


def _matcher(query: Query) -> Callable[[str], Generator[tuple[int, str]]]:
    if not query.regex:
        literal = query.text.lower()

        def literally(text: str) -> Generator[tuple[int, str]]:
            if literal in text.lower():
                for number, line in enumerate(text.splitlines(), 1):
                    if (at := line.lower().find(literal)) >= 0:
                        yield number, _around(line, at)

        return literally
    try:
        expression = re.compile(query.text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolFailed(
            f"{query.text[:80]!r} is not a regular expression ({error}); mend it, or search without regex"
        ) from None

    def by_expression(text: str) -> Generator[tuple[int, str]]:
        for number, line in enumerate(text.splitlines(), 1):
            if match := expression.search(line):
                yield number, _around(line, match.start())

    return by_expression


def _around(line: str, at: int) -> str:
    """Return a line, of a long one the part around the match."""
    if len(line) <= _SHOWN:
        return line.strip()
    start = max(0, at - _SHOWN // 3)
    end = start + _SHOWN
    return ("…" if start else "") + line[start:end].strip() + ("…" if end < len(line) else "")


def main() -> None:
    """Be the child: read an order from stdin, search the inherited folder, write what is found."""
    _end_in_time()
    order = json.loads(sys.stdin.buffer.read())
    root = Root.adopt(Path(order["path"]), order["descriptor"])
    try:
        answer: dict[str, object] = asdict(search(root, Query(**order["query"])))
    except ToolFailed as failed:
        answer = {"failed": str(failed)}
    os.write(1, json.dumps(answer).encode())


def _end_in_time() -> None:
    """See to it that this process ends with the server, and in any case when its time is over."""
    try:
        end_within(CHILD_SECONDS)
    except NotOnThisSystem:  # a thread of Python itself, which needs no turn of the interpreter that the matcher holds
        faulthandler.dump_traceback_later(CHILD_SECONDS, exit=True)
    with suppress(NotOnThisSystem):  # elsewhere its time ends it
        end_with_parent()
