"""`edit_file` and `write_file`: files of a run's own worktree, within what it may change."""

from __future__ import annotations

import re

from pydantic import Field

from ava_roles.errors import NotThere, ToolFailed
from ava_roles.sandbox.paths import shown
from ava_roles.tools.base import Place, ToolArgs, ToolOutput, ToolSpec
from ava_roles.tools.changes import Region, change, counted, shown_change
from ava_roles.tools.document import Document, NoDocument, with_plain_ends
from ava_roles.tools.nearest import nearest
from ava_roles.tools.needs import need_edits
from ava_roles.tools.threads import run_sync
from ava_roles.worktree.edits import BYTES_MAX, Edits

EDIT_FILE, WRITE_FILE = "edit_file", "write_file"
_LISTED = 20
_REDACTED = re.compile(r"\[redacted:[^\]\n]{1,100}\]")


class EditFileArgs(ToolArgs):
    """Arguments of `edit_file`."""

    path: str = Field(description="File, relative to the worktree.")
    old: str = Field(description="The text to be replaced, exactly as the file has it, white space included.")
    new: str = Field(description="What comes in its place; empty removes it.")
    replace_all: bool = Field(default=False, description="Replace every place, not the only one.")


class EditFile:
    """Replaces one text in a file by another."""

    spec = ToolSpec(
        name=EDIT_FILE,
        description=(
            "Replace a text in a file of your worktree. `old` must stand in it exactly once: quote enough lines around"
            " it, or set replace_all. Where it does not, the nearest places are shown. Line endings and permissions of"
            " the file are kept."
        ),
        args=EditFileArgs,
        read_only=False,
        files=True,
        writes=True,
        edits=True,
    )

    def activity(self, args: EditFileArgs) -> str:
        """Return `Editing PATH`."""
        return f"Editing {shown(args.path)}"

    async def __call__(self, args: EditFileArgs, at: Place) -> ToolOutput:
        """Edit it."""
        return await run_sync(_edit, need_edits(at), args, abandon_on_cancel=False)


class WriteFileArgs(ToolArgs):
    """Arguments of `write_file`."""

    path: str = Field(description="File, relative to the worktree; missing folders are made.")
    content: str = Field(description="The whole content.")


class WriteFile:
    """Writes a whole file."""

    spec = ToolSpec(
        name=WRITE_FILE,
        description=(
            "Write a whole file in your worktree: a new one, or in the place of what is there. To change a part of a"
            " file use edit_file."
        ),
        args=WriteFileArgs,
        read_only=False,
        files=True,
        writes=True,
        edits=True,
    )

    def activity(self, args: WriteFileArgs) -> str:
        """Return `Writing PATH`."""
        return f"Writing {shown(args.path)}"

    async def __call__(self, args: WriteFileArgs, at: Place) -> ToolOutput:
        """Write it."""
        return await run_sync(_write, need_edits(at), args, abandon_on_cancel=False)


def _edit(edits: Edits, args: EditFileArgs) -> ToolOutput:
    name = edits.allowed(args.path)
    old, new = with_plain_ends(args.old), with_plain_ends(args.new)
    _refuse_unfit(new)
    if not old:
        raise ToolFailed("old is empty; quote the text to be replaced, or write a new file with write_file")
    if old == new:
        raise ToolFailed("old and new are the same (line endings are kept as the file has them); nothing was changed")
    document = _document(name, edits.read(name))
    _refuse_hidden(new, old, name)
    starts = document.places(old)
    if not starts:
        raise ToolFailed(_not_found(name, document.text, old))
    if len(starts) > 1 and not args.replace_all:
        raise ToolFailed(_several(name, document, starts))
    if args.replace_all:
        starts = document.apart(old)
        if len(starts) > Document.MOST_REPLACED:
            raise ToolFailed(f"old stands in {shown(name)} in more than {Document.MOST_REPLACED:,} places; quote more")
    size = len(document.text) + len(starts) * (len(new) - len(old))
    if size > BYTES_MAX:
        raise ToolFailed(f"{shown(name)} would have {size:,} characters, more than {BYTES_MAX:,}; write less")
    edited, regions = document.replaced(starts, old, new)
    edits.write(name, edited.data())
    places = "1 place" if len(starts) == 1 else f"{len(starts):,} places"
    head = f"edited {shown(name)}: {places}, {counted(document.lines, edited.lines, regions)}"
    text = shown_change(document.lines, edited.lines, regions) + _at_the_end(document, edited)
    return ToolOutput(f"{head}\n{text}", count=len(starts))


