"""`read_file`, and the tools that search the workspace for files, lines and passages.

`read_file` shows text as it is, and documents (`texts/extracted.py`) and CSV as text and tables.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import subprocess
import time
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import anyio
from anyio.abc import Process
from anyio.from_thread import check_cancelled
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import Field

from ava_roles.errors import ToolFailed
from ava_roles.sandbox.path_access import FolderEntry
from ava_roles.sandbox.paths import Root, shown
from ava_roles.sandbox.sandbox import child_environment
from ava_roles.texts import parser_process
from ava_roles.texts.child import HEAD_BYTES, message, took_too_long
from ava_roles.texts.child import command as child_command
from ava_roles.texts.encodings import decode
from ava_roles.texts.extracted import Extracted, Format, Wanted, format_of
from ava_roles.texts.passages import FileMatch, PassageRanking, Query, filler_words, language_of, split_lines
from ava_roles.texts.phrases import count_phrase
from ava_roles.texts.places import places_of
from ava_roles.texts.reading import MAX_ENTRIES, FolderReader, FolderTexts
from ava_roles.texts.store import TextStore
from ava_roles.texts.text_files import LineWindow, WalkFilter, patterns, take_lines, unpacked
from ava_roles.texts.web_page import read_csv
from ava_roles.threads import run_sync
from ava_roles.tool import Source, ToolArgs, ToolContext, ToolOutput, ToolSpec, need_files
from ava_roles.tools import grep

_MAX_BYTES = 20_000_000
_LISTED_ENTRIES = 500
_HEAD_CHARS = 600  # reserved for the lines around the text


class ReadFileArgs(ToolArgs):
    """Arguments of `read_file`."""

    path: str = Field(description="A file, or a folder to list; '.' is the workspace.")
    offset: int = Field(default=1, ge=1, description="First line (PDF: page).")
    limit: int | None = Field(default=None, ge=1, description="Most lines (PDF: pages).")
    # In the first line. It has no words and no default of its own: each is paid for with every run.
    column: int | None = Field(default=None, ge=1)


class ReadFile:
    """Reads a file, in pieces that fit an answer."""

    spec = ToolSpec(
        name="read_file",
        description=(
            "Read a file of the workspace, also a PDF, office file, email or notebook. "
            "Long files come in pieces: continue where the answer says."
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

        async def work(store: TextStore) -> ToolOutput:
            reader = FolderReader(root, store, at.run_id)
            return await run_sync(_read, root, args, room, at.hide, reader, places=places_of(at.user))

        return await at.texts.use(work)


class _FileRequest(NamedTuple):
    """A file that is read, and how to show it. `size`: of the file, in words. `room`: characters that the answer has.

    `sha256` is empty where not all of the file was read.
    """

    name: str
    sha256: str
    size: str
    args: ReadFileArgs
    room: int
    hide: Callable[[str], str]

    def source(self, title: str | None = None) -> Source:
        return Source(self.name, title, self.sha256)


def _read(root: Root, args: ReadFileArgs, room: int, hide: Callable[[str], str], reader: FolderReader) -> ToolOutput:
    name = root.find(args.path)
    if root.kind(name) == "folder":
        return _list_folder(name, root.entries(name), args)
    read_ns = time.time_ns()
    packed, is_longer, mark = root.read_marked(name, _MAX_BYTES)
    data, is_longer_unpacked = unpacked(packed, _MAX_BYTES)
    is_cut = is_longer_unpacked or is_longer
    size = count_phrase(len(data), "byte")
    if is_cut:
        size = f"more than {_MAX_BYTES:,} bytes, only the first are read"
    sha256 = "" if is_longer else hashlib.sha256(packed).hexdigest()
    request = _FileRequest(name, sha256, size, args, room, hide)
    kind = format_of(name, data)
    document: Extracted | None = None
    try:
        if kind is None:
            return _show_text(request, data, is_cut)
        if is_cut:
            raise ToolFailed(f"this {kind.name} has more than {_MAX_BYTES:,} bytes; ask for a smaller one")
        document = reader.document(name, kind, data, mark, read_ns)
        if kind.by_page:
            return _show_pages(request, kind, data, document)
        return _show_document(request, kind, document)
    except ToolFailed as error:
        text = f"{shown(name)}: {error}"
        is_unread = kind is not None and document is None
        raise ToolFailed(text, unread=hide(text) if is_unread else "") from None


def _show_text(request: _FileRequest, data: bytes, is_cut: bool) -> ToolOutput:
    decoded = decode(data, cut=is_cut)
    if decoded is None:
        head = f"{shown(request.name)}: binary ({request.size}), cannot be shown as text"
        return ToolOutput(head, success=False, count=0)
    is_table = PurePosixPath(request.name).suffix.lower() in (".csv", ".tsv")
    if is_table and request.args.column is None:
        what = "CSV as a table"
        text = read_csv(decoded.text, request.hide)
        last_line = text.rpartition("\n")[2]
        if last_line.startswith("("):  # it says what is not in the table
            what += "; with column 1 all of it as text"
    else:
        what = "text"
        text = request.hide(decoded.text)
    if decoded.note:
        what += f", {decoded.note}"
    return _show_lines(request, what, split_lines(text))


def _show_document(request: _FileRequest, kind: Format, document: Extracted) -> ToolOutput:
    lines = split_lines(request.hide(document.text()))
    sheet_line = _sheet_above(lines, request.args.offset)
    return _show_lines(request, kind.name, lines, request.hide(_describe_gaps(document)), sheet_line)


def _show_lines(
    request: _FileRequest, what: str, lines: Sequence[str], gaps: str = "", line_above: str = ""
) -> ToolOutput:
    """Return the lines that were asked for; `gaps`: what is not in them, `line_above`: what they belong to."""
    args = request.args
    column = args.column or 1
    if args.offset > max(len(lines), 1):
        raise ToolFailed(f"it has {count_phrase(len(lines), 'line')}; give an offset up to that")
    if lines:
        length = len(lines[args.offset - 1])
        if column > length + 1:
            raise ToolFailed(f"line {args.offset:,} has {count_phrase(length, 'character')}; give a column up to that")
    window = take_lines(lines, args.offset, args.limit, request.room, column)
    head = f"{shown(request.name)} ({what}, {request.size}): {_describe_window(lines, window, column)}"
    tail = _describe_rest(lines, window, args)
    text = f"{head}{gaps}\n\n{line_above}{window.text}{tail}"
    return ToolOutput(text, count=1, sources=(request.source(),))


def _describe_window(lines: Sequence[str], window: LineWindow, column: int) -> str:
    """Say which lines of a file are shown, from which column on, and which of them are cut."""
    if not lines:
        return "empty"
    sentence = f"lines {window.first:,} to {window.last:,} of {len(lines):,}"
    if column > 1:
        sentence += f", from column {column:,}"
    if window.cut:
        numbers = ", ".join(f"{line} (of {len(lines[line - 1]):,})" for line, _column in window.cut[:20])
        _line, end_column = window.cut[0]
        sentence += f"; cut: line {numbers}; each goes on with its number as offset and column {end_column}"
    return sentence


def _describe_rest(lines: Sequence[str], window: LineWindow, args: ReadFileArgs) -> str:
    """Say where a file goes on behind what is shown of it; empty if that is its end."""
    if window.cut:
        line, column = window.cut[-1]
        if line == window.last == window.first:
            return f"\n\n[goes on: offset {line}, column {column}]"
    if window.last >= len(lines):
        return ""
    as_text = "" if args.column is None else ", column 1"  # of a CSV, which is a table without
    return f"\n\n[goes on: offset {window.last + 1}{as_text}]"


def _show_pages(request: _FileRequest, kind: Format, data: bytes, document: Extracted) -> ToolOutput:
    first = request.args.offset
    if first > document.total:
        raise ToolFailed(f"it has {count_phrase(document.total, 'page')}; give an offset up to that")
    wanted = Wanted(first, request.args.limit, request.room)
    if first <= len(document.parts):
        pages = document.of_pages(wanted)
    else:  # the file has more than is kept of one
        pages = parser_process.read_document(kind, data, wanted)
    last = first + len(pages.parts) - 1
    head = f"{shown(request.name)} ({kind.name}, {request.size}): pages {first} to {last} of {document.total}"
    head += request.hide(_describe_gaps(pages))
    text = "\n\n".join(f"[{part.place}]\n{part.text}" for part in pages.hidden(request.hide))
    if last < document.total:
        text += f"\n\n[goes on: offset {last + 1}]"
    return ToolOutput(f"{head}\n\n{text}", count=1, sources=(request.source(document.title),))


def _sheet_above(lines: Sequence[str], first: int) -> str:
    """Return the line with the name of the sheet in which a piece of a workbook begins; empty if it has that itself."""
    above = lines[:first]
    if not above or above[-1].startswith("[sheet "):
        return ""
    for line in reversed(above):
        if line.startswith("[sheet "):
            return f"{line}\n"
    return ""


def _describe_gaps(document: Extracted) -> str:
    """Say what is in a file and not in its text."""
    gaps = list(document.missing)
    if document.end:
        gaps.append(f"{document.end}, which takes too long to read or is too much")
    return f"\nNot in the text: {'; '.join(gaps)}" if gaps else ""


_KIND_WORDS = {"folder": "/", "link": "  (link, not followed)", "other": "  (not a regular file)"}


def _list_folder(name: str, entries: list[FolderEntry], args: ReadFileArgs) -> ToolOutput:
    limit = _LISTED_ENTRIES
    if args.limit:
        limit = min(args.limit, _LISTED_ENTRIES)
    start = args.offset - 1
    listed = entries[start : start + limit]
    end = start + len(listed)
    folder = name or "."
    lines = [f"{shown(folder)} (folder): {count_phrase(len(entries), 'entry', 'entries')}", ""]
    for entry in listed:
        suffix = _KIND_WORDS.get(entry.kind) or f"  {count_phrase(entry.size, 'byte')}"
        lines.append(f"{shown(entry.name)}{suffix}")
    if end < len(entries):
        lines.append(f"\n[goes on: offset {end + 1}]")
    return ToolOutput("\n".join(lines), count=len(listed), sources=(Source(folder),))


_MAX_FILES = 200


class FindFilesArgs(ToolArgs):
    """Arguments of `find_files`."""

    pattern: str = Field(min_length=1, max_length=200, description="As in .gitignore, e.g. *.toml or src/**/test_*.py")
    path: str = Field(default="", description="Folder; the whole workspace if left out.")


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
        return await run_sync(_find_files, need_files(at), args, check_cancelled, places=places_of(at.user))


def _find_files(root: Root, args: FindFilesArgs, check: Callable[[], None]) -> ToolOutput:
    matching = patterns(unicodedata.normalize("NFC", args.pattern))
    if matching is None:
        raise ToolFailed(f"pattern {args.pattern!r} cannot be used; give one such as *.py or src/**/*.ts")
    walk = WalkFilter(root, check)
    entries = root.walk(root.find(args.path), limit=MAX_ENTRIES, keep=walk)
    matches = (entry for entry in entries if matching.match_file(unicodedata.normalize("NFC", entry.name)))
    lines = [f"{shown(entry.name)} ({count_phrase(entry.size, 'byte')})" for entry in islice(matches, _MAX_FILES)]
    head = count_phrase(len(lines), "file matches", "files match")
    if next(matches, None) is not None:
        head += "; there are more: narrow the pattern or the path"
    elif walk.seen >= MAX_ENTRIES:
        head += f"; only the first {MAX_ENTRIES:,} entries were looked at: give a path"
    return ToolOutput("\n".join([head, *lines]), count=len(lines))


class SearchArgs(ToolArgs):
    """Arguments of `search_codebase`."""

    query: str = Field(min_length=1, max_length=500, description="The text or expression.")
    path: str = Field(default="", description="Folder or file; the whole workspace if left out.")
    regex: bool = Field(default=False, description="query is a Python regular expression.")
    glob: str | None = Field(default=None, description="Only files that match, e.g. *.py or src/**/*.ts")
    max_results: int = Field(default=50, ge=1, le=200)


class SearchCodebase:
    """Finds lines that match."""

    spec = ToolSpec(
        name="search_codebase",
        description=(
            "Find the lines of the workspace's files that contain a text (any case) or match a regular "
            "expression. Returns path:line: text. Use it when you know the word; for a question, use "
            "search_and_read. Skips what .gitignore names, binaries and files over 10 MB."
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
            result = await _in_child(root, query, at.run_id, at.hide)
        else:
            result = await run_sync(grep.search, root, query, at.hide, check_cancelled, places=places_of(at.user))
        lines = [f"{shown(path)}:{number}: {line}" for path, number, line in result.hits]
        paths = dict.fromkeys(path for path, _, _ in result.hits)
        files = tuple(Source(path, sha256=result.hashes.get(path, "")) for path in paths)
        matches = count_phrase(len(lines), "line matches", "lines match")
        head = f"{matches} in {count_phrase(len(files), 'file')} ({result.files:,} searched)"
        if result.more:
            head += "; there are more: narrow the query, the path or the glob"
        if result.skipped:
            head += f"; {count_phrase(result.skipped, 'binary, large or unreadable file')} skipped"
        if result.cut:
            head += f"; only the first {grep.MAX_ENTRIES:,} entries were searched: give a path"
        head += _list_files(_NOT_UTF8, result.notes)
        return ToolOutput("\n".join([head, "", *lines]), count=len(lines), sources=files)


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
    if answer is None:
        if took_too_long(code, errors):
            raise _too_slow()
        last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
        reason = last_line or f"exit code {code}"
        raise ToolFailed(f"the search failed ({reason[:200]}); search for a literal text instead")
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
    stream = BufferedByteReceiveStream(child.stdout)

    def pack(text: str) -> bytes:
        return message(hide(text))

    try:
        await child.stdin.send(message(order))
        while True:
            size = int.from_bytes(await stream.receive_exactly(HEAD_BYTES))
            answer: dict[str, Any] = json.loads(await stream.receive_exactly(size))
            if "hide" not in answer:
                return answer
            seconds_left = limit.deadline - anyio.current_time()
            limit.deadline = math.inf
            hidden = await run_sync(pack, str(answer["hide"]))
            limit.deadline = anyio.current_time() + seconds_left
            await child.stdin.send(hidden)
    except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return None


def _too_slow() -> ToolFailed:
    return ToolFailed(
        f"the expression took longer than {grep.CHILD_SECONDS} s; make it simpler (no nested repetition), "
        "search a smaller path, or search for a literal text"
    )


SHARE_OF_TIME = 0.5
"""How much of the time that its run has left one search may take."""
SEARCH_S = 4 * 3_600.0
"""Never reached: a search ends itself, after half of the time that its run has left."""


class SearchAndReadArgs(ToolArgs):
    """Arguments of `search_and_read`."""

    query: str = Field(min_length=1, max_length=1_000, description="Words or a question.")
    max_files: int = Field(default=5, ge=1, le=20)
    path: str = Field(default="", description="Folder; the whole workspace if left out.")


class SearchAndRead:
    """Finds the files that match a question best, and quotes them."""

    spec = ToolSpec(
        name="search_and_read",
        description=(
            "Find the passages of the files that fit a question best, word for word (table rows with heads), with line "
            "numbers. "
            "Use it first when you do not know where something is; quote from it."
        ),
        args=SearchAndReadArgs,
        files=True,
        default=True,
        timeout_s=SEARCH_S,
    )

    def activity(self, args: SearchAndReadArgs) -> str:
        return f"Looking for {args.query}"

    async def __call__(self, args: SearchAndReadArgs, at: ToolContext) -> ToolOutput:
        return await at.texts.use(lambda store: self._search(args, at, store))

    async def _search(self, args: SearchAndReadArgs, at: ToolContext, store: TextStore) -> ToolOutput:
        query = Query(args.query)
        reader = FolderReader(need_files(at), store, at.run_id, at.say, user=at.user)

        async def search() -> tuple[FolderTexts, list[FileMatch], PassageRanking]:
            texts = await reader.read(args.path, query, at.seconds_left() * SHARE_OF_TIME)
            best = await run_sync(reader.best, texts, query, args.max_files, at.hide, places=places_of(at.user))
            return texts, *best

        texts, files, ranking = await search()
        if await run_sync(reader.note_removed, texts):
            texts, files, ranking = await search()
            await run_sync(reader.note_removed, texts)
        head = f"{count_phrase(len(files), 'file fits', 'files fit')} best ({texts.searched:,} searched)"
        reasons = ", ".join(_reasons(texts))
        if reasons:
            head += f"; not searched: {reasons}"
        head += _describe_spread(query, ranking)
        head += await run_sync(_describe_languages, args.query, reader, texts, places=places_of(at.user))
        head += at.hide(_list_files("Cannot be read", texts.unreadable))
        gaps = _list_files("Read, but not to the end", texts.unread)
        gaps += _list_files("Not in the text", texts.missing)
        head += at.hide(gaps)
        unread = at.hide(_describe_unread(texts))
        is_little = bool(unread) and _is_little(texts, args.query)
        if not files:
            text = f"{head}\n\nTry other words."
            return ToolOutput(text, count=0, unread=unread, unread_little=is_little)
        sources = tuple(Source(file.path, sha256=file.sha256) for file in files)
        head += _list_files(_NOT_UTF8, {file.path: file.note for file in files})
        text = "\n\n".join([head, *map(_quote, files)])
        return ToolOutput(text, count=len(sources), sources=sources, unread=unread, unread_little=is_little)


_LISTED_FILES = 5
_LISTED_CHARS = 300
_UNREAD_LISTED = 20
"""The most files that are named as unread; the rest are counted."""
_LITTLE_SHARE = 0.1
_WORD = re.compile(r"[^\W_]+")
_NOT_UTF8 = "Not in UTF-8"


def _list_files(heading: str, sentences: Mapping[str, str]) -> str:
    """Return a heading and a line for each file with a sentence, at most five, then how many more there are.

    `sentences` has them by path; files with an empty one are left out. Without any sentence the text is empty.
    """
    lines = [f"\n- {shown(path)}: {sentence}" for path, sentence in sentences.items() if sentence]
    if not lines:
        return ""
    text = f"\n{heading}:"
    for line in lines[:_LISTED_FILES]:
        if len(line) > _LISTED_CHARS:
            line = line[: _LISTED_CHARS - 1] + "…"
        text += line
    if len(lines) > _LISTED_FILES:
        text += f"\n- and {count_phrase(len(lines) - _LISTED_FILES, 'other file')}"
    return text


def _describe_unread(texts: FolderTexts) -> str:
    """Say how many files were not read although they might have the answer; empty if there are none.

    A line for each of some files follows, with the reason and what to do. Pictures and programs do not count: they have
    no text.
    """
    if texts.is_whole:
        return ""
    lines = [f"Files searched: {texts.searched:,}. Not searched: {', '.join(_reasons(texts))}."]
    reasons = texts.reasons_unread()
    for path in islice(reasons, _UNREAD_LISTED):
        name = shown(path)
        if len(name) > _LISTED_CHARS:
            name = "…" + name[1 - _LISTED_CHARS :]
        lines.append(f"{name}: {reasons[path]}")
    if len(reasons) > _UNREAD_LISTED:
        lines.append(f"and {count_phrase(len(reasons) - _UNREAD_LISTED, 'other file')}")
    return "\n".join(lines)


def _is_little(texts: FolderTexts, question: str) -> bool:
    """Tell whether what was not read is at most a tenth of the files with text, and none that the question names."""
    if texts.more:
        return False
    reasons = texts.reasons_unread()
    waiting = [entry.name for entry in texts.waiting]
    unread = [*reasons, *waiting]
    not_whole = len(texts.unread)  # these were searched, too
    total = texts.searched + len(unread) - not_whole
    if len(unread) > total * _LITTLE_SHARE:
        return False
    words = set(_WORD.findall(question.casefold()))
    return not any(_is_named(path, words) for path in unread)


def _is_named(path: str, words: Collection[str]) -> bool:
    """Tell whether a question with these words names a file: it has all words of the name, numbers included."""
    in_name = set(_WORD.findall(PurePosixPath(path).stem.casefold()))
    return bool(in_name - filler_words()) and in_name.issubset(words)


def _reasons(texts: FolderTexts) -> list[str]:
    """Return how many files were not searched, by the reason."""
    reasons = texts.reasons_left_out()
    if texts.unread:
        reasons.append(f"the end of {count_phrase(len(texts.unread), 'file')}")
    if texts.more:
        reasons.append(f"all after the first {MAX_ENTRIES:,} entries: give a path")
    return reasons


def _describe_spread(query: Query, ranking: PassageRanking) -> str:
    """Return how many passages have each word of the question."""
    counts = [f"{word} {count:,}" for word, count in zip(query.words, ranking.spread, strict=True)]
    words = ", ".join(counts) or "no word to look for"
    return f"\nOf {count_phrase(ranking.total, 'passage')} have: {words}"


def _describe_languages(question: str, reader: FolderReader, texts: FolderTexts) -> str:
    """Say that a question is in another language than the files; empty where it is not, or not clearly. Blocks."""
    asked = language_of(question)
    if asked is None:
        return ""
    written, every = reader.language(texts)
    if written is None or asked in every:
        return ""
    return f"\nThe question seems to be in {asked.capitalize()}, the files in {written.capitalize()}."


def _quote(file: FileMatch) -> str:
    passages = [f"\n\n{passage.where}:\n{passage.text}" for passage in file.passages]
    return f"## {shown(file.path)}{''.join(passages)}"
