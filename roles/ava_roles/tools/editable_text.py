r"""A text file for editing: its lines joined by `\n`, the real end of each line, and how changes are shown."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import ClassVar, NamedTuple

from ava_roles.texts.encodings import decode, encoding_name

_CONTEXT_LINES = 2
_MAX_REGIONS = 3
_MAX_LINES = 12
_HEAD_LINES = 8
_TAIL_LINES = 3
_MAX_LINE_CHARS = 200
_MAX_LINE_NUMBERS = 20


class Region(NamedTuple):
    """A range of old lines and the new lines that replace them; counted from 0, ends excluded."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


def render_changes(old: Sequence[str], new: Sequence[str], regions: Sequence[Region]) -> str:
    """Return the first regions, and the line numbers of the others."""
    parts = [render_change(old, new, region) for region in regions[:_MAX_REGIONS]]
    others = regions[_MAX_REGIONS:]
    if others:
        numbers = [f"{region.new_from + 1:,}" for region in others[:_MAX_LINE_NUMBERS]]
        if len(others) > _MAX_LINE_NUMBERS:
            numbers.append("…")
        parts.append(f"and in lines {', '.join(numbers)}")
    return "\n".join(parts)


def render_change(old: Sequence[str], new: Sequence[str], region: Region) -> str:
    """Return one region: removed lines with `-`, added lines with `+`, and the lines around them."""
    trimmed = _trim(old, new, region)
    before_from = max(0, trimmed.new_from - _CONTEXT_LINES)
    after_to = trimmed.new_to + _CONTEXT_LINES
    lines = _numbered_lines(" ", new, before_from, trimmed.new_from)
    lines += _numbered_lines("-", old, trimmed.old_from, min(trimmed.old_to, len(old)))
    lines += _numbered_lines("+", new, trimmed.new_from, min(trimmed.new_to, len(new)))
    lines += _numbered_lines(" ", new, trimmed.new_to, min(after_to, len(new)))
    return "\n".join(lines)


def describe_counts(old: Sequence[str], new: Sequence[str], regions: Sequence[Region]) -> str:
    removed = 0
    added = 0
    for region in regions:
        trimmed = _trim(old, new, region)
        removed += min(trimmed.old_to, len(old)) - min(trimmed.old_from, len(old))
        added += min(trimmed.new_to, len(new)) - min(trimmed.new_from, len(new))
    word = "line" if removed == 1 else "lines"
    return f"{removed:,} {word} removed, {added:,} added"


def numbered_line(sign: str, at: int, line: str) -> str:
    number = f"{sign}{at + 1:>5}"
    if not line:
        return number
    if len(line) > _MAX_LINE_CHARS:
        line = f"{line[:_MAX_LINE_CHARS]}… ({len(line):,} characters)"
    return f"{number}  {line}"


def _trim(old: Sequence[str], new: Sequence[str], region: Region) -> Region:
    """Return a region without the lines that are equal at its beginning and its end."""
    old_from, old_to, new_from, new_to = region
    old_to = min(old_to, len(old))
    new_to = min(new_to, len(new))
    while old_from < old_to and new_from < new_to and old[old_from] == new[new_from]:
        old_from += 1
        new_from += 1
    while old_from < old_to and new_from < new_to and old[old_to - 1] == new[new_to - 1]:
        old_to -= 1
        new_to -= 1
    return Region(old_from, old_to, new_from, new_to)


def _numbered_lines(sign: str, lines: Sequence[str], first: int, end: int) -> list[str]:
    """Return lines with their numbers; of many, only the first and the last ones."""
    count = end - first
    if count <= _MAX_LINES:
        return [numbered_line(sign, at, lines[at]) for at in range(first, end)]
    head_end = first + _HEAD_LINES
    tail_from = end - _TAIL_LINES
    head = [numbered_line(sign, at, lines[at]) for at in range(first, head_end)]
    tail = [numbered_line(sign, at, lines[at]) for at in range(tail_from, end)]
    return [*head, f"{sign}       … {tail_from - head_end:,} lines …", *tail]


_LINE_END = re.compile(r"\r\n|\r|\n")


class NotWritable(Exception):
    """Raised for a character that a file's encoding does not have; says which."""


class NotEditable(Exception):
    """Raised for bytes that cannot be edited as text; says why."""


