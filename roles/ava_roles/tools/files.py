"""`read_file`, and the tools that search the workspace for files, lines and passages.

`read_file` shows text as it is, and PDF, DOCX, XLSX and CSV as text and tables.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

import anyio
from anyio.abc import Process
from anyio.from_thread import check_cancelled
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import Field

from ava_extras import has_extra
from ava_roles.errors import ToolFailed
from ava_roles.passages import HEADING_CHARS, FileMatch, FilePassage, PassageRanking, Query, split_lines, split_passages
from ava_roles.sandbox.path_access import FolderEntry
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.sandbox import child_environment
from ava_roles.threads import run_sync
from ava_roles.tool import Source, ToolArgs, ToolContext, ToolOutput, ToolSpec, need_files
from ava_roles.tools import grep, parser_process
from ava_roles.tools.child import HEAD_BYTES, message, took_too_long
from ava_roles.tools.child import command as child_command
from ava_roles.tools.pages import hide_pages, is_pdf, read_csv
from ava_roles.tools.parser_process import read_docx, read_pdf, read_xlsx
from ava_roles.tools.text_files import (
    WalkFilter,
    decode_text,
    is_binary,
    patterns,
    read_unpacked,
    take_lines,
    without_tags,
)

_MAX_BYTES = 20_000_000
_LISTED_ENTRIES = 500
_HEAD_CHARS = 600  # reserved for the lines around the text


class ReadFileArgs(ToolArgs):
    """Arguments of `read_file`."""

    path: str = Field(description="File or folder, relative to the workspace; '.' lists the workspace.")
    offset: int = Field(default=1, ge=1, description="First line (PDF: page) to read.")
    limit: int | None = Field(default=None, ge=1, description="Lines (PDF: pages) to read at most.")


class ReadFile:
    """Reads a file, in pieces that fit an answer."""

    spec = ToolSpec(
        name="read_file",
        description=(
            "Read a file of the workspace: text as it is, PDF, DOCX, XLSX and CSV as text or tables. "
            "Lists a folder. Long files come in pieces: continue with the offset that the answer names."
        ),
        args=ReadFileArgs,
        files=True,
        default=True,
        aliases=("Read",),
    )

    def activity(self, args: ReadFileArgs) -> str:
        return f"Reading {shown(args.path)}"

    async def __call__(self, args: ReadFileArgs, at: ToolContext) -> ToolOutput:
        root = need_files(at)
        room = self.spec.max_chars - _HEAD_CHARS
        return await run_sync(_read, root, args, room, at.hide)


def _read(root: Root, args: ReadFileArgs, room: int, hide: Callable[[str], str]) -> ToolOutput:
    name = "/".join(root.parts(args.path))
    if root.kind(args.path) == "folder":
        return _list_folder(name, root.entries(args.path), args)
    data, more = read_unpacked(root, args.path, _MAX_BYTES)
    size = f"{len(data):,} bytes" if not more else f"more than {_MAX_BYTES:,} bytes, only the first are read"
    suffix = PurePosixPath(name).suffix.lower()
    if is_pdf(data):
        return _read_pdf(name, size, data, args, room, hide)
    try:
        what, text = _text(suffix, data, more, hide)
    except ToolFailed as error:
        raise ToolFailed(f"{shown(name)}: {error}") from None
    if text is None:
        return ToolOutput(f"{shown(name)}: binary ({size}), cannot be shown as text", success=False, count=0)
    lines = split_lines(text)
    if args.offset > max(len(lines), 1):
        raise ToolFailed(f"{shown(name)} has {len(lines):,} lines; give an offset up to that")
    part = take_lines(lines, args.offset, args.limit, room)
    head = f"{shown(name)} ({what}, {size}): lines {part.first:,} to {part.last:,} of {len(lines):,}"
    if part.cut:
        head += f"; cut at 4,000 characters: line {', '.join(map(str, part.cut[:20]))}"
    if not lines:
        head = f"{shown(name)} ({what}, {size}): empty"
    tail = f"\n\n[goes on: offset {part.last + 1}]" if part.last < len(lines) else ""
    return ToolOutput(f"{head}\n\n{part.text}{tail}", count=1, sources=(Source(name),))


def _text(suffix: str, data: bytes, cut: bool, hide: Callable[[str], str]) -> tuple[str, str | None]:
    """Return the kind of a file and its text without secrets; None if it has no text."""
    if suffix == ".docx":
        return "Word document", read_docx(data, hide)
    if suffix in (".xlsx", ".xlsm"):
        return "workbook", read_xlsx(data, hide)
    if suffix in (".csv", ".tsv"):
        return "CSV as a table", read_csv(data, hide)
    text = decode_text(data, cut=cut)
    return "text", text and hide(text)


def _read_pdf(
    name: str, size: str, data: bytes, args: ReadFileArgs, room: int, hide: Callable[[str], str]
) -> ToolOutput:
    try:
        pdf = read_pdf(data, args.offset, args.limit, room)
    except ToolFailed as error:
        raise ToolFailed(f"{shown(name)}: {error}") from None
    if args.offset > pdf.total:
        raise ToolFailed(f"{shown(name)} has {pdf.total:,} pages; give an offset up to that")
    last = args.offset + len(pdf.pages) - 1
    head = f"{shown(name)} (PDF, {size}): pages {args.offset} to {last} of {pdf.total}"
    pages = hide_pages(((args.offset - 1, pdf.before), *pdf.pages), hide)[1:]
    if not any(text for _, text in pages):
        head += "; they contain no text: they may be scanned images, which cannot be read here"
    text = "\n\n".join(f"[page {number}]\n{text}" for number, text in pages)
    tail = f"\n\n[goes on: offset {last + 1}]" if last < pdf.total else ""
    return ToolOutput(f"{head}\n\n{text}{tail}", count=1, sources=(Source(name, pdf.title),))


def _list_folder(name: str, entries: list[FolderEntry], args: ReadFileArgs) -> ToolOutput:
    first = args.offset - 1
    part = entries[first : first + min(args.limit or _LISTED_ENTRIES, _LISTED_ENTRIES)]
    lines = [f"{shown(name) or '.'} (folder): {len(entries):,} entries", ""]
    for entry in part:
        what = {"folder": "/", "link": "  (link, not followed)", "other": "  (not a regular file)"}.get(entry.kind)
        lines.append(f"{shown(entry.name)}{what or f'  {entry.size:,} bytes'}")
    if first + len(part) < len(entries):
        lines.append(f"\n[goes on: offset {first + len(part) + 1}]")
    return ToolOutput("\n".join(lines), count=len(part), sources=(Source(name or "."),))


_MAX_FILE_BYTES = 10_000_000
_HEAD_BYTES = 1_024
_NOT_TEXT, _TOO_LARGE = "not text, or unreadable", "too large or damaged"
_NO_EXTRA = "documents, which need the extra `documents`"


class PassageReader:
    """Reads files as passages. It keeps the pages of PDFs, which take seconds to parse. Blocks.

    `size`: bytes that were read, and characters of passages. Of a file that is not text, as its first kilobyte shows,
    only that counts. `documents`: how many documents were read.
    """

    def __init__(self, root: Root) -> None:
        self.size = self.documents = 0
        self._root = root
        self._pages: dict[str, tuple[tuple[int, str], ...]] = {}

    def read(self, name: str, size: int, hide: Callable[[str], str] = str) -> list[FilePassage] | str:
        """Return the passages of a file; why not, if it cannot be read."""
        if size > _MAX_FILE_BYTES:
            return _TOO_LARGE
        found = self._passages(name, size, hide)
        if not isinstance(found, str):
            self.size += sum(len(passage.text) for passage in found)
        return found

    def _passages(self, name: str, size: int, hide: Callable[[str], str]) -> list[FilePassage] | str:
        try:
            if not is_document(name):
                return self._text_passages(name, size, hide)
            self.size += size
            self.documents += 1
            if name not in self._pages:
                if not has_extra("documents"):
                    return _NO_EXTRA
                data, _more = self._root.read(name, _MAX_FILE_BYTES)
                if not is_pdf(data):
                    return list(split_passages(parser_process.read_docx(data, hide)))
                self._pages[name] = parser_process.read_pdf(data, count=100).pages
            pages = hide_pages(self._pages[name], hide)
            return [_on_page(page, each.text) for page, text in pages for each in split_passages(text)]
        except ToolFailed:
            return _NOT_TEXT

    def hidden(self, file: FileMatch, query: Query, hide: Callable[[str], str]) -> FileMatch:
        """Return a file's best passages with secrets hidden; none if the words match only in secrets."""
        changed = False

        def noted(text: str) -> str:
            nonlocal changed
            shown = hide(text)
            changed = changed or shown != text
            return shown

        found = self.read(file.path, 0, noted)
        if isinstance(found, str):
            return FileMatch(file.path, ())
        if not changed and {each.text for each in file.passages} <= {each.text for each in found}:
            return file
        ranking = PassageRanking(query)
        ranking.add(file.path, found)
        room = len(file.path) + sum(len(passage.text) + HEADING_CHARS for passage in file.passages)
        return next(iter(ranking.best(1, room)), FileMatch(file.path, ()))

    def _text_passages(self, name: str, size: int, hide: Callable[[str], str]) -> list[FilePassage] | str:
        head, longer = read_unpacked(self._root, name, _HEAD_BYTES)
        self.size += len(head)
        if longer and is_binary(head):
            return _NOT_TEXT
        data, more = read_unpacked(self._root, name, _MAX_FILE_BYTES)
        self.size += max(len(data), size)
        if more:
            return _TOO_LARGE
        text = decode_text(data)
        if text is None:
            return _NOT_TEXT
        if PurePosixPath(name.removesuffix(".gz")).suffix.lower() in (".html", ".htm", ".xhtml"):
            text = without_tags(text)
        return list(split_passages(hide(text)))


