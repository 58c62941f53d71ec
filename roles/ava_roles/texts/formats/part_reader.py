"""What the readers of office files share: bounds, objects that cannot be text, and what is missing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Any

from ava_roles.texts.formats.asides import join_line
from ava_roles.texts.formats.package import OfficePackage
from ava_roles.texts.phrases import count_phrase, object_phrases
from ava_roles.texts.web_page import TableBudget

TEXT_CHARS = 5_000_000
NAME_CHARS = 200
ADDRESS_CHARS = 1_000
MOST_NAMED = 20
CUT = "(cut here: the rest is too long to read)"


class PartReader(ABC):
    """Walks through the parts of an office file, and collects the text of each.

    `_emitted` counts everything that an element gave: text, or a name of what cannot be text.
    """

    def __init__(self, package: OfficePackage, main: str) -> None:
        self._package = package
        self._main, self._root = package.main(main)
        self._budget = TableBudget()
        self._part = self._main
        self._blocks: list[str] = []
        self._line: list[str] = []
        self._emitted: int = 0
        self._hidden_words = 0
        self._size: int = 0
        self._cut = False
        self._objects: Counter[str] = Counter()

    @abstractmethod
    def _inside(self, element: Any) -> None:
        """Read what is inside an element."""

    @abstractmethod
    def _target(self, element: Any, attribute: str = "id") -> str:
        """Return what an element refers to; empty if it refers to nothing."""

    def _name(self, what: str, detail: str = "") -> None:
        """Note something that cannot be text."""
        self._emitted += 1
        detail = " ".join(detail[: 2 * NAME_CHARS].split())[:NAME_CHARS]
        self._objects[f"{what} ({detail})" if detail else what] += 1

    def _alternatives(self, element: Any) -> None:
        """Read the first of the forms in which the same thing is written that gives anything."""
        before = self._emitted
        for each in element:
            self._inside(each)
            if self._emitted != before:
                return

    def _chart(self, element: Any) -> None:
        lines = self._package.drawn_lines(self._target(element), "c:title")
        if lines:
            self._name("a chart", lines[0])
        else:
            self._name("a chart", "")

    def _hidden_text(self, of: str) -> list[str]:
        """Return a phrase on hidden words, if there are any."""
        count = self._hidden_words
        return [f"{count_phrase(count, 'word')} of hidden {of}"] if count else []

    def _named_objects(self) -> list[str]:
        """Return phrases on what cannot be text."""
        return object_phrases(self._objects, MOST_NAMED)

    def _unread_parts(self) -> list[str]:
        """Return phrases on parts of the file that are not read: macros, and what is damaged or absent."""
        has_macros = any(name.lower().endswith("vbaproject.bin") for name in self._package.names)
        phrases = ["macros"] if has_macros else []
        return phrases + self._package.damage()


class FlowReader(PartReader):
    """Walks through a text that flows in paragraphs, with text boxes and the like after the one that they belong to."""

    def __init__(self, package: OfficePackage, main: str) -> None:
        super().__init__(package, main)
        self._after: list[str] = []

    def _blocks_of(self, element: Any) -> list[str]:
        outer = self._blocks, self._line, self._after
        self._blocks, self._line, self._after = [], [], []
        self._inside(element)
        self._end_paragraph()
        blocks = self._blocks
        self._blocks, self._line, self._after = outer
        return blocks

    def _end_paragraph(self, label: str = "", heading: int = 0) -> None:
        """Add the open paragraph, which may be an item with a label or a heading of a level, and what comes after."""
        text = join_line(self._line).strip()
        self._line.clear()
        if text and heading:
            text = f"{'#' * heading} {label.lstrip()}{' '.join(text.split())}"
        elif text:
            text = label + text
        blocks = [text, *self._after]
        self._after = []
        for block in blocks:
            self._add(block)

    def _add(self, block: str) -> None:
        room = max(0, TEXT_CHARS - self._size)
        if len(block) > room:
            self._cut = True
            block = block[:room]
        if block.strip():
            self._blocks.append(block)
            self._size += len(block)
