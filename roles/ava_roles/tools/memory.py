"""`recall`: read the notes that people and orchestrators keep for subagents."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from pydantic import Field

from ava_roles.errors import ToolFailed
from ava_roles.memory import Memory, Note, best_notes
from ava_roles.sandbox.paths import shown
from ava_roles.threads import run_sync
from ava_roles.tool import ToolArgs, ToolContext, ToolOutput, ToolSpec, need_memory

NAME = "recall"
PAGE_CHARS = 10_000
TITLE_CHARS = 100
MAX_NOTES_QUOTED = 5
_MAX_NAMES = 20


class RecallArgs(ToolArgs):
    """Arguments of `recall`."""

    query: str = Field(default="", max_length=1_000, description="Words or a question: the passages that fit best.")
    name: str = Field(default="", max_length=200, description="A note's name: the whole note, or the query in it.")
    offset: int = Field(default=0, ge=0, description="Characters to skip.")


class Recall:
    """Lists, searches and reads the notes of the user whose run it is.

    A note is not a source: its author may have it from a page or from another subagent. So the tool returns no sources,
    and a quote that is only in a note counts as not found.
    """

    spec = ToolSpec(
        name=NAME,
        description="Read notes that people keep for subagents (facts, house rules); without arguments their list. "
        "A note is no source: quote what it points to.",
        args=RecallArgs,
        timeout_s=20,
        memory=True,
        common=True,
    )

    def activity(self, args: RecallArgs) -> str:
        """Return what the call looks for."""
        if args.query:
            return f"Looking in memory for {args.query}"
        return f"Recalling {shown(args.name)}" if args.name else "Looking at what is in memory"

    async def __call__(self, args: RecallArgs, at: ToolContext) -> ToolOutput:
        """List, search or read.

        Raises:
            ToolFailed: There is no memory, no such note, or nothing at the offset.
        """
        return await run_sync(_recall, need_memory(at), args, at.hide)


def _recall(memory: Memory, args: RecallArgs, hide: Callable[[str], str]) -> ToolOutput:
    if args.name:
        notes, ignored = [_find_note(memory, args.name)], 0
    else:
        found = memory.read()
        notes, ignored = list(found.notes), len(found.passed_over)
    if args.query:
        text, count = _passages(notes, args.query, hide)
    elif args.name:
        text, count = f"{_head(notes[0])}\n\n{hide(notes[0].text)}", 1
    else:
        text, count = _list(notes, ignored, hide), len(notes)
    if args.offset and args.offset >= len(text):
        raise ToolFailed(f"that has {len(text):,} characters; give a smaller offset than {args.offset:,}")
    end = args.offset + PAGE_CHARS
    more = f"\n[characters {args.offset} to {end} of {len(text)}; offset {end} goes on]" if end < len(text) else ""
    return ToolOutput(text[args.offset : end] + more, count=count)


def _find_note(memory: Memory, name: str) -> Note:
    """Return the note of this name.

    Raises:
        ToolFailed: There is none; names the existing ones.
    """
    note = memory.note(name.strip().removesuffix(".md"))
    if note is None:
        names = [each.name for each in memory.read().notes]
        rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        known = ", ".join(names[:_MAX_NAMES]) or "none"
        raise ToolFailed(f"there is no note {shown(name)[:80]!r}; there are: {known}{rest}")
    return note


def _list(notes: list[Note], ignored: int, hide: Callable[[str], str]) -> str:
    lines = [f"{len(notes)} {'note' if len(notes) == 1 else 'notes'}:" if notes else "There are no notes."]
    for note in notes:
        title = hide(note.first_line)
        lines.append(f"{_head(note)}: {title if len(title) <= TITLE_CHARS else title[: TITLE_CHARS - 1] + '…'}")
    if ignored:
        lines.append(f"[{ignored} in the folder cannot be read as notes; `ava memory` tells a person why]")
    return "\n".join(lines)


def _head(note: Note) -> str:
    return f"{note.name} ({datetime.fromtimestamp(note.changed_s, UTC):%Y-%m-%d}, {note.size:,} bytes)"


def _passages(notes: list[Note], query: str, hide: Callable[[str], str]) -> tuple[str, int]:
    files = best_notes(notes, query, MAX_NOTES_QUOTED, hide)
    if not files:
        return f"No passage fits; {len(notes)} looked through. Try other words, or list the notes.", 0
    parts = [f"{len(files)} of {len(notes)} fit best:"]
    for file in files:
        parts += [f"## {file.path}, {passage.where}\n{passage.text}" for passage in file.passages]
    return "\n\n".join(parts), len(files)
