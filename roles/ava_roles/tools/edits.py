"""`edit_file` and `write_file`: change files of the run's worktree, within its namespace."""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import chain, groupby

from pydantic import Field

from ava_roles.errors import NotThere, ToolFailed
from ava_roles.sandbox.paths import shown
from ava_roles.texts.encodings import decode
from ava_roles.texts.phrases import count_phrase
from ava_roles.threads import run_sync
from ava_roles.tool import ToolArgs, ToolContext, ToolOutput, ToolSpec, need_edits
from ava_roles.tools.editable_text import (
    EditableText,
    NotEditable,
    NotWritable,
    Region,
    describe_counts,
    normalize_line_ends,
    numbered_line,
    render_change,
    render_changes,
)
from ava_roles.worktree.spec import BYTES_MAX, Edits
from ava_roles.wrap import clean, shown_offsets

_MAX_NEAREST = 3
_MAX_CANDIDATES = 12
_MIN_SIMILARITY = 0.6
_MAX_BEHIND_BEST = 0.25
_MAX_OLD_LINES = 60
_MAX_TOKENS = 300
_LINE_CHARS = 400
_MAX_VOTES = 400
_MAX_SHOWN_LINES = 10
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
_LOOKALIKES = str.maketrans("\u2018\u2019\u201c\u201d\u2010\u2011\u2012\u2013\u2014\u2212", "''\"\"------")


def nearest(text: str, old: str) -> list[str]:
    """Return up to three places of a text that are similar to old, the most similar first, with their lines."""
    lines = text.split("\n")
    old_lines = _without_blank_ends(old.split("\n"))[:_MAX_OLD_LINES]
    tokens_of_lines = [_tokens(line) for line in old_lines]
    old_tokens = list(chain.from_iterable(tokens_of_lines))[:_MAX_TOKENS]
    if not old_tokens:
        return []
    matcher: SequenceMatcher[str] = SequenceMatcher(autojunk=False)
    matcher.set_seq2(old_tokens)
    similar: list[tuple[float, int]] = []
    for start in _candidates(lines, tokens_of_lines):
        window = _window(lines, start, old_lines)
        tokens = list(chain.from_iterable(map(_tokens, window)))[:_MAX_TOKENS]
        matcher.set_seq1(tokens)
        same = sum(block.size for block in matcher.get_matching_blocks())
        likeness_of_old = 0.75 * same / len(old_tokens)  # old may be a part of a long line
        likeness_of_both = 0.5 * same / (len(old_tokens) + len(tokens))
        similarity = likeness_of_old + likeness_of_both
        if similarity >= _MIN_SIMILARITY:
            similar.append((similarity, start))
    similar.sort(key=lambda each: (-each[0], each[1]))
    places: list[str] = []
    for similarity, start in similar[:_MAX_NEAREST]:
        best = similar[0][0]
        if similarity >= best - _MAX_BEHIND_BEST:
            places.append(_describe_place(lines, start, old_lines))
    return places


