"""The text of an RTF file: decoded by the fonts' encodings, in paragraphs, notes and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ava_roles.texts.formats.asides import join_line
from ava_roles.texts.formats.part_reader import TEXT_CHARS
from ava_roles.texts.formats.symbols import symbol_of, with_symbols
from ava_roles.texts.web_page import MAX_COLUMNS, TableBudget, render_table

SYMBOLS = "symbols"
"""The encoding of fonts whose characters are signs."""
_MOST_ROWS = 20_000
CAPTURED_CHARS = 10_000
"""The most of a text that is kept beside the page, such as a title; it also bounds the number of its pieces."""


class RtfFlow:
    """Text that runs on its own: that of the body, a note, a box or a header. `after`: boxes below the paragraph."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.line: list[str] = []
        self.label = ""
        self.after: list[str] = []
        self.rows: list[list[str]] = []
        self.cells: list[str] = []
        self.in_cell: list[str] = []
        self.in_inner_cell: list[str] = []
        self.inner_cells: list[str] = []


@dataclass
class RtfState:
    """What holds in a group. `capture`: takes its text instead of the flow."""

    flow: RtfFlow
    skips: bool = False
    capture: list[str] | None = None
    hidden: bool = False
    deleted: int = 0  # the number of the deletion
    fallback: int = 1  # signs after one of Unicode that say the same
    codec: str = "cp1252"
    font: str = ""
    in_table: bool = False
    depth: int = 1  # of tables
    heading: int = 0
    level: int = 0  # of a list
    is_first: bool = False
    is_ignorable: bool = False
    in_object: bool = False
    in_fonts: bool = False
    in_styles: bool = False
    ends: Callable[[], None] | None = None

    def inner(self) -> RtfState:
        """Return the state of a group that begins here; a file has a million, so `dataclasses.replace` is too slow."""
        state = RtfState(self.flow)
        vars(state).update(vars(self))
        state.is_first, state.is_ignorable, state.ends = True, False, None
        return state

    def leave_paragraph(self) -> None:
        """Take back what words said of the paragraphs: a table, a heading, a list."""
        self.in_table, self.depth, self.heading, self.level = False, 1, 0, 0


