"""Opens an office file, a zip archive of XML, after a check that it can be parsed within bounds."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from importlib import import_module
from typing import Any
from xml.parsers import expat

from ava_roles.errors import ToolFailed
from ava_roles.texts.extracted import OLE_MAGIC

_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_ENCRYPTED_FLAG = 0x1
_MAX_UNPACKED_BYTES = 100_000_000
_MAX_PARTS = 10_000
_MAX_ELEMENTS = 500_000
_MAX_SHEET_ELEMENTS = 2_000_000  # a sheet is read row by row, so it may have more, but not in one row
_MAX_ROW_ELEMENTS = 50_000
_MAX_ATTRIBUTES = 200
_MAX_DEPTH = 200
_MAX_TAG_BYTES = 1_000_000
_MAX_UNPARSED_BYTES = 1_000_000  # of a part that cannot be parsed here, e.g. in a rare encoding
_CHUNK = 65_536
_STRICT = b"http://purl.oclc.org/ooxml/"
_STRICT_NAMESPACE = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")
_USUAL_NAMESPACE = rb"http://schemas.openxmlformats.org/\1/2006/"
"""ISO/IEC 29500 has two forms: `transitional`, which everybody writes, and `strict`, with other namespaces."""
_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def open_office_file(data: bytes, kind: str, suffix: str, *, has_doctypes: bool = False) -> zipfile.ZipFile:
    """Return the archive. Raises ToolFailed: encrypted, damaged, of an older format, or too much to read.

    `has_doctypes`: a part may name a document type that is elsewhere, but may not declare one.
    """
    archive = _in_usual_form(open_archive(data, kind, suffix))
    _check_parts(archive, _refuse_own_doctype if has_doctypes else _refuse_doctype)
    return archive


def open_archive(data: bytes, kind: str, suffix: str) -> zipfile.ZipFile:
    """Return the archive, whose parts are bounded in number and size, but not looked at. Raises ToolFailed."""
    cannot = f"this {kind} cannot be read"
    if data.startswith(OLE_MAGIC):
        if is_encrypted_package(data):
            raise ToolFailed(f"{cannot}: it is encrypted; ask for a copy without a password")
        raise ToolFailed(f"{cannot}: it is in an old binary format; ask for a copy saved as {suffix}")
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise ToolFailed(f"{cannot}: it is damaged or not a {suffix} file; ask for another copy")
    archive = zipfile.ZipFile(io.BytesIO(data))
    if any(part.flag_bits & _ENCRYPTED_FLAG for part in archive.infolist()):
        raise ToolFailed(f"{cannot}: it is encrypted; ask for a copy without a password")
    parts = archive.infolist()
    if sum(part.file_size for part in parts) > _MAX_UNPACKED_BYTES:
        raise ToolFailed("this file unpacks to more than 100 MB; ask for a smaller one")
    if len(parts) > _MAX_PARTS:
        raise _too_large(f"more than {_MAX_PARTS:,} parts")
    return archive


def _in_usual_form(archive: zipfile.ZipFile) -> zipfile.ZipFile:
    """Return an office file as most programs write it, so that one reader does for all.

    Namespaces of the strict form get their usual names, and backslashes in the names of parts become slashes. Drawings
    in SVG are left out: nobody reads them here, and they may declare a document type.
    """
    parts = archive.infolist()
    has_backslash = any("\\" in part.filename for part in parts)
    has_drawing = any(_is_drawing(part) for part in parts)
    if not has_backslash and not has_drawing and not _is_strict(archive):
        return archive
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as usual:
        for part in parts:
            if _is_drawing(part):
                continue
            content = _STRICT_NAMESPACE.sub(_USUAL_NAMESPACE, archive.read(part))
            usual.writestr(part.filename.replace("\\", "/"), content)
    return zipfile.ZipFile(packed)


def _is_drawing(part: zipfile.ZipInfo) -> bool:
    return part.filename.lower().endswith(".svg")


def _is_strict(archive: zipfile.ZipFile) -> bool:
    for part in archive.infolist():
        if part.filename.lower() == "_rels/.rels":
            return _STRICT in archive.read(part)
    return False


def is_encrypted_package(data: bytes) -> bool:
    """Tell whether data is an encrypted office file, which is in the container of the old ones."""
    return data.startswith(OLE_MAGIC) and _ENCRYPTED in data


def parse_xml(content: bytes) -> Any:
    """Return the root of a part. Raises ValueError: it is no XML; MemoryError, which lxml reports as broken XML."""
    etree: Any = import_module("lxml.etree")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        return etree.fromstring(content, parser)
    except etree.XMLSyntaxError as error:
        if error.code == etree.ErrorTypes.ERR_NO_MEMORY:
            raise MemoryError from error
        raise ValueError(str(error)) from error


def _check_parts(archive: zipfile.ZipFile, doctype: Callable[..., None]) -> None:
    for part in archive.infolist():
        with archive.open(part) as file:
            head = file.read(_CHUNK)
            if _is_markup(head):
                _count_elements(head, file, part.file_size, doctype)


def _is_markup(head: bytes) -> bool:
    return head[:2] in (b"\xff\xfe", b"\xfe\xff") or head.lstrip(b"\xef\xbb\xbf \t\r\n\0")[:1] == b"<"


def _count_elements(head: bytes, file: Any, size: int, doctype: Callable[..., None]) -> None:
    counter = _Counter()
    parser: Any = expat.ParserCreate(namespace_separator="}")
    if hasattr(parser, "SetReparseDeferralEnabled"):  # else a tag may be read only when twice as much is there
        parser.SetReparseDeferralEnabled(False)
    parser.StartElementHandler = counter.start
    parser.EndElementHandler = counter.end
    parser.StartDoctypeDeclHandler = doctype
    fed = 0
    chunk = head
    try:
        while chunk:
            fed += len(chunk)
            parser.Parse(chunk, False)
            if fed - parser.CurrentByteIndex > _MAX_TAG_BYTES:
                raise _too_large("a tag of more than 1 MB")
            chunk = file.read(_CHUNK)
    except (expat.ExpatError, LookupError, ValueError):  # broken, or in an encoding that the real parser may know
        if size > _MAX_UNPARSED_BYTES:
            raise ToolFailed("this file has a large part that is not plain XML; ask for a smaller one") from None


class _Counter:
    def __init__(self) -> None:
        self._depth = self._elements = self._in_row = 0
        self._row_depth = 0
        self._limit = _MAX_ELEMENTS

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        self._elements += 1
        if self._depth == 1 and name == f"{_SHEET}}}worksheet":
            self._limit = _MAX_SHEET_ELEMENTS
        if self._row_depth:
            self._in_row += 1
        elif name == f"{_SHEET}}}row":
            self._row_depth, self._in_row = self._depth, 0
        if self._elements > self._limit:
            raise _too_large(f"more than {self._limit:,} elements in one part")
        if self._in_row > _MAX_ROW_ELEMENTS:
            raise _too_large(f"more than {_MAX_ROW_ELEMENTS:,} elements in one row")
        if len(attributes) > _MAX_ATTRIBUTES or self._depth > _MAX_DEPTH:
            raise _too_large("elements with too many attributes, or nested too deep")

    def end(self, _name: str) -> None:
        if self._depth == self._row_depth:
            self._row_depth = self._in_row = 0
        self._depth -= 1


def _refuse_doctype(*_declared: object) -> None:
    raise own_document_type()


def _refuse_own_doctype(_name: str, _system: str | None, _public: str | None, is_declared: int) -> None:
    if is_declared:
        raise own_document_type()


def own_document_type() -> ToolFailed:
    return ToolFailed("this file declares its own document type, which office files do not; ask for another copy")


def _too_large(what: str) -> ToolFailed:
    return ToolFailed(f"this file has {what}, which is too much to read here; ask for a smaller one")
