"""Opens an office file, a zip archive of XML, after a check that it can be parsed within bounds."""

from __future__ import annotations

import io
import posixpath
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import IO, Any, NamedTuple
from urllib.parse import unquote
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
_PROGRAMS = {
    ".docx": "Word or LibreOffice",
    ".pptx": "PowerPoint or LibreOffice",
    ".xlsx": "Excel or LibreOffice",
    ".rtf": "Word or LibreOffice",
}
"""What opens a file of an old format and saves it as a new one; for other formats, LibreOffice does so alone."""
_LOCAL_HEADER = b"PK\x03\x04"
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_SIZE_LATER = 0x8
_SIZES = b"PK\x07\x08"
"""What may stand before the sizes of a part that are written after it."""
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError)
"""What `zipfile` raises over a damaged part, or one in a form that it does not know."""
_STRICT = b"http://purl.oclc.org/ooxml/"
_STRICT_NAMESPACE = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")
_USUAL_NAMESPACE = rb"http://schemas.openxmlformats.org/\1/2006/"
"""ISO/IEC 29500 has two forms: `transitional`, which everybody writes, and `strict`, with other namespaces."""
_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


class OfficeArchive(zipfile.ZipFile):
    """An archive whose parts are found by any spelling of their names: other case, backslashes, `%20` for a blank."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._names: dict[str, str] = {}
        for name in self.namelist():
            self._names.setdefault(part_key(name), name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.NameToInfo or part_key(name) in self._names)

    def getinfo(self, name: str) -> zipfile.ZipInfo:
        """Return a part by its own name, or else by another spelling of it. Raises KeyError if there is none."""
        if name in self.NameToInfo:
            return super().getinfo(name)
        return super().getinfo(self._names.get(part_key(name), name))


def part_key(name: str) -> str:
    """Return what all spellings of a part's name have in common; case does not count (ISO/IEC 29500-2, 6.2.2)."""
    path = unquote(name).replace("\\", "/")
    return posixpath.normpath(f"/{path}").lstrip("/").lower()


class OfficeFile(NamedTuple):
    """The archive of an office file, without the parts that are `damaged`; `is_cut`: its end is missing."""

    archive: OfficeArchive
    damaged: tuple[str, ...] = ()
    is_cut: bool = False


class _LeftOut(Exception):
    """Raised over a part that nobody reads, and that nobody may read."""


def open_office_file(data: bytes, kind: str, suffix: str, *, has_doctypes: bool = False) -> OfficeFile:
    """Return the archive, as far as it is whole. Raises ToolFailed: encrypted, older, or too much to read.

    `has_doctypes`: a part may name a document type that is elsewhere, but may not declare one.
    """
    whole_parts = None
    if data.startswith(_LOCAL_HEADER) and not zipfile.is_zipfile(io.BytesIO(data)):
        whole_parts = _whole_parts(data)
    is_cut = whole_parts is not None
    archive, damaged = _in_usual_form(open_archive(whole_parts or data, kind, suffix))
    more_damaged, unread = _check_parts(archive, _refuse_own_doctype if has_doctypes else _refuse_doctype)
    left_out = {*more_damaged, *unread}
    if left_out:
        archive = _copy(archive, lambda part: part.filename not in left_out)
    return OfficeFile(archive, (*damaged, *more_damaged), is_cut)


def _whole_parts(data: bytes) -> bytes | None:
    """Return an archive of the parts before the place where another one is cut off; None if there is none.

    Each part has a header before it, beside the list at the end of the archive (APPNOTE 4.3).
    """
    packed = io.BytesIO()
    room = _MAX_UNPACKED_BYTES
    position = count = 0
    with zipfile.ZipFile(packed, "w") as archive:
        while data.startswith(_LOCAL_HEADER, position) and count < _MAX_PARTS:
            if len(data) < position + _LOCAL.size:
                break
            _sign, _version, flags, method, _time, _date, crc, size, _whole, name_size, extra_size = _LOCAL.unpack_from(
                data, position
            )
            start = position + _LOCAL.size + name_size + extra_size
            is_size_later = bool(flags & _SIZE_LATER)
            if flags & _ENCRYPTED_FLAG or (is_size_later and method != zipfile.ZIP_DEFLATED):
                break
            name = data[position + _LOCAL.size : start - extra_size].decode("utf-8", "replace")
            content, end = _unpacked(data, start, None if is_size_later else start + size, method, room)
            if is_size_later:
                end += len(_SIZES) if data.startswith(_SIZES, end) else 0
                crc = int.from_bytes(data[end : end + 4], "little")
                end += 12
            if content is None or end > len(data):
                break
            position = end
            room -= len(content)
            if zlib.crc32(content) == crc and name not in archive.NameToInfo:
                archive.writestr(name, content)
                count += 1
    return packed.getvalue() if count else None