class RtfText:
    """Decodes the text of an RTF file, and puts it into paragraphs, notes and tables as the state of its group says."""

    def __init__(self) -> None:
        self._budget = TableBudget()
        self._body = RtfFlow()
        self._state = RtfState(self._body)
        self._bytes = bytearray()
        self._units: list[int] = []  # of UTF-16
        self._skip = 0  # signs that repeat one of Unicode
        self._codec = "cp1252"
        self._fonts: dict[int | None, tuple[str, str]] = {}
        self._font = 0
        self._default_font: int | None = None
        self._seen_deletion = 0
        self._counts: Counter[str] = Counter()
        self._objects: Counter[str] = Counter()
        self._hidden_words = 0
        self._size = 0
        self._said: int = 0
        self._cut = False

    # -- text -------------------------------------------------------------------------------------------------

    def _text(self, written: bytes) -> None:
        state = self._state
        state.is_first = False
        if state.skips:
            return
        if self._skip:
            skipped = min(self._skip, len(written))
            self._skip -= skipped
            written = written[skipped:]
        if written:
            self._flush_units()
            self._bytes += written

    def _unicode(self, number: int) -> None:
        state = self._state
        state.is_first = False
        if not state.skips:
            self._flush_bytes()
            self._units.append(number & 0xFFFF)
            self._skip = state.fallback

    def _flush(self) -> None:
        if self._bytes:
            self._flush_bytes()
        if self._units:
            self._flush_units()

    def _flush_units(self) -> None:
        if self._units:
            encoded = b"".join(unit.to_bytes(2, "little") for unit in self._units)
            self._units.clear()
            text = encoded.decode("utf-16-le", "replace")
            self._say(with_symbols(text, self._state.font or "symbol"))

    def _flush_bytes(self) -> None:
        if not self._bytes:
            return
        written = bytes(self._bytes)
        state = self._state
        self._bytes.clear()
        if state.in_fonts:
            font_name = written.decode("latin-1").strip(" ;")
            if font_name:
                codec, _ = self._fonts.get(self._font, (self._codec, ""))
                self._fonts[self._font] = (codec, font_name)
        elif state.codec == SYMBOLS:
            self._say("".join(symbol_of(0xF000 + sign, state.font) or chr(sign) for sign in written))
        else:
            try:
                self._say(written.decode(state.codec, "replace"))
            except LookupError:
                self._say(written.decode("cp1252", "replace"))
                self._objects[f"a text in an encoding that is not known here ({state.codec[:40]})"] += 1

    def _say(self, text: str) -> None:
        state = self._state
        if state.skips or not text:
            return
        if state.capture is not None:
            if len(state.capture) < CAPTURED_CHARS:
                state.capture.append(text)
        elif state.deleted:
            if state.deleted != self._seen_deletion:
                self._seen_deletion = state.deleted
                self._counts["tracked deletion"] += 1
        elif state.hidden:
            self._said += 1
            self._hidden_words += len(text.split())
        else:
            self._said += 1
            state.flow.line.append(text)

    # -- paragraphs and tables --------------------------------------------------------------------------------

    def _take_paragraph(self, flow: RtfFlow) -> str:
        """Return the open paragraph with its label, and begin another."""
        label, flow.label = flow.label, ""
        text = join_line(flow.line).strip()
        flow.line.clear()
        if not text:
            return ""
        if self._state.heading:
            words = " ".join((label, *text.split())) if label else " ".join(text.split())
            return f"{'#' * self._state.heading} {words}"
        if not label:
            return text
        if label.isspace() or not label.isprintable():
            label = "•"
        indent = "  " * self._state.level
        return f"{indent}{label} {text}"

    def _end_paragraph(self) -> None:
        state = self._state
        if state.capture is not None:
            state.capture.append("\n")
            return
        if state.deleted:
            return  # the end of the paragraph is deleted: the next one continues it
        flow = state.flow
        text = self._take_paragraph(flow)
        after, flow.after = flow.after, []
        for each in filter(None, (text, *after)):
            if state.depth > 1:
                flow.in_inner_cell.append(each)
            elif state.in_table:
                flow.in_cell.append(each)
            else:
                self._end_table(flow)
                self._add(flow, each)

    def _add(self, flow: RtfFlow, block: str) -> None:
        room = max(0, TEXT_CHARS - self._size)
        if len(block) > room:
            self._cut = True
            block = block[:room]
        if block.strip():
            flow.blocks.append(block)
            self._size += len(block)

    def _end_cell(self) -> None:
        flow = self._state.flow
        self._end_inner_table(flow)
        text = self._take_paragraph(flow)
        after = flow.after
        flow.after = []
        if len(flow.cells) <= MAX_COLUMNS:
            flow.cells.append("\n".join(filter(None, (*flow.in_cell, text, *after))))
        elif text or after or flow.in_cell:
            self._objects[f"a cell after the first {MAX_COLUMNS} of its row"] += 1
        flow.in_cell = []

    def _end_row(self) -> None:
        flow = self._state.flow
        if flow.cells:
            if len(flow.rows) < _MOST_ROWS:
                flow.rows.append(flow.cells)
            else:
                self._objects[f"a row of a table after the first {_MOST_ROWS:,}"] += 1
        flow.cells = []

    def _end_inner_cell(self) -> None:
        flow = self._state.flow
        text = self._take_paragraph(flow)
        flow.inner_cells.append(" ".join(" ".join((*flow.in_inner_cell, text)).split()))
        flow.in_inner_cell = []

    def _end_nested_row(self) -> None:
        self._end_inner_row(self._state.flow)

    def _end_inner_row(self, flow: RtfFlow) -> None:
        if flow.inner_cells:
            flow.in_cell.append("; ".join(flow.inner_cells))
        flow.inner_cells = []

    def _end_inner_table(self, flow: RtfFlow) -> None:
        """Keep the cells of an inner table that has no end of its own."""
        flow.inner_cells += flow.in_inner_cell
        flow.in_inner_cell = []
        self._end_inner_row(flow)

    def _end_table(self, flow: RtfFlow) -> None:
        """Show the table that has ended, and cells that no row has."""
        self._end_inner_table(flow)
        if flow.in_cell:
            flow.cells.append("\n".join(flow.in_cell))
        if flow.cells:
            flow.rows.append(flow.cells)
        rows = flow.rows
        flow.rows, flow.cells, flow.in_cell = [], [], []
        if any(map(any, rows)):
            self._add(flow, render_table(rows, self._budget))

    def _end_flow(self, flow: RtfFlow) -> None:
        text = self._take_paragraph(flow)
        self._end_table(flow)
        for each in (text, *flow.after):
            self._add(flow, each)
        flow.after = []
