"""Office files that are small on disk and enormous in memory, recognised before a parser builds them up.

A zip says how large its parts unpack, but four bytes of XML become hundreds in a parser. So each part is run over
once, without building anything, and counted.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any
from xml.parsers import expat

from ava_roles.errors import ToolFailed

_UNPACKED_MAX = 100_000_000
_PARTS_MAX = 10_000
_ELEMENTS_MAX = 500_000
_SHEET_ELEMENTS_MAX = 2_000_000  # a sheet is read row by row, so it may have more of them, but not in one row
_ROW_ELEMENTS_MAX = 50_000
_ATTRIBUTES_MAX = 200
_DEPTH_MAX = 200
_TAG_MAX = 1_000_000
_ODD_MAX = 1_000_000  # a part that cannot be run over, e.g. in a rare encoding, may have so many bytes
_CHUNK = 65_536
_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def refuse_bomb(data: bytes) -> None:
    """Return if an office file may be handed to its parser. Blocks.

    Raises:
        ToolFailed: It would take too much memory or time.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = archive.infolist()
        if sum(part.file_size for part in parts) > _UNPACKED_MAX:
            raise ToolFailed("this file unpacks to more than 100 MB; ask for a smaller one")
        if len(parts) > _PARTS_MAX:
            raise _too_large(f"more than {_PARTS_MAX:,} parts")
        for part in parts:
            with archive.open(part) as file:
                head = file.read(_CHUNK)
                if _is_markup(head):
                    _run_over(head, file, part.file_size)


def _is_markup(head: bytes) -> bool:
    return head[:2] in (b"\xff\xfe", b"\xfe\xff") or head.lstrip(b"\xef\xbb\xbf \t\r\n\0")[:1] == b"<"


def _run_over(head: bytes, file: Any, size: int) -> None:
    """Count what a part is made of; what it says is not looked at."""
    counter = _Counter()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler = counter.start
    parser.EndElementHandler = counter.end
    parser.StartDoctypeDeclHandler = _refuse_doctype
    fed = 0
    chunk = head
    try:
        while chunk:
            fed += len(chunk)
            parser.Parse(chunk, False)
            if fed - parser.CurrentByteIndex > _TAG_MAX:
                raise _too_large("a tag of more than 1 MB")
            chunk = file.read(_CHUNK)
    except (expat.ExpatError, LookupError, ValueError):  # broken, or in an encoding that the next parser may know
        if size > _ODD_MAX:
            raise ToolFailed("this file has a large part that is no plain XML; ask for a smaller one") from None


class _Counter:
    """Counts elements, in all and within one row of a sheet."""

    def __init__(self) -> None:
        self._depth = self._elements = self._in_row = 0
        self._row_depth = 0
        self._most = _ELEMENTS_MAX

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Count one that opens."""
        self._depth += 1
        self._elements += 1
        if self._depth == 1 and name == f"{_SHEET}}}worksheet":
            self._most = _SHEET_ELEMENTS_MAX
        if self._row_depth:
            self._in_row += 1
        elif name == f"{_SHEET}}}row":
            self._row_depth, self._in_row = self._depth, 0
        if self._elements > self._most:
            raise _too_large(f"more than {self._most:,} elements in one part")
        if self._in_row > _ROW_ELEMENTS_MAX:
            raise _too_large(f"more than {_ROW_ELEMENTS_MAX:,} elements in one row")
        if len(attributes) > _ATTRIBUTES_MAX or self._depth > _DEPTH_MAX:
            raise _too_large("elements with too many attributes, or nested too deep")

    def end(self, _name: str) -> None:
        """Count one that closes."""
        if self._depth == self._row_depth:
            self._row_depth = self._in_row = 0
        self._depth -= 1


def _refuse_doctype(*_declared: object) -> None:
    raise ToolFailed("this file declares a document type of its own, which office files do not; ask for another copy")


def _too_large(what: str) -> ToolFailed:
    return ToolFailed(f"this file has {what}, which is too much to read here; ask for a smaller one")
