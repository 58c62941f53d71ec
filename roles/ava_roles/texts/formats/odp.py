"""OpenDocument presentations and drawings: the text of each slide with its notes and comments."""

from __future__ import annotations

from typing import Any

from ava_roles.texts.extracted import ALL, Extracted, Part, Wanted
from ava_roles.texts.formats.opendocument import OpenPackage, OpenReader
from ava_roles.texts.formats.opendocument_lists import style_elements
from ava_roles.texts.formats.package import child, children, name_of, value_of
from ava_roles.texts.phrases import comment_text, count_phrase
from ava_roles.texts.web_page import parsing

_MAX_SLIDES = 5_000
_DECLARED = {"presentation:header-decl", "presentation:footer-decl"}


@parsing("OpenDocument presentation")
def read_odp(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return a presentation as text, a part for each slide. Raises ToolFailed."""
    package = OpenPackage(data, "OpenDocument presentation", ".odp")
    is_drawing = child(package.root("content.xml"), "office:body", "office:drawing") is not None
    reader = _Reader(package, "office:drawing" if is_drawing else "office:presentation")
    parts = reader.read()
    return Extracted(tuple(parts), package.title(), len(parts), reader.missing())


class _Reader(OpenReader):
    _joins_lines = True

    def read(self) -> list[Part]:
        parts: list[Part] = []
        hidden = self._hidden_pages()
        slides = children(self._body, "draw:page")
        for number, slide in enumerate(slides, 1):
            if self._full() or number > _MAX_SLIDES:
                more = count_phrase(len(slides) - number + 1, "more slide is", "more slides are")
                parts.append(Part("", f"({more} not shown)"))
                break
            heading = f"slide {number}"
            if value_of(slide, "style-name") in hidden:
                heading += " (hidden)"
            parts.append(Part(heading, self._slide(slide)))
        shared = self._shared_text()
        if shared:
            parts.append(Part("on several slides", shared))
        return self.with_cut([*parts, *self.note_parts()])

    def _hidden_pages(self) -> set[str | None]:
        """Return the names of the styles of pages that are not shown."""
        names: set[str | None] = set()
        for each in style_elements([self._styles_root, self._root]):
            if value_of(child(each, "style:drawing-page-properties"), "visibility") == "hidden":
                names.add(value_of(each, "name"))
        return names

    def _slide(self, slide: Any) -> str:
        blocks = self._apart(slide)
        notes: list[str] = []
        for page in children(slide, "presentation:notes"):
            for frame in page:
                if value_of(frame, "class") in ("notes", None):
                    notes += self._apart(frame)
        if notes:
            blocks.append("Notes:\n" + "\n\n".join(notes))
        return "\n\n".join(blocks)

    def _element(self, element: Any) -> None:
        name = name_of(element)
        if name.endswith(":annotation"):
            self._slide_comment(element)
        elif name != "presentation:notes":  # they come last
            super()._element(element)

    def _slide_comment(self, element: Any) -> None:
        author, text = self._read_comment(element)
        self._emitted += 1
        self._add(f"[comment] {comment_text(author, text)}")

    def _shared_text(self) -> str:
        """Return the text that the master pages and footers show on each slide, such as a company's name."""
        blocks: dict[str, None] = {}
        for page in self.master_pages():
            for shape in page:
                is_place = value_of(shape, "class") is not None or value_of(shape, "placeholder") == "true"
                if not is_place and name_of(shape) != "presentation:notes":
                    blocks.update(dict.fromkeys(self._shape_blocks(shape)))
        for each in children(self._body, *_DECLARED):
            blocks.update(dict.fromkeys(self._apart(each)))
        return "\n\n".join(blocks)

    def _shape_blocks(self, shape: Any) -> list[str]:
        outer, self._blocks = self._blocks, []
        self._element(shape)
        blocks, self._blocks = self._blocks, outer
        return blocks
