"""OpenDocument texts: everything that a reader sees on the pages, in its order; what cannot be text is named."""

from __future__ import annotations

from ava_roles.texts.extracted import ALL, Extracted, Part, Wanted
from ava_roles.texts.formats.opendocument import OpenPackage, OpenReader
from ava_roles.texts.web_page import parsing


@parsing("OpenDocument text")
def read_odt(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return an OpenDocument text: headings marked, tables as rows, then its notes. Raises ToolFailed."""
    package = OpenPackage(data, "OpenDocument text", ".odt")
    reader = _Reader(package, "office:text")
    parts = reader.read()
    return Extracted(tuple(parts), package.title(), len(parts), reader.missing())


class _Reader(OpenReader):
    def read(self) -> list[Part]:
        parts = [Part("", "\n\n".join(self._apart(self._body)))]
        margins = self.margins()
        if margins:
            parts.append(Part("headers and footers", margins))
        return self.with_cut([*parts, *self.note_parts()])
