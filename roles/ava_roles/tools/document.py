r"""A text file as it is edited: its lines joined by `\n`, and what each of them really ends in."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

AROUND = 2
_REGIONS = 3
_LINES = 12
_CHARS = 200


class Region(NamedTuple):
    """Lines that took the place of others: from, and up to but without, counted from 0."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


def render_changes(old: Sequence[str], new: Sequence[str], regions: Sequence[Region]) -> str:
    """Return the first regions, and where the others are."""
    parts = [render_change(old, new, region) for region in regions[:_REGIONS]]
    if rest := regions[_REGIONS:]:
        numbers = ", ".join(f"{region.new_from + 1:,}" for region in rest[:20]) + (", …" if len(rest) > 20 else "")
        parts.append(f"and in lines {numbers}")
    return "\n".join(parts)


def render_change(old: Sequence[str], new: Sequence[str], region: Region) -> str:
    """Return one region: `-` and `+` before what went and came, with the lines around it."""
    trimmed = _trimmed(old, new, region)
    before = [(" ", at, new[at]) for at in range(max(0, trimmed.new_from - AROUND), trimmed.new_from)]
    gone = [("-", at, old[at]) for at in range(trimmed.old_from, min(trimmed.old_to, len(old)))]
    came = [("+", at, new[at]) for at in range(trimmed.new_from, min(trimmed.new_to, len(new)))]
    after = [(" ", at, new[at]) for at in range(trimmed.new_to, min(trimmed.new_to + AROUND, len(new)))]
    return "\n".join((*_listed(before), *_listed(gone), *_listed(came), *_listed(after)))


def describe_counts(old: Sequence[str], new: Sequence[str], regions: Sequence[Region]) -> str:
    """Return how many lines went and came."""
    trimmed = [_trimmed(old, new, region) for region in regions]
    removed = sum(min(each.old_to, len(old)) - min(each.old_from, len(old)) for each in trimmed)
    added = sum(min(each.new_to, len(new)) - min(each.new_from, len(new)) for each in trimmed)
    return f"{removed:,} {'line' if removed == 1 else 'lines'} removed, {added:,} added"


def numbered_line(sign: str, at: int, line: str) -> str:
    """Return one line with its number, cut where it is long."""
    shown = line if len(line) <= _CHARS else f"{line[:_CHARS]}… ({len(line):,} characters)"
    return f"{sign}{at + 1:>5}  {shown}".rstrip(" ") if not shown else f"{sign}{at + 1:>5}  {shown}"


def _trimmed(old: Sequence[str], new: Sequence[str], region: Region) -> Region:
    """Return a region without the lines at its beginning and end that are the same."""
    old_from, old_to, new_from, new_to = region
    old_to, new_to = min(old_to, len(old)), min(new_to, len(new))
    while old_from < old_to and new_from < new_to and old[old_from] == new[new_from]:
        old_from, new_from = old_from + 1, new_from + 1
    while old_from < old_to and new_from < new_to and old[old_to - 1] == new[new_to - 1]:
        old_to, new_to = old_to - 1, new_to - 1
    return Region(old_from, old_to, new_from, new_to)


def _listed(lines: Sequence[tuple[str, int, str]]) -> list[str]:
    if len(lines) <= _LINES:
        return [numbered_line(*line) for line in lines]
    head, tail = lines[: _LINES - 4], lines[-3:]
    left_out = f"{lines[0][0]}       … {len(lines) - len(head) - len(tail):,} lines …"
    return [*(numbered_line(*line) for line in head), left_out, *(numbered_line(*line) for line in tail)]


_LINE_END = re.compile(r"\r\n|\r|\n")
_WIDE = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class NotEditable(Exception):
    """Raised for bytes that cannot be edited as text; says what they are."""