@dataclass(frozen=True)
class EditableText:
    r"""A text file, whose `text` has `\n` as line end; `ends` has those of the file. `mark`: its byte order mark.

    `guessed`: nothing in the file says that `codec` is its encoding.
    """

    MAX_PLACES: ClassVar[int] = 1_000
    MAX_REPLACED: ClassVar[int] = 20_000

    text: str
    ends: tuple[str, ...]
    mark: bytes = b""
    codec: str = "utf-8"
    guessed: bool = False

    @classmethod
    def of(cls, data: bytes) -> EditableText:
        decoded = decode(data)
        if decoded is None:
            raise NotEditable("it is binary")
        if decoded.replaced:
            raise NotEditable(f"it is not valid {decoded.encoding}")
        text = decoded.text
        ends = ("\n",) * text.count("\n")
        if "\r" in text:
            ends = tuple(_LINE_END.findall(text))
        editable = cls(normalize_line_ends(text), ends, decoded.mark, decoded.codec, decoded.guessed)
        try:
            exact = editable.data() == data
        except NotWritable:
            exact = False
        if not exact:
            raise NotEditable(f"read as {decoded.encoding}, it would not be written back byte for byte")
        return editable

    def data(self) -> bytes:
        """Return the bytes of the file. Raises NotWritable."""
        lines = self.text.split("\n")
        text = "".join(f"{line}{end}" for line, end in zip(lines, (*self.ends, ""), strict=True))
        try:
            return self.mark + text.encode(self.codec)
        except UnicodeEncodeError as error:
            char = text[error.start]
            name = unicodedata.name(char, "no name")
            line = text.count("\n", 0, error.start) + 1
            raise NotWritable(
                f"{char} (U+{ord(char):04X}, {name}) in line {line:,} is not in {self.encoding}"
            ) from None

    @property
    def encoding(self) -> str:
        return encoding_name(self.codec)

    @cached_property
    def lines(self) -> list[str]:
        lines = self.text.split("\n")
        return lines if lines[-1] else lines[:-1]

    @property
    def ends_in_line_break(self) -> bool:
        return self.text.endswith("\n")

    def like(self, other: EditableText) -> EditableText:
        r"""Return this text with the encoding, byte order mark and line ends of another.

        It keeps its own line ends if it has any but `\n`. Where the other has several kinds, the lines before and after
        the difference keep theirs, and the lines between take those that they replace, one by one, while there are any.
        """
        ends = self.ends
        if set(ends) == {"\n"}:
            ends = self._ends_like(other)
        mark = other.mark
        if not mark and other.codec == "utf-8":  # in another encoding, a mark of our own would be wrong
            mark = self.mark
        return replace(self, ends=ends, mark=mark, codec=other.codec, guessed=other.guessed)

    def _ends_like(self, other: EditableText) -> tuple[str, ...]:
        """Return a line end for each line: those of `other` before, in and after the lines that differ."""
        counts = Counter(other.ends)
        usual = "\n"
        if counts and counts["\n"] < max(counts.values()):
            usual = counts.most_common(1)[0][0]
        lines = self.text.split("\n")
        other_lines = other.text.split("\n")
        shorter = min(len(self.ends), len(other.ends))
        equal_before = _count_equal(lines[:shorter], other_lines[:shorter])
        equal_after = max(0, _count_equal(lines[:0:-1], other_lines[:0:-1]) - 1)  # the last line has no end
        equal_after = min(equal_after, shorter - equal_before)
        changed_count = len(self.ends) - equal_before - equal_after
        after_start = len(other.ends) - equal_after
        changed = other.ends[equal_before:after_start][:changed_count]
        changed += (usual,) * (changed_count - len(changed))
        return other.ends[:equal_before] + changed + other.ends[after_start:]

    def places(self, old: str) -> list[int]:
        """Return the offsets of a text, overlapping ones included; at most `MAX_PLACES`."""
        return list(islice(self._places(old, step=1), self.MAX_PLACES))

    def places_to_replace(self, old: str) -> list[int]:
        """Return the offsets of a text without overlaps; at most one more than `MAX_REPLACED`."""
        return list(islice(self._places(old, step=len(old)), self.MAX_REPLACED + 1))

    def _places(self, old: str, step: int) -> Iterator[int]:
        at = self.text.find(old)
        while at >= 0:
            yield at
            at = self.text.find(old, at + step)

    def line_numbers(self, starts: Sequence[int]) -> list[int]:
        """Return the line numbers (from 1) of these offsets, each once."""
        numbers: list[int] = []
        line = 1
        before = 0
        for start in starts:
            line += self.text.count("\n", before, start)
            before = start
            if not numbers or numbers[-1] != line:
                numbers.append(line)
        return numbers

    def replaced(self, starts: Sequence[int], old: str, new: str) -> tuple[EditableText, list[Region]]:
        """Return it with another text at these offsets, and the changed regions; line ends stay."""
        removed = old.count("\n")
        added = new.count("\n")
        parts: list[str] = []
        ends: list[str] = []
        regions: list[Region] = []
        at = line = kept = shift = 0
        for start in starts:
            line += self.text.count("\n", at, start)
            parts += (self.text[at:start], new)
            ends += self.ends[kept:line]
            ends += (self._end_of(line),) * added
            old_to = line + removed + 1
            new_to = line + added + 1 + shift
            if regions and regions[-1].old_to > line:  # they touch, so both are one change
                before = regions.pop()
                regions.append(Region(before.old_from, old_to, before.new_from, new_to))
            else:
                regions.append(Region(line, old_to, line + shift, new_to))
            shift += added - removed
            line = kept = line + removed
            at = start + len(old)
        parts.append(self.text[at:])
        ends += self.ends[kept:]
        return replace(self, text="".join(parts), ends=tuple(ends)), regions

    def _end_of(self, line: int) -> str:
        if line < len(self.ends):
            return self.ends[line]
        return self.ends[-1] if self.ends else "\n"


def _count_equal(lines: Sequence[str], others: Sequence[str]) -> int:
    """Return how many lines at the beginning are equal."""
    count = 0
    for line, other in zip(lines, others, strict=False):
        if line != other:
            break
        count += 1
    return count


def normalize_line_ends(text: str) -> str:
    return _LINE_END.sub("\n", text) if "\r" in text else text