def _candidates(lines: Sequence[str], tokens_of_lines: Sequence[Sequence[str]]) -> list[int]:
    """Return the lines at which a text with these tokens most likely begins, the best first, none close to another.

    Each token that a line shares with the text votes for the line where the text would then begin; long and rare tokens
    count more.
    """
    positions: dict[str, list[int]] = {token: [] for token in chain.from_iterable(tokens_of_lines)}
    for number, line in enumerate(lines):
        for token in set(_tokens(line)) & positions.keys():
            positions[token].append(number)
    votes: dict[int, float] = defaultdict(float)
    for offset, tokens in enumerate(tokens_of_lines):
        for token in set(tokens) & positions.keys():
            weight = len(token) / max(1, len(positions[token]))
            for number in positions[token][:_MAX_VOTES]:
                votes[max(0, number - offset)] += weight
    starts: list[int] = []
    distance = max(1, len(tokens_of_lines) // 2)
    for start in heapq.nlargest(_MAX_CANDIDATES * 10, votes, key=lambda start: (votes[start], -start)):
        if len(starts) >= _MAX_CANDIDATES:
            break
        if all(abs(start - other) >= distance for other in starts):
            starts.append(start)
    return starts


def _window(lines: Sequence[str], start: int, old_lines: Sequence[str]) -> list[str]:
    """Return lines from one on, until there are as many as `old` has that are not blank."""
    missing = sum(bool(line.strip()) for line in old_lines)
    window: list[str] = []
    for line in lines[start : start + 2 * len(old_lines) + 10]:
        if not missing:
            break
        window.append(line)
        missing -= bool(line.strip())
    return window


def _describe_place(lines: Sequence[str], start: int, old_lines: Sequence[str]) -> str:
    window = _window(lines, start, old_lines)
    first, difference = _difference(window, old_lines, start)
    begin = max(0, min(first - 3, len(window) - _MAX_SHOWN_LINES))
    end = min(begin + _MAX_SHOWN_LINES, len(window))
    shown_lines = [numbered_line(" ", start + at, window[at]) for at in range(begin, end)]
    head = f"line {start + 1:,}"
    if len(window) > 1:
        head = f"lines {start + 1:,} to {start + len(window):,}"
    if begin or len(window) > _MAX_SHOWN_LINES:
        head += f", of which {len(shown_lines)} are shown"
    if difference:
        head += f" ({difference})"
    return "\n".join([f"{head}:", *shown_lines])


def _difference(window: Sequence[str], old_lines: Sequence[str], start: int) -> tuple[int, str]:
    """Return the index of the first line that differs, and how it differs, if that can be said."""
    only = ""
    if _without_white_space("\n".join(window)) == _without_white_space("\n".join(old_lines)):
        only = "only white space differs: "
        if [bool(line.strip()) for line in window] != [bool(line.strip()) for line in old_lines]:
            return 0, f"{only}blank lines, or where lines end"
    for at, (line, old_line) in enumerate(zip(window, old_lines, strict=False)):
        if line != old_line:
            return at, only + _describe_difference(line, old_line, f"line {start + at + 1:,}")
    return 0, "the lines are equal: what differs is before or after them, such as blank lines"


def _describe_difference(line: str, old_line: str, name: str) -> str:
    if line.strip() == old_line.strip():
        if line.rstrip() != old_line.rstrip():
            return f"{name} begins with {_blanks(_leading(line))}, in old with {_blanks(_leading(old_line))}"
        return f"{name} ends in {_blanks(_trailing(line))}, in old in {_blanks(_trailing(old_line))}"
    if _without_white_space(line) == _without_white_space(old_line):
        return f"white space within {name}"
    if line.casefold() == old_line.casefold():
        return f"upper and lower case in {name}"
    if _without_lookalikes(line) == _without_lookalikes(old_line):
        for char, old_char in zip(line, old_line, strict=False):
            if char != old_char:
                return f"{name} has U+{ord(char):04X} where old has U+{ord(old_char):04X}, which looks alike"
        return f"{name} has characters that look alike"
    return f"{name} differs"


def _leading(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _trailing(line: str) -> str:
    return line[len(line.rstrip()) :]


def _blanks(white: str) -> str:
    words: list[str] = []
    for char, run in groupby(white):
        count = len(list(run))
        words.append(count_phrase(count, _name(char)))
    return " and ".join(words[:6]) or "no white space"


def _name(char: str) -> str:
    return {" ": "blank", "\t": "tab"}.get(char) or f"U+{ord(char):04X}"


def _without_white_space(text: str) -> str:
    return "".join(text.split())


def _without_lookalikes(line: str) -> str:
    return unicodedata.normalize("NFKC", line).translate(_LOOKALIKES)


def _tokens(line: str) -> list[str]:
    return _TOKEN.findall(line[:_LINE_CHARS].casefold())


def _without_blank_ends(lines: Sequence[str]) -> list[str]:
    filled = [at for at, line in enumerate(lines) if line.strip()]
    if not filled:
        return []
    return list(lines[filled[0] : filled[-1] + 1])


EDIT_FILE = "edit_file"
WRITE_FILE = "write_file"
_MAX_LINE_NUMBERS = 20
_REDACTED = re.compile(r"\[redacted:[^\]\n]{1,100}\]")


class EditFileArgs(ToolArgs):
    """Arguments of `edit_file`."""

    path: str = Field(description="File, relative to the worktree.")
    old: str = Field(description="The text to be replaced, exactly as the file has it, white space included.")
    new: str = Field(description="The text that replaces it; empty removes it.")
    replace_all: bool = Field(default=False, description="Replace every occurrence.")


class EditFile:
    """Replaces a text in a file."""

    spec = ToolSpec(
        name=EDIT_FILE,
        description=(
            "Replace a text in a file of your worktree. `old` must be in the file exactly once: quote enough lines"
            " around it, or set replace_all. If it is not there, the most similar places are shown. The file keeps its"
            " line endings, encoding and permissions."
        ),
        args=EditFileArgs,
        read_only=False,
        files=True,
        edits=True,
        writes=True,
        aliases=("Edit",),
    )

    def activity(self, args: EditFileArgs) -> str:
        return f"Editing {shown(args.path)}"

    async def __call__(self, args: EditFileArgs, at: ToolContext) -> ToolOutput:
        return await run_sync(_edit, need_edits(at), args, at.hide, abandon_on_cancel=False)


class WriteFileArgs(ToolArgs):
    """Arguments of `write_file`."""

    path: str = Field(description="File, relative to the worktree; missing folders are created.")
    content: str = Field(description="The whole content.")


class WriteFile:
    """Writes a whole file."""

    spec = ToolSpec(
        name=WRITE_FILE,
        description=(
            "Write a whole file in your worktree: a new one, or in place of an existing one. To change a part of a"
            " file, use edit_file."
        ),
        args=WriteFileArgs,
        read_only=False,
        files=True,
        edits=True,
        writes=True,
        aliases=("Write",),
    )

    def activity(self, args: WriteFileArgs) -> str:
        return f"Writing {shown(args.path)}"

    async def __call__(self, args: WriteFileArgs, at: ToolContext) -> ToolOutput:
        return await run_sync(_write, need_edits(at), args, at.hide, abandon_on_cancel=False)


def _edit(edits: Edits, args: EditFileArgs, hide: Callable[[str], str]) -> ToolOutput:
    name = edits.allowed(args.path)
    old = normalize_line_ends(args.old)
    new = normalize_line_ends(args.new)
    _require_text(new)
    if not old:
        raise ToolFailed("old is empty; quote the text to be replaced, or write a new file with write_file")
    editable = _editable(name, edits.read(name))
    visible = _without_secrets(editable, hide)
    _refuse_redaction_marks(new, old, name)
    _refuse_quoted_marks(old, editable.text, name)
    old = _as_written(editable.text, old)
    if old == new:
        raise ToolFailed("old and new are the same (line endings are kept as the file has them); nothing was changed")
    starts = editable.places(old)
    if not starts:
        raise ToolFailed(_describe_not_found(name, clean(visible.text)[0], clean(old)[0]))
    if len(starts) > 1 and not args.replace_all:
        raise ToolFailed(_describe_places(name, editable, starts))
    if args.replace_all:
        starts = editable.places_to_replace(old)
        if len(starts) > EditableText.MAX_REPLACED:
            raise ToolFailed(f"old is in {shown(name)} at more than {EditableText.MAX_REPLACED:,} places; quote more")
    size = len(editable.text) + len(starts) * (len(new) - len(old))
    if size > BYTES_MAX:
        raise ToolFailed(f"{shown(name)} would have {size:,} characters, more than {BYTES_MAX:,}; write less")
    edited, regions = editable.replaced(starts, old, new)
    edits.write(name, _encode(name, edited))
    places = count_phrase(len(starts), "place")
    head = f"edited {shown(name)}: {places}, {describe_counts(editable.lines, edited.lines, regions)}"
    invisible = clean(old)[1]
    if invisible:
        count = invisible * len(starts)
        head += f"; {count:,} characters or escape sequences there that are not shown to you are gone"
    if edited.codec != "utf-8":
        head += f"; kept as {edited.encoding}"
        if edited.guessed:
            head += ", a guess"
    changes = render_changes(visible.lines, _without_secrets(edited, hide).lines, regions)
    return ToolOutput(f"{head}\n{changes}{_note_on_last_line(editable, edited)}", count=len(starts))


def _as_written(text: str, old: str) -> str:
    """Return `old` as the file has it, with invisible characters. Raises ToolFailed: in several forms."""
    if old in text:
        return old
    visible_text = clean(text)[0]
    if old not in visible_text:
        return old
    offsets = shown_offsets(text)
    forms: set[str] = set()
    at = visible_text.find(old)
    while at >= 0 and len(forms) < 2:
        forms.add(text[offsets[at] : offsets[at + len(old) - 1] + 1])
        at = visible_text.find(old, at + 1)
    if len(forms) > 1:
        raise ToolFailed("old matches places that differ in invisible characters; quote more text around one of them")
    return forms.pop()


def _write(edits: Edits, args: WriteFileArgs, hide: Callable[[str], str]) -> ToolOutput:
    name = edits.allowed(args.path)
    _require_text(args.content)
    try:
        existing = edits.read(name)
    except NotThere:
        existing = None
    decoded = decode(existing or b"")
    old_text = ""
    if decoded is not None:
        old_text = decoded.text
    _refuse_redaction_marks(args.content, old_text, name)
    data = args.content.encode()
    if existing is None:
        edits.write(name, data)
        lines = len(EditableText.of(data).lines)
        return ToolOutput(f"wrote {shown(name)}: a new file, {_lines(lines)}, {_bytes(data)}", count=1)
    try:
        before = EditableText.of(existing)
    except NotEditable as why:
        edits.write(name, data)
        lines = len(EditableText.of(data).lines)
        in_place = f"in place of {_bytes(existing)} ({why})"
        return ToolOutput(f"wrote {shown(name)}: {_lines(lines)}, {_bytes(data)}, {in_place}", count=1)
    after = EditableText.of(data).like(before)
    written = _encode(name, after)
    if written == existing:
        return ToolOutput(f"{shown(name)} already has this content; nothing was written", count=0)
    edits.write(name, written)
    all_lines = Region(0, len(before.lines), 0, len(after.lines))
    head = f"wrote {shown(name)}: {_lines(len(after.lines))} in place of {_lines(len(before.lines))}"
    if written != data:
        mark = " with its byte order mark" if after.mark else ""
        head += f"; the file's line endings and encoding ({after.encoding}{mark}) are kept"
    if after.guessed:
        head += "; the encoding is a guess"
    changes = render_change(_without_secrets(before, hide).lines, _without_secrets(after, hide).lines, all_lines)
    counts = describe_counts(before.lines, after.lines, (all_lines,))
    return ToolOutput(f"{head}; {counts}\n{changes}{_note_on_last_line(before, after)}", count=1)


def _editable(name: str, data: bytes) -> EditableText:
    try:
        return EditableText.of(data)
    except NotEditable as why:
        raise ToolFailed(
            f"{shown(name)} cannot be edited: {why}; leave it as it is, or replace it as a whole"
        ) from None


def _encode(name: str, editable: EditableText) -> bytes:
    try:
        return editable.data()
    except NotWritable as why:
        raise ToolFailed(
            f"{why}, the encoding of {shown(name)}; nothing was changed: use a character that this encoding has"
        ) from None


def _without_secrets(editable: EditableText, hide: Callable[[str], str]) -> EditableText:
    """Return an editable text as the model may see it: secrets replaced, with the same number of lines."""
    return replace(editable, text=hide(editable.text))


def _require_text(text: str) -> None:
    if "\0" in text:
        raise ToolFailed("a zero byte would make the file binary; write it as an escape sequence of the language")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ToolFailed("the text contains half characters (lone surrogates); leave them out") from None


def _refuse_redaction_marks(text: str, before: str, name: str) -> None:
    for mark in set(_REDACTED.findall(text)):
        if text.count(mark) > before.count(mark):
            raise ToolFailed(
                f"{mark} is not text of {shown(name)}: it stands for something hidden from you, and would replace"
                " it; edit only the lines around it"
            )


def _refuse_quoted_marks(old: str, text: str, name: str) -> None:
    for mark in set(_REDACTED.findall(old)):
        if mark not in text:
            raise ToolFailed(
                f"{mark} in old is not text of {shown(name)}: it stands for something hidden from you; quote only the"
                " lines around it"
            )


def _describe_not_found(name: str, text: str, old: str) -> str:
    places = nearest(text, old)
    if not places:
        return f"old is not in {shown(name)}, nor anything similar; read the file, then quote it exactly"
    parts = [f"old is not in {shown(name)}. Nearest:", *places, "Quote it exactly as the file has it."]
    return "\n\n".join(parts)


def _describe_places(name: str, editable: EditableText, starts: list[int]) -> str:
    numbers = editable.line_numbers(starts)
    shown_numbers = [f"{number:,}" for number in numbers[:_MAX_LINE_NUMBERS]]
    if len(numbers) > _MAX_LINE_NUMBERS:
        shown_numbers.append("…")
    count = f"{len(starts)} places"
    if len(starts) >= EditableText.MAX_PLACES:
        count = f"{len(starts):,} places or more"
    return (
        f"old is in {shown(name)} at {count}, beginning in lines {', '.join(shown_numbers)}; quote more lines around"
        " the one that you mean, or set replace_all"
    )


def _lines(count: int) -> str:
    return count_phrase(count, "line")


def _bytes(data: bytes) -> str:
    return count_phrase(len(data), "byte")


def _note_on_last_line(before: EditableText, after: EditableText) -> str:
    if not after.text or before.ends_in_line_break == after.ends_in_line_break:
        return ""
    preposition = "with" if after.ends_in_line_break else "without"
    return f"\n[the file now ends {preposition} a line break]"
