"""`read_file`: text as it is, and PDF, DOCX, XLSX and CSV as text and tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

from pydantic import Field

from ava_roles.errors import ToolFailed
from ava_roles.passages import split_lines
from ava_roles.sandbox.path_access import Entry
from ava_roles.sandbox.paths import Root, shown
from ava_roles.threads import run_sync
from ava_roles.tool import Source, ToolArgs, ToolContext, ToolOutput, ToolSpec, need_files
from ava_roles.tools.pages import hide_pages, is_pdf
from ava_roles.tools.parser_process import read_docx, read_pdf, read_xlsx
from ava_roles.tools.tables import read_csv
from ava_roles.tools.text_files import decode_text, read_unpacked, take_lines

_MAX_BYTES = 20_000_000
_MAX_ENTRIES = 500
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


def _list_folder(name: str, entries: list[Entry], args: ReadFileArgs) -> ToolOutput:
    first = args.offset - 1
    part = entries[first : first + min(args.limit or _MAX_ENTRIES, _MAX_ENTRIES)]
    lines = [f"{shown(name) or '.'} (folder): {len(entries):,} entries", ""]
    for entry in part:
        what = {"folder": "/", "link": "  (link, not followed)", "other": "  (not a regular file)"}.get(entry.kind)
        lines.append(f"{shown(entry.name)}{what or f'  {entry.size:,} bytes'}")
    if first + len(part) < len(entries):
        lines.append(f"\n[goes on: offset {first + len(part) + 1}]")
    return ToolOutput("\n".join(lines), count=len(part), sources=(Source(name or "."),))
