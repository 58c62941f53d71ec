"""`edit_file` and `write_file`: files of a run's own worktree, within what it may change."""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import groupby

from pydantic import Field

from ava_roles.errors import NotThere, ToolFailed
from ava_roles.sandbox.paths import shown
from ava_roles.threads import run_sync
from ava_roles.tool import ToolArgs, ToolContext, ToolOutput, ToolSpec, need_edits
from ava_roles.tools.document import (
    Document,
    NotEditable,
    Region,
    describe_counts,
    normalize_line_ends,
    numbered_line,
    render_change,
    render_changes,
)
from ava_roles.worktree.edits import BYTES_MAX, Edits
from ava_roles.wrap import INVISIBLE

_PLACES = 3
_COMPARED = 12
_LIKE = 0.6
_BEHIND = 0.25
_LINES = 60
_TOKENS = 300
_LINE_CHARS = 400
_VOTES = 400
_SHOWN = 10
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
_LOOKALIKES = str.maketrans("\u2018\u2019\u201c\u201d\u2010\u2011\u2012\u2013\u2014\u2212", "''\"\"------")


def nearest(text: str, old: str) -> list[str]:
    """Return up to three places of a text that are like another, the likest first: each with its lines, as they are."""
    lines = text.split("\n")
    wanted = _without_blank_ends(old.split("\n"))[:_LINES]
    tokens = [_tokens(line) for line in wanted]
    whole = [token for line in tokens for token in line][:_TOKENS]
    if not whole:
        return []
    matcher: SequenceMatcher[str] = SequenceMatcher(autojunk=False)
    matcher.set_seq2(whole)
    found: list[tuple[float, int]] = []
    for start in _candidates(lines, tokens):
        here = [token for line in _window(lines, start, wanted) for token in _tokens(line)][:_TOKENS]
        matcher.set_seq1(here)
        same = sum(block.size for block in matcher.get_matching_blocks())
        like = 0.75 * same / len(whole) + 0.5 * same / (len(whole) + len(here))  # it may be a part of a long line
        if like >= _LIKE:
            found.append((like, start))
    found.sort(key=lambda each: (-each[0], each[1]))
    return [_told(lines, start, wanted) for like, start in found[:_PLACES] if like >= found[0][0] - _BEHIND]