def _write(edits: Edits, args: WriteFileArgs) -> ToolOutput:
    name = edits.allowed(args.path)
    _refuse_unfit(args.content)
    try:
        there = edits.read(name)
    except NotThere:
        there = None
    _refuse_hidden(args.content, (there or b"").decode("utf-8", "replace"), name)
    data = args.content.encode()
    if there is None:
        edits.write(name, data)
        lines = len(Document.of(data).lines)
        return ToolOutput(f"wrote {shown(name)}: a new file, {_lines(lines)}, {_bytes(data)}", count=1)
    try:
        before = Document.of(there)
    except NoDocument as why:
        edits.write(name, data)
        lines = len(Document.of(data).lines)
        replaced = f"in the place of {_bytes(there)} ({why})"
        return ToolOutput(f"wrote {shown(name)}: {_lines(lines)}, {_bytes(data)}, {replaced}", count=1)
    after = Document.of(data).like(before)
    if after.data() == there:
        return ToolOutput(f"{shown(name)} has this very content already; nothing was written", count=0)
    edits.write(name, after.data())
    whole = Region(0, len(before.lines), 0, len(after.lines))
    head = f"wrote {shown(name)}: {_lines(len(after.lines))} in the place of {_lines(len(before.lines))}"
    if after.data() != data:
        head += "; the file's line endings and mark at its beginning are kept"
    changed = change(before.lines, after.lines, whole)
    counts = counted(before.lines, after.lines, (whole,))
    return ToolOutput(f"{head}; {counts}\n{changed}{_at_the_end(before, after)}", count=1)


def _document(name: str, data: bytes) -> Document:
    try:
        return Document.of(data)
    except NoDocument as why:
        raise ToolFailed(
            f"{shown(name)} cannot be edited: {why}; leave it as it is, or replace it as a whole"
        ) from None


def _refuse_unfit(text: str) -> None:
    """Refuse what no text file holds."""
    if "\0" in text:
        raise ToolFailed("a zero byte would make the file binary; write it as an escape of the language")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ToolFailed("the text contains half characters (lone surrogates); leave them out") from None


def _refuse_hidden(text: str, before: str, name: str) -> None:
    """Refuse to put what stands for a hidden value into the place of the value."""
    for mark in set(_REDACTED.findall(text)):
        if text.count(mark) > before.count(mark):
            raise ToolFailed(
                f"{mark} is no text of {shown(name)}: it stands for something that is hidden from you, and would take"
                " its place; edit only the lines around it"
            )


def _not_found(name: str, text: str, old: str) -> str:
    found = nearest(text, old)
    if not found:
        return f"old does not stand in {shown(name)}, nor anything like it; read the file, then quote it exactly"
    parts = [f"old does not stand in {shown(name)}. Nearest:", *found, "Quote it exactly as the file has it."]
    return "\n\n".join(parts)


def _several(name: str, document: Document, starts: list[int]) -> str:
    numbers = document.line_numbers(starts)
    listed = ", ".join(f"{number:,}" for number in numbers[:_LISTED]) + (", …" if len(numbers) > _LISTED else "")
    count = f"{len(starts)} places" if len(starts) < Document.MOST_PLACES else f"{len(starts):,} places or more"
    return (
        f"old stands in {shown(name)} in {count}, beginning in lines {listed}; quote more lines around the one that you"
        " mean, or set replace_all"
    )


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


def _bytes(data: bytes) -> str:
    return "1 byte" if len(data) == 1 else f"{len(data):,} bytes"


def _at_the_end(before: Document, after: Document) -> str:
    """Say where the last line has lost its end, or got one."""
    if not after.text or before.ends_in_line_break == after.ends_in_line_break:
        return ""
    return "\n[the file now ends {} a line break]".format("with" if after.ends_in_line_break else "without")