@dataclass(frozen=True)
class Document:
    r"""A text.

    Attributes:
        text: All of it, with `\n` alone.
        ends: What ends each line in the file: `\n`, `\r\n` or `\r`.
        mark: It begins with a byte order mark.
    """

    MOST_PLACES: ClassVar[int] = 1_000
    MOST_REPLACED: ClassVar[int] = 20_000

    text: str
    ends: tuple[str, ...]
    mark: bool = False

    @classmethod
    def of(cls, data: bytes) -> Document:
        """Return the text that bytes hold.

        Raises:
            NoDocument: They are not UTF-8.
        """
        if data.startswith(_WIDE):
            raise NotEditable("it is UTF-16 or UTF-32, and only UTF-8 is edited")
        if b"\0" in data:
            raise NotEditable("it is binary")
        mark = data.startswith(codecs.BOM_UTF8)
        try:
            text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotEditable(f"it is not UTF-8 (byte {data[error.start + 3 * mark]:#04x})") from None
        if "\r" not in text:
            return cls(text, ("\n",) * text.count("\n"), mark)
        return cls(_LINE_END.sub("\n", text), tuple(_LINE_END.findall(text)), mark)

    def data(self) -> bytes:
        """Return the bytes of the file."""
        lines = self.text.split("\n")
        whole = "".join(part for pair in zip(lines, (*self.ends, ""), strict=True) for part in pair)
        return (codecs.BOM_UTF8 if self.mark else b"") + whole.encode("utf-8")

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without their ends."""
        lines = self.text.split("\n")
        return lines if lines[-1] else lines[:-1]

    @property
    def ends_in_line_break(self) -> bool:
        """Whether the last line has an end."""
        return self.text.endswith("\n")

    def like(self, other: Document) -> Document:
        """Return this text with the line ends of another, where they are all the same, and with its mark."""
        kinds = Counter(other.ends)
        if len(kinds) != 1 or set(self.ends) != {"\n"}:
            return replace(self, mark=self.mark or other.mark)
        return replace(self, ends=tuple(kinds) * len(self.ends), mark=self.mark or other.mark)

    def places(self, old: str) -> list[int]:
        """Return where a text begins in this one, also where two places overlap; no more than `MOST_PLACES`."""
        found: list[int] = []
        at = self.text.find(old)
        while at >= 0 and len(found) < self.MOST_PLACES:
            found.append(at)
            at = self.text.find(old, at + 1)
        return found

    def apart(self, old: str) -> list[int]:
        """Return where a text begins in this one, none within another; no more than one above `MOST_REPLACED`."""
        found: list[int] = []
        at = self.text.find(old)
        while at >= 0 and len(found) <= self.MOST_REPLACED:
            found.append(at)
            at = self.text.find(old, at + len(old))
        return found

    def line_numbers(self, starts: Sequence[int]) -> list[int]:
        """Return the lines, from 1 on, in which these places lie, each once."""
        numbers: list[int] = []
        line, before = 1, 0
        for start in starts:
            line += self.text.count("\n", before, start)
            before = start
            if not numbers or numbers[-1] != line:
                numbers.append(line)
        return numbers

    def replaced(self, starts: Sequence[int], old: str, new: str) -> tuple[Document, list[Region]]:
        """Return the text with another in these places, and the lines that this changes.

        A new line ends as the first of those that it replaces does, or else as the line does in which it stands.
        """
        removed, added = old.count("\n"), new.count("\n")
        parts: list[str] = []
        ends: list[str] = []
        regions: list[Region] = []
        at = line = kept = shift = 0
        for start in starts:
            line += self.text.count("\n", at, start)
            parts += (self.text[at:start], new)
            ends += self.ends[kept:line]
            ends += (self._end_of(line),) * added
            first, last = line, line + removed
            if regions and regions[-1].old_to > first:  # they touch: both are one change
                before = regions.pop()
                regions.append(Region(before.old_from, last + 1, before.new_from, last + 1 + shift + added - removed))
            else:
                regions.append(Region(first, last + 1, first + shift, last + 1 + shift + added - removed))
            shift += added - removed
            line = kept = last
            at = start + len(old)
        parts.append(self.text[at:])
        ends += self.ends[kept:]
        return Document("".join(parts), tuple(ends), self.mark), regions

    def _end_of(self, line: int) -> str:
        if line < len(self.ends):
            return self.ends[line]
        return self.ends[-1] if self.ends else "\n"


def normalize_line_ends(text: str) -> str:
    r"""Return a text whose lines all end in `\n`."""
    return _LINE_END.sub("\n", text) if "\r" in text else text
