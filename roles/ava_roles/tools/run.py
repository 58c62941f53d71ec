"""The tools for what belongs to a run: artifacts and memory notes; scratchpad, earlier results and questions.

The latter need the log, so only their specifications are here; `ava_server.runs.turn.run_tools` implements them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from ava_roles.errors import AccessRefused, ToolFailed
from ava_roles.memory import DEVICES, Memory, Note, best_notes
from ava_roles.sandbox.paths import Root, shown
from ava_roles.texts.phrases import count_phrase
from ava_roles.threads import run_sync
from ava_roles.tool import ToolArgs, ToolContext, ToolOutput, ToolSpec, need_artifacts, need_memory
from ava_roles.wrap import list_names

NOTE_CHARS = 4_000


class ScratchpadArgs(ToolArgs):
    """Arguments of `scratchpad`."""

    note: str = Field(default="", max_length=NOTE_CHARS, description="A note to keep; leave it out to read all notes.")


SCRATCHPAD = ToolSpec(
    name="scratchpad",
    description="Keep a note, or read your notes. Notes stay when older tool results are left out.",
    args=ScratchpadArgs,
    timeout_s=5,
    common=True,
)


class ReadToolResultArgs(ToolArgs):
    """Arguments of `read_tool_result`."""

    id: str = Field(description="The R-… that is shown in place of the result.")
    offset: int = Field(default=0, ge=0, description="Characters to skip.")


READ_TOOL_RESULT = ToolSpec(
    name="read_tool_result",
    description="Read an earlier tool result again, or continue one that was cut.",
    args=ReadToolResultArgs,
    timeout_s=10,
    common=True,
)


class ReadSubagentResultArgs(ToolArgs):
    """Arguments of `read_subagent_result`."""

    id: str = Field(description="S-… of an earlier subagent, as the task context lists it.")
    offset: int = Field(default=0, ge=0, description="Characters to skip.")


READ_SUBAGENT_RESULT = ToolSpec(
    name="read_subagent_result",
    description="Read the result of an earlier subagent that the task context lists. It is not a source: before you"
    " quote something that it reports, read the page or file that it names.",
    args=ReadSubagentResultArgs,
    timeout_s=10,
    results=True,
    common=True,
)

QUESTION_CHARS = 1_000
OPTION_CHARS = 100
MOST_OPTIONS = 6


class AskArgs(ToolArgs):
    """Arguments of `ask`."""

    question: str = Field(
        min_length=1, max_length=QUESTION_CHARS, description="The question, with what the person must know to answer."
    )
    options: tuple[Annotated[str, Field(min_length=1, max_length=OPTION_CHARS)], ...] = Field(
        default=(), max_length=MOST_OPTIONS, description="Answers to choose from, where they are few."
    )


ASK = ToolSpec(
    name="ask",
    description="Ask the person who started you, and wait for the answer. Only for what you cannot find out and without"
    " which the result would be useless; the answer may not come.",
    args=AskArgs,
    timeout_s=10,
    common=True,
)


class ReadSkillArgs(ToolArgs):
    """Arguments of `read_skill`."""

    name: str = Field(description="A skill of yours.")
    file: str = Field(default="", max_length=500, description="A file of it; without one, what the skill says.")
    offset: int = Field(default=0, ge=0, description="Characters to skip.")


READ_SKILL = ToolSpec(
    name="read_skill",
    description="Read a skill: how to do a kind of work. Where you run commands, they see its files.",
    args=ReadSkillArgs,
    timeout_s=90,  # it may have to make the folder of the commands
)

RUN_SPECS = (SCRATCHPAD, READ_TOOL_RESULT, ASK, READ_SKILL, READ_SUBAGENT_RESULT)


_MAX_BYTES = 1_000_000
_MAX_FILES = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,98}[A-Za-z0-9]|[A-Za-z0-9]")


class SaveArtifactArgs(ToolArgs):
    """Arguments of `save_artifact`."""

    name: str = Field(description="File name without folders, e.g. prices.csv; letters, digits, dot, - and _")
    content: str = Field(description="The whole content, at most 1 MB.")


class SaveArtifact:
    """Writes a file into the run's artifact folder."""

    spec = ToolSpec(
        name="save_artifact",
        description=(
            "Save a text file (report, table, data) that is handed over with the result: at most 20 files of "
            "1 MB. Saving under the same name replaces the file. Use it for what is too long for the result itself."
        ),
        args=SaveArtifactArgs,
        read_only=False,
        artifacts=True,
        writes=True,
        common=True,
    )

    def activity(self, args: SaveArtifactArgs) -> str:
        return f"Saving {shown(args.name)}"

    async def __call__(self, args: SaveArtifactArgs, at: ToolContext) -> ToolOutput:
        folder = need_artifacts(at)
        return await run_sync(_save, folder, args, at.hide, abandon_on_cancel=False)