def _unpacked(data: bytes, start: int, end: int | None, method: int, room: int) -> tuple[bytes | None, int]:
    """Return a part that begins at `start`, and where it ends; None if it is not whole, or more than `room` bytes."""
    if method == zipfile.ZIP_STORED and end is not None:
        return data[start:end], end
    if method != zipfile.ZIP_DEFLATED:
        return None, start
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    content = bytearray()
    at = start
    stop = len(data) if end is None else min(end, len(data))
    try:
        while not stream.eof and at < stop and len(content) <= room:
            piece = data[at : min(at + _CHUNK, stop)]
            content += stream.decompress(piece)
            at += len(piece)
    except zlib.error:
        return None, start
    if not stream.eof or len(content) > room:
        return None, start
    return bytes(content), at - len(stream.unused_data)


def open_archive(data: bytes, kind: str, suffix: str) -> OfficeArchive:
    """Return the archive, whose parts are bounded in number and size, but not looked at. Raises ToolFailed."""
    cannot = f"this {kind} cannot be read"
    if data.startswith(OLE_MAGIC):
        if is_encrypted_package(data):
            raise ToolFailed(f"{cannot}: it is encrypted; ask for a copy without a password")
        raise ToolFailed(f"{cannot}: it is in an old binary format; {save_as(suffix)}")
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise ToolFailed(f"{cannot}: it is damaged or not a {suffix} file; ask for another copy")
    archive = OfficeArchive(io.BytesIO(data))
    if any(part.flag_bits & _ENCRYPTED_FLAG for part in archive.infolist()):
        raise ToolFailed(f"{cannot}: it is encrypted; ask for a copy without a password")
    parts = archive.infolist()
    if sum(part.file_size for part in parts) > _MAX_UNPACKED_BYTES:
        raise ToolFailed("this file unpacks to more than 100 MB; ask for a smaller one")
    if len(parts) > _MAX_PARTS:
        raise _too_large(f"more than {_MAX_PARTS:,} parts")
    return archive


def save_as(suffix: str) -> str:
    """Return what to do about a file that is to be read in the format of another suffix, e.g. `.docx`."""
    program = _PROGRAMS.get(suffix, "LibreOffice")
    return f"ask for a copy saved as {suffix}, or open it in {program} and save it so"


def _in_usual_form(archive: OfficeArchive) -> tuple[OfficeArchive, list[str]]:
    """Return an office file as most programs write it, so that one reader does for all, and its damaged parts.

    Namespaces of the strict form get their usual names, and backslashes in the names of parts become slashes. Drawings
    in SVG are left out: nobody reads them here, and they may declare a document type.
    """
    parts = archive.infolist()
    has_backslash = any("\\" in part.filename for part in parts)
    has_drawing = any(_is_drawing(part) for part in parts)
    if not has_backslash and not has_drawing and not _is_strict(archive):
        return archive, []
    damaged: list[str] = []
    usual = _copy(archive, lambda part: not _is_drawing(part), damaged)
    return usual, damaged


def _copy(
    archive: zipfile.ZipFile, is_kept: Callable[[zipfile.ZipInfo], bool], damaged: list[str] | None = None
) -> OfficeArchive:
    """Return some parts of an archive in their usual form; the names of damaged ones are added to `damaged`."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as copy:
        for part in filter(is_kept, archive.infolist()):
            name = part.filename.replace("\\", "/")
            try:
                content = archive.read(part)
            except _DAMAGE:
                if damaged is not None:
                    damaged.append(name)
                continue
            copy.writestr(name, _STRICT_NAMESPACE.sub(_USUAL_NAMESPACE, content))
    return OfficeArchive(packed)


def _is_drawing(part: zipfile.ZipInfo) -> bool:
    return part.filename.lower().endswith(".svg")


def _is_strict(archive: zipfile.ZipFile) -> bool:
    with suppress(KeyError, *_DAMAGE):
        return _STRICT in archive.read("_rels/.rels")
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


def _check_parts(archive: zipfile.ZipFile, doctype: Callable[..., None]) -> tuple[list[str], list[str]]:
    """Return the names of damaged parts, and of those that nobody reads and that have a document type.

    Raises ToolFailed: a part has too much in it, or one that is read has a document type.
    """
    damaged: list[str] = []
    unread: list[str] = []
    for part in archive.infolist():
        is_read = _is_read(part.filename)
        try:
            with archive.open(part) as file:
                head = file.read(_CHUNK)
                if _is_markup(head):
                    _count_elements(head, file, part.file_size, doctype if is_read else _leave_out)
        except _LeftOut:
            unread.append(part.filename)
        except _DAMAGE:
            damaged.append(part.filename)
    return damaged, unread


def _is_read(name: str) -> bool:
    """Tell whether a part may be one that a reader asks for: others are pictures, fonts and embedded files."""
    lower = name.lower()
    if "/media/" in lower or "/embeddings/" in lower:
        return False
    return lower.endswith((".xml", ".rels", ".vml"))


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


def _leave_out(*_declared: object) -> None:
    raise _LeftOut


def _refuse_doctype(*_declared: object) -> None:
    raise own_document_type()


def _refuse_own_doctype(_name: str, _system: str | None, _public: str | None, is_declared: int) -> None:
    if is_declared:
        raise own_document_type()


def own_document_type() -> ToolFailed:
    return ToolFailed("this file declares its own document type, which office files do not; ask for another copy")


def _too_large(what: str) -> ToolFailed:
    return ToolFailed(f"this file has {what}, which is too much to read here; ask for a smaller one")