def _on_page(page: int, text: str) -> FilePassage:
    count = text.count("\n") + 1
    return FilePassage(f"page {page}, {count} line{'s' * (count > 1)}", text)


def is_document(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in (".pdf", ".docx")


_MAX_DOCUMENTS = 20
_MAX_TOTAL_BYTES = 40_000_000
_LARGE_BYTES = 2_000_000
_MAX_ENTRIES = 20_000

_MAX_FILES = 200


class FindFilesArgs(ToolArgs):
    """Arguments of `find_files`."""

    pattern: str = Field(min_length=1, max_length=200, description="As in .gitignore, e.g. *.toml or src/**/test_*.py")
    path: str = Field(default="", description="Folder to search; the whole workspace if left out.")


class FindFiles:
    """Finds files by their names."""

    spec = ToolSpec(
        name="find_files",
        description="List the workspace's files whose path matches a pattern, with their sizes. Skips files that"
        " .gitignore names.",
        args=FindFilesArgs,
        files=True,
        default=True,
        aliases=("Glob",),
    )

    def activity(self, args: FindFilesArgs) -> str:
        return f"Looking for files {args.pattern}"

    async def __call__(self, args: FindFilesArgs, at: ToolContext) -> ToolOutput:
        return await run_sync(_find_files, need_files(at), args, check_cancelled)


def _find_files(root: Root, args: FindFilesArgs, check: Callable[[], None]) -> ToolOutput:
    matching = patterns(args.pattern)
    if matching is None:
        raise ToolFailed(f"pattern {args.pattern!r} cannot be used; give one such as *.py or src/**/*.ts")
    walk = WalkFilter(root, check)
    entries = root.walk(args.path, limit=_MAX_ENTRIES, keep=walk)
    matches = (entry for entry in entries if matching.match_file(entry.name))
    found = [f"{shown(entry.name)} ({entry.size:,} bytes)" for entry in islice(matches, _MAX_FILES)]
    head = "1 file matches" if len(found) == 1 else f"{len(found)} files match"
    if next(matches, None) is not None:
        head += "; there are more: narrow the pattern or the path"
    elif walk.asked >= _MAX_ENTRIES:
        head += f"; only the first {_MAX_ENTRIES:,} entries were looked at: give a path"
    return ToolOutput("\n".join([head, *found]), count=len(found))


class SearchArgs(ToolArgs):
    """Arguments of `search_codebase`."""

    query: str = Field(min_length=1, max_length=500, description="Text to find, in any case; or an expression.")
    path: str = Field(default="", description="Folder or file to search; the whole workspace if left out.")
    regex: bool = Field(default=False, description="query is a Python regular expression, matched line by line.")
    glob: str | None = Field(default=None, description="Only files that match, e.g. *.py or src/**/*.ts")
    max_results: int = Field(default=50, ge=1, le=200)


class SearchCodebase:
    """Finds lines that match."""

    spec = ToolSpec(
        name="search_codebase",
        description=(
            "Find the lines of the workspace's files that contain a text (any case) or match a regular "
            "expression. Returns path:line: text. Use it when you know the word; for a question, use "
            "search_and_read. Skips files that .gitignore names, binary files and files over 2 MB."
        ),
        args=SearchArgs,
        files=True,
        default=True,
        aliases=("Grep",),
    )

    def activity(self, args: SearchArgs) -> str:
        return f"Searching for {args.query}"

    async def __call__(self, args: SearchArgs, at: ToolContext) -> ToolOutput:
        root = need_files(at)
        root.parts(args.path)
        query = grep.LineQuery(args.query, args.path, args.regex, args.glob, args.max_results)
        if args.regex:
            found = await _in_child(root, query, at.run_id, at.hide)
        else:
            found = await run_sync(grep.search, root, query, at.hide, check_cancelled)
        lines = [f"{shown(path)}:{number}: {line}" for path, number, line in found.hits]
        files = tuple(Source(path) for path in dict.fromkeys(path for path, _, _ in found.hits))
        head = f"{len(lines)} lines match in {len(files)} files ({found.files:,} searched)"
        return ToolOutput("\n".join([head + _limits_of(found), "", *lines]), count=len(lines), sources=files)


def _limits_of(found: grep.GrepResult) -> str:
    notes = [
        "; there are more: narrow the query, the path or the glob" if found.more else "",
        f"; {found.skipped:,} binary, large or unreadable files skipped" if found.skipped else "",
        f"; only the first {grep.MAX_ENTRIES:,} entries were searched: give a path" if found.cut else "",
    ]
    return "".join(notes)


async def _in_child(root: Root, query: grep.LineQuery, run_id: str, hide: Callable[[str], str]) -> grep.GrepResult:
    """Search in a child with only the folder's descriptor; it sends matching files here, where secrets are hidden."""
    with root.duplicate() as descriptor:
        order = {"path": str(root.path), "descriptor": descriptor, "query": asdict(query)}
        try:
            with anyio.fail_after(grep.CHILD_SECONDS + 5) as limit:
                async with await anyio.open_process(
                    child_command("ava_roles.tools.grep"),
                    stderr=subprocess.PIPE,
                    env=child_environment(run_id),
                    pass_fds=() if descriptor is None else (descriptor,),
                    start_new_session=True,
                ) as child:
                    answer = await _answer(child, order, hide, limit)
                    errors = b"".join([piece async for piece in child.stderr]) if child.stderr else b""
                    code = await child.wait()
        except TimeoutError:
            raise _too_slow() from None
    if answer is None and took_too_long(code, errors):
        raise _too_slow()
    if answer is None:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {code}"
        raise ToolFailed(f"the search failed ({last[:200]}); search for a literal text instead")
    if "failed" in answer:
        raise ToolFailed(answer["failed"])
    hits = [(str(path), int(number), str(line)) for path, number, line in answer.pop("hits")]
    return grep.GrepResult(hits=hits, **answer)


async def _answer(
    child: Process, order: object, hide: Callable[[str], str], limit: anyio.CancelScope
) -> dict[str, Any] | None:
    """Return a child's result, hiding secrets in texts that it sends; that does not count for the time limit."""
    assert child.stdin is not None
    assert child.stdout is not None
    sent = BufferedByteReceiveStream(child.stdout)

    def pack(text: str) -> bytes:
        return message(hide(text))

    try:
        await child.stdin.send(message(order))
        while True:
            size = int.from_bytes(await sent.receive_exactly(HEAD_BYTES))
            answer: dict[str, Any] = json.loads(await sent.receive_exactly(size))
            if "hide" not in answer:
                return answer
            left, limit.deadline = limit.deadline - anyio.current_time(), math.inf
            hidden = await run_sync(pack, str(answer["hide"]))
            limit.deadline = anyio.current_time() + left
            await child.stdin.send(hidden)
    except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return None


def _too_slow() -> ToolFailed:
    return ToolFailed(
        f"the expression took longer than {grep.CHILD_SECONDS} s; make it simpler (no nested repetition), "
        "search a smaller path, or search for a literal text"
    )


class SearchAndReadArgs(ToolArgs):
    """Arguments of `search_and_read`."""

    query: str = Field(min_length=1, max_length=1_000, description="Words or a question.")
    max_files: int = Field(default=5, ge=1, le=20)
    path: str = Field(default="", description="Folder to search; the whole workspace if left out.")


class SearchAndRead:
    """Finds the files that match a question best, and quotes them."""

    spec = ToolSpec(
        name="search_and_read",
        description=(
            "Find the files of the workspace that fit a question best, and return their best passages word for "
            "word, with line numbers. Use it first when you do not know where something is; quote from it."
        ),
        args=SearchAndReadArgs,
        files=True,
        default=True,
    )

    def activity(self, args: SearchAndReadArgs) -> str:
        return f"Looking for {args.query}"

    async def __call__(self, args: SearchAndReadArgs, at: ToolContext) -> ToolOutput:
        root = need_files(at)
        found = await run_sync(search_passages, root, args.query, args.path, args.max_files, at.hide, check_cancelled)
        head = f"{len(found.files)} files fit best ({found.searched:,} searched){_not_searched(found)}{_spread(found)}"
        unread = _unread(found)
        if not found.files:
            return ToolOutput(f"{head}\n\nTry other words.", count=0, unread=unread)
        sources = tuple(Source(file.path) for file in found.files)
        text = "\n\n".join([head, *map(_quote, found.files)])
        return ToolOutput(text, count=len(sources), sources=sources, unread=unread)


def _not_searched(found: SearchResult) -> str:
    reasons = ", ".join(_reasons(found))
    return f"; not searched: {reasons}" if reasons else ""


def _unread(found: SearchResult) -> str:
    """Say what the limits of one search left out; what cannot be read at all, such as a picture, is no such thing."""
    if not (found.more or found.left_out.get(_BEYOND)):
        return ""
    return f"Files searched: {found.searched:,}. Not searched: {', '.join(_reasons(found))}."


def _reasons(found: SearchResult) -> list[str]:
    reasons = [f"{count:,} {why}" for why, count in found.left_out.items() if count]
    if found.more:
        reasons.append(f"all after the first {_MAX_ENTRIES:,} entries: give a path")
    return reasons


def _spread(found: SearchResult) -> str:
    words = [f"{word} {count:,}" for word, count in zip(found.words, found.spread, strict=True)]
    return f"\nOf {found.passages:,} passages have: {', '.join(words) or 'no word to look for'}"


def _quote(file: FileMatch) -> str:
    return f"## {shown(file.path)}" + "".join(f"\n\n{each.where}:\n{each.text}" for each in file.passages)


_BEYOND = "beyond the limits of one search: give a path"


@dataclass(frozen=True)
class SearchResult:
    """The files that match a query best, the best first, and the words that were searched for.

    `spread`: in how many passages each word is; `passages`: how many there are. `searched`: how many files were read;
    `left_out`: how many were not, by reason. `more`: there are more files than entries of a folder that are looked at.
    """

    files: tuple[FileMatch, ...]
    words: tuple[str, ...]
    spread: tuple[int, ...]
    passages: int
    searched: int
    left_out: Mapping[str, int]
    more: bool


def search_passages(
    root: Root, question: str, path: str, max_files: int, hide: Callable[[str], str], check: Callable[[], None]
) -> SearchResult:
    """Return the files whose passages match a question best. Blocks. Raises ToolFailed: the path cannot be searched."""
    query = Query(question)
    walk = WalkFilter(root, check)
    searched = 0
    left_out: Counter[str] = Counter()
    ranking, reader = PassageRanking(query), PassageReader(root)
    # If a folder has more than one search reads, large files are left out first, then those deep inside.
    entries = root.walk(path, limit=_MAX_ENTRIES, keep=walk)
    for entry in sorted(entries, key=lambda entry: (entry.size > _LARGE_BYTES, entry.name.count("/"))):
        check()
        if reader.size > _MAX_TOTAL_BYTES or (is_document(entry.name) and reader.documents >= _MAX_DOCUMENTS):
            left_out[_BEYOND] += 1
            continue
        found = reader.read(entry.name, entry.size)
        if isinstance(found, str):
            left_out[found] += 1
            continue
        searched += 1
        ranking.add(entry.name, found)
    files: list[FileMatch] = []
    for file in ranking.best(max_files):
        check()
        if (hidden := reader.hidden(file, query, hide)).passages:
            files.append(hidden)
    more = walk.asked >= _MAX_ENTRIES
    return SearchResult(tuple(files), query.words, tuple(ranking.spread), ranking.total, searched, left_out, more)