def is_artifact_name(name: str) -> bool:
    """Tell whether an artifact can have this name: a plain file name that every system accepts."""
    return _NAME.fullmatch(name) is not None and DEVICES.fullmatch(name) is None


def _save(folder: Root, args: SaveArtifactArgs, hide: Callable[[str], str]) -> ToolOutput:
    if hide(args.name) != args.name:
        raise AccessRefused(f"{shown(args.name)!r} contains what looks like a key; give another name")
    if not is_artifact_name(args.name):
        raise AccessRefused(
            f"{shown(args.name)!r} cannot be an artifact's name; give a plain file name such as prices.csv"
        )
    try:
        content = hide(args.content)
        data = content.encode()
    except UnicodeEncodeError:
        raise ToolFailed("the content contains half characters (lone surrogates); leave them out") from None
    if len(data) > _MAX_BYTES:
        raise ToolFailed(f"the content has {len(data):,} bytes, more than {_MAX_BYTES:,}; split or shorten it")
    existing = [entry.name for entry in folder.entries()]
    for name in existing:
        if name != args.name and name.lower() == args.name.lower():
            raise ToolFailed(f"{name} already exists, and some systems take the two names for the same; choose another")
    if args.name not in existing and len(existing) >= _MAX_FILES:
        raise ToolFailed(f"there are {_MAX_FILES} artifacts already; put more into one, or replace one by its name")
    folder.replace(args.name, data)
    digest = hashlib.sha256(data).hexdigest()
    note = ""
    if content != args.content:
        note = "; what looks like a key in it was replaced"
    return ToolOutput(f"saved {args.name}: {count_phrase(len(data), 'byte')}, sha256 {digest}{note}", count=1)


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
        description="Read notes that people keep for subagents (facts, house rules); without arguments, list them. "
        "A note is not a source: quote what it points to.",
        args=RecallArgs,
        timeout_s=20,
        memory=True,
        common=True,
    )

    def activity(self, args: RecallArgs) -> str:
        if args.query:
            return f"Looking in memory for {args.query}"
        return f"Recalling {shown(args.name)}" if args.name else "Looking at what is in memory"

    async def __call__(self, args: RecallArgs, at: ToolContext) -> ToolOutput:
        return await run_sync(_recall, need_memory(at), args, at.hide)


def _recall(memory: Memory, args: RecallArgs, hide: Callable[[str], str]) -> ToolOutput:
    unreadable = 0
    if args.name:
        notes = [_find_note(memory, args.name)]
    else:
        content = memory.read()
        notes = list(content.notes)
        unreadable = len(content.passed_over)
    if args.query:
        text, count = _quote_passages(notes, args.query, hide)
    elif args.name:
        text = f"{_head(notes[0])}\n\n{hide(notes[0].text)}"
        count = 1
    else:
        text = _list_notes(notes, unreadable, hide)
        count = len(notes)
    if args.offset and args.offset >= len(text):
        raise ToolFailed(f"that has {count_phrase(len(text), 'character')}; give a smaller offset than {args.offset:,}")
    end = args.offset + PAGE_CHARS
    page = text[args.offset : end]
    if end < len(text):
        page += f"\n[characters {args.offset} to {end} of {len(text)}; offset {end} goes on]"
    return ToolOutput(page, count=count)


def _find_note(memory: Memory, name: str) -> Note:
    note = memory.note(name.strip().removesuffix(".md"))
    if note is None:
        known = list_names([each.name for each in memory.read().notes], _MAX_NAMES) or "none"
        raise ToolFailed(f"there is no note {shown(name)[:80]!r}; there are: {known}")
    return note


def _list_notes(notes: list[Note], unreadable: int, hide: Callable[[str], str]) -> str:
    heading = "There are no notes."
    if notes:
        heading = f"{_count(notes)}:"
    lines = [heading]
    for note in notes:
        title = hide(note.first_line)
        if len(title) > TITLE_CHARS:
            title = title[: TITLE_CHARS - 1] + "…"
        lines.append(f"{_head(note)}: {title}")
    if unreadable:
        lines.append(f"[{unreadable} in the folder cannot be read as notes; `ava memory` tells a person why]")
    return "\n".join(lines)


def _count(notes: list[Note]) -> str:
    return count_phrase(len(notes), "note")


def _head(note: Note) -> str:
    return f"{note.name} ({datetime.fromtimestamp(note.changed_s, UTC):%Y-%m-%d}, {count_phrase(note.size, 'byte')})"


def _quote_passages(notes: list[Note], query: str, hide: Callable[[str], str]) -> tuple[str, int]:
    """Return the passages that fit best, and how many notes they are of."""
    files = best_notes(notes, query, MAX_NOTES_QUOTED, hide)
    if not files:
        return f"No passage fits in {_count(notes)}. Try other words, or list the notes.", 0
    parts = [f"{len(files)} of {len(notes)} fit best:"]
    for file in files:
        parts += [f"## {file.path}, {passage.where}\n{passage.text}" for passage in file.passages]
    return "\n\n".join(parts), len(files)
