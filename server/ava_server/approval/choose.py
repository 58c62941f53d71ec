"""What stands first where there is little room: which rows of a question fit into so many lines, by their weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ava_audit.units import counted
from ava_roles.wrap import list_names
from ava_server.approval.summary import FOLDED, TOPICS, SummaryRow, weight
from ava_server.core.columns import cells

LEAD = 3
"""Rows at the beginning that always have a line: Claude Code shows only the first three lines of a question."""
LAST = ("How much", "What", *FOLDED)
"""Topics that come last: the rows that lead say what starts and what it costs, as far as it must be seen."""
MOST_TOPICS = 4
"""Most topics that a sentence about what is left out names."""


@dataclass(frozen=True)
class Row(SummaryRow):
    """A row that may lead.

    Attributes:
        short: What stands in its place at the beginning where a line is too narrow for what must be seen of it.
        seen: How many characters of its beginning must be seen.
        longer: What stands in its place at the beginning where a line is wide enough for all of that; it has the text.
    """

    short: str = ""
    seen: int = 0
    longer: str = ""

    def leading(self, columns: int) -> str:
        """Return what stands of it at the beginning, in a line of so many columns."""
        if self.longer:
            return self.longer if cells(self.longer) <= columns else self.short
        beyond = max(self.seen - len(self.text), 0)
        if self.short and cells(self.text[: self.seen]) + beyond > columns:
            return self.short
        return self.text


@dataclass(frozen=True)
class Chosen:
    """What is shown of rows.

    Attributes:
        lines: The lines, in the order of the rows. One that takes several of the screen is not broken up.
        rows: How many rows of the screen they take.
        left_out: The rows of which nothing is shown.
        cut: The rows of which only the beginning is shown, or the short form.
    """

    lines: tuple[str, ...]
    rows: int
    left_out: tuple[Row, ...] = ()
    cut: tuple[Row, ...] = ()

    @property
    def missing(self) -> str:
        """What is not shown, counted: `4 sentences (model, limits), the end of 2`; empty where all is shown."""
        parts: list[str] = []
        if self.left_out:
            names = dict.fromkeys(TOPICS.get(row.topic, row.topic) for row in self.left_out)
            parts.append(f"{counted(len(self.left_out), 'sentence')} ({list_names(list(names), MOST_TOPICS)})")
        if self.cut:
            parts.append(f"the end of {len(self.cut) if parts else counted(len(self.cut), 'sentence')}")
        return ", ".join(parts)


@dataclass(frozen=True)
class _Line:
    """A line that may be shown: the text of a row, or (not `whole`) its short form, and the rows that it takes."""

    row: Row
    text: str
    whole: bool
    leads: bool
    ends: tuple[int, ...]

    @property
    def weight(self) -> int:
        return weight(self.row.topic)

    @property
    def comes_last(self) -> bool:
        return self.row.topic in LAST


def choose(rows: Sequence[Row], columns: int, lines: int) -> Chosen:
    """Return what is shown of rows on a screen of so many columns in at most so many lines; nothing is repeated.

    The first rows lead, and always have a line. Where the beginning that must be seen of a leading row (`seen`) does
    not fit into a line, its short form leads, and the whole of it comes behind the leading rows, if there is room.
    After these, what a terminal may fold comes last. Of the others, each has a line before a heavier one has a second.
    """
    placed = _placed(rows, columns)
    given = _share(placed, lines)
    shown: list[str] = []
    left_out: list[Row] = []
    cut: list[Row] = []
    led = {id(line.row) for line in placed if not line.whole}
    for line, most in zip(placed, given, strict=True):
        if most:
            shown.append(_beginning(line, columns, most))
        if not line.whole or most == len(line.ends):
            continue
        if most or id(line.row) in led:
            cut.append(line.row)
        else:
            left_out.append(line.row)
    return Chosen(tuple(shown), sum(given), tuple(left_out), tuple(cut))


def _placed(rows: Sequence[Row], columns: int) -> list[_Line]:
    """Return the lines of rows in their order: those that lead, in short where they must be, then the others."""
    leading: list[_Line] = []
    behind: list[_Line] = []
    for row in rows[:LEAD]:
        text = row.leading(columns)
        is_short = bool(row.short) and text == row.short
        leading.append(_line(row, text, columns, whole=not is_short, leads=True))
        if is_short:
            behind.append(_line(row, row.text, columns))
    return [*leading, *behind, *(_line(row, row.text, columns) for row in rows[LEAD:])]


def _line(row: Row, text: str, columns: int, *, whole: bool = True, leads: bool = False) -> _Line:
    return _Line(row, text, whole, leads, tuple(row_ends(text, columns)))


def _share(placed: Sequence[_Line], lines: int) -> list[int]:
    """Return how many rows of the screen each line gets, the heavier first.

    In two rounds, the second with what may come last, each gets one row, and then those as many as they need. A short
    form has one: its whole row comes later.
    """
    given = [0] * len(placed)
    left = lines
    by_weight = sorted(range(len(placed)), key=lambda place: (not placed[place].leads, -placed[place].weight))
    for comes_last in (False, True):
        places = [place for place in by_weight if placed[place].comes_last is comes_last]
        leading = [place for place in by_weight if placed[place].leads]
        for place in (*leading, *places):
            if left and not given[place]:
                given[place] = 1
                left -= 1
        for place in sorted(places, key=lambda place: -placed[place].weight):
            if given[place] and placed[place].whole:
                more = min(len(placed[place].ends) - given[place], left)
                given[place] += more
                left -= more
    return given


def row_ends(text: str, columns: int) -> list[int]:
    """Return where each row of the screen ends that a line takes: behind a word, or within one that is too long."""
    ends: list[int] = []
    begin = place = width = 0
    last_blank = -1
    while place < len(text):
        char = text[place]
        if char == " ":
            last_blank = place
        taken = cells(char)
        if width + taken <= columns or place == begin:
            width += taken
            place += 1
            continue
        end = last_blank if last_blank > begin else place
        ends.append(end)
        begin = end + 1 if text[end] == " " else end
        place, width, last_blank = begin, 0, -1
    return [*ends, len(text)]


def _beginning(line: _Line, columns: int, most: int) -> str:
    """Return what stands of a line in at most so many rows of the screen; nothing in it stays open that is quoted."""
    text, ends = line.text, line.ends
    if len(ends) <= most:
        return text
    begin = 0 if most == 1 else ends[most - 2]
    end = begin
    while cells(text[begin : end + 1].lstrip() + _ending(text[: end + 1])) <= columns:
        end += 1
    beginning = text[:end].rstrip()
    return beginning + _ending(beginning)


def _ending(beginning: str) -> str:
    """Return what ends a text that is cut: `…`, and the quotation mark or backtick that is open in it."""
    open_marks = [mark for mark in '"`' if beginning.count(mark) % 2]
    return "…" + "".join(open_marks)