def _candidates(lines: Sequence[str], wanted: Sequence[Sequence[str]]) -> list[int]:
    """Return the lines at which the text may begin, none close to another."""
    stands: dict[str, list[int]] = {token: [] for line in wanted for token in line}
    for number, line in enumerate(lines):
        for token in set(_tokens(line)) & stands.keys():
            stands[token].append(number)
    votes: dict[int, float] = defaultdict(float)
    for offset, said in enumerate(wanted):
        for token in set(said) & stands.keys():
            weight = len(token) / max(1, len(stands[token]))
            for number in stands[token][:_VOTES]:
                votes[max(0, number - offset)] += weight
    chosen: list[int] = []
    apart = max(1, len(wanted) // 2)
    for start in heapq.nlargest(_COMPARED * 10, votes, key=lambda start: (votes[start], -start)):
        if len(chosen) < _COMPARED and all(abs(start - other) >= apart for other in chosen):
            chosen.append(start)
    return chosen


def _window(lines: Sequence[str], start: int, wanted: Sequence[str]) -> list[str]:
    """Return as many lines as the text has, blank ones not counted."""
    missing = sum(bool(line.strip()) for line in wanted)
    here: list[str] = []
    for line in lines[start : start + 2 * len(wanted) + 10]:
        if not missing:
            break
        here.append(line)
        missing -= bool(line.strip())
    return here


def _told(lines: Sequence[str], start: int, wanted: Sequence[str]) -> str:
    here = _window(lines, start, wanted)
    first, why = _difference(here, wanted, start)
    head = f"lines {start + 1:,} to {start + len(here):,}" if len(here) > 1 else f"line {start + 1:,}"
    begin = max(0, min(first - 3, len(here) - _SHOWN))
    shown = [numbered_line(" ", start + at, here[at]) for at in range(begin, min(begin + _SHOWN, len(here)))]
    if begin or len(here) > _SHOWN:
        head += f", of which {len(shown)} are shown"
    return "\n".join([f"{head}{f' ({why})' if why else ''}:", *shown])


def _difference(here: Sequence[str], wanted: Sequence[str], start: int) -> tuple[int, str]:
    """Return the first line that differs, counted from the place, and how, where that can be named."""
    if _squeezed("\n".join(here)) == _squeezed("\n".join(wanted)):
        only = "only white space differs: "
        if [bool(line.strip()) for line in here] != [bool(line.strip()) for line in wanted]:
            return 0, f"{only}blank lines, or where lines end"
    else:
        only = ""
    for at, (line, other) in enumerate(zip(here, wanted, strict=False)):
        if line != other:
            return at, only + _how(line, other, f"line {start + at + 1:,}")
    return 0, "the lines are the same: what differs is before or behind them, blank lines too"


def _how(line: str, other: str, name: str) -> str:
    """Say how a line of the file differs from a line of the text."""
    if line.strip() == other.strip():
        if line.rstrip() != other.rstrip():
            return f"{name} begins with {_blanks(_lead(line))}, in old with {_blanks(_lead(other))}"
        return f"{name} ends in {_blanks(_tail(line))}, in old in {_blanks(_tail(other))}"
    if _squeezed(line) == _squeezed(other):
        return f"white space within {name}"
    if (unseen := INVISIBLE.findall(line)) and INVISIBLE.sub("", line) == INVISIBLE.sub("", other):
        codes = ", ".join(dict.fromkeys(f"U+{ord(char):04X}" for char in unseen[:5]))
        return f"{name} has characters that are not shown to you ({codes}): quote only the lines around it"
    if line.casefold() == other.casefold():
        return f"upper and lower case in {name}"
    if _plain(line) == _plain(other):
        differing = next(((a, b) for a, b in zip(line, other, strict=False) if a != b), None)
        if differing is not None:
            return f"{name} has U+{ord(differing[0]):04X} where old has U+{ord(differing[1]):04X}, which looks alike"
        return f"{name} has characters that look alike"
    return f"{name} differs"


def _lead(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _tail(line: str) -> str:
    return line[len(line.rstrip()) :]


def _blanks(white: str) -> str:
    """Return white space in words: `4 blanks`, `1 tab and 2 blanks`."""
    runs = [(char, sum(1 for _ in run)) for char, run in groupby(white)]
    words = [f"{count} {_name(char)}{'' if count == 1 else 's'}" for char, count in runs[:6]]
    return " and ".join(words) or "no white space"


def _name(char: str) -> str:
    return {" ": "blank", "\t": "tab"}.get(char) or f"U+{ord(char):04X}"


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _plain(line: str) -> str:
    return unicodedata.normalize("NFKC", line).translate(_LOOKALIKES)


def _tokens(line: str) -> list[str]:
    """Return the words, numbers and signs of a line, of a long one of its beginning."""
    return _TOKEN.findall(line[:_LINE_CHARS].casefold())


def _without_blank_ends(lines: Sequence[str]) -> list[str]:
    filled = [at for at, line in enumerate(lines) if line.strip()]
    return list(lines[filled[0] : filled[-1] + 1]) if filled else []


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
        edits=True,
        writes=True,
        aliases=("Edit",),
    )

    def activity(self, args: EditFileArgs) -> str:
        """Return `Editing PATH`."""
        return f"Editing {shown(args.path)}"

    async def __call__(self, args: EditFileArgs, at: ToolContext) -> ToolOutput:
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
        edits=True,
        writes=True,
        aliases=("Write",),
    )

    def activity(self, args: WriteFileArgs) -> str:
        """Return `Writing PATH`."""
        return f"Writing {shown(args.path)}"

    async def __call__(self, args: WriteFileArgs, at: ToolContext) -> ToolOutput:
        """Write it."""
        return await run_sync(_write, need_edits(at), args, abandon_on_cancel=False)


def _edit(edits: Edits, args: EditFileArgs) -> ToolOutput:
    name = edits.allowed(args.path)
    old, new = normalize_line_ends(args.old), normalize_line_ends(args.new)
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
    head = f"edited {shown(name)}: {places}, {describe_counts(document.lines, edited.lines, regions)}"
    text = render_changes(document.lines, edited.lines, regions) + _at_the_end(document, edited)
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
    except NotEditable as why:
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
    changed = render_change(before.lines, after.lines, whole)
    counts = describe_counts(before.lines, after.lines, (whole,))
    return ToolOutput(f"{head}; {counts}\n{changed}{_at_the_end(before, after)}", count=1)


def _document(name: str, data: bytes) -> Document:
    try:
        return Document.of(data)
    except NotEditable as why:
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
