"""EPUB books: the words of each section in the order of reading; what cannot be text is named.

A section is a page of HTML in a zip archive. Nothing outside the archive is opened, and no script runs.
"""

from __future__ import annotations

import posixpath
import time
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from ava_roles.errors import ToolFailed
from ava_roles.texts.encodings import decode
from ava_roles.texts.extracted import ALL, Extracted, Part, Wanted
from ava_roles.texts.formats.addresses import count_of_addresses, unseen_addresses
from ava_roles.texts.formats.office import OfficeArchive, open_archive, own_document_type, parse_xml, part_key
from ava_roles.texts.page_text import read_page_text
from ava_roles.texts.phrases import count_phrase
from ava_roles.texts.web_page import PARSING_S, parsing

_TEXT_CHARS = 5_000_000
_SECTION_CHARS = 10_000_000
_XML_BYTES = 5_000_000
_MOST_SECTIONS = 5_000
_MOST_NAMED = 50
_NAME_CHARS = 200
_ABOUT_CHARS = 10_000
_ABOUT = ("creator", "contributor", "publisher", "date", "subject", "description", "rights")
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "image/svg+xml", "text/x-oeb1-document")
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"


@parsing("EPUB book")
def read_epub(data: bytes, _wanted: Wanted = ALL) -> Extracted:
    """Return a book as text, a part for each section. Raises ToolFailed."""
    with open_archive(data, "EPUB book", ".epub") as archive:
        return _Book(archive).extracted()


class _Book:
    def __init__(self, archive: OfficeArchive) -> None:
        self._archive = archive
        self._until = time.monotonic() + PARSING_S
        self._gaps: list[str] = []
        self._addresses: set[bytes] = set()
        self._package = self._package_part()
        self._root = self._xml(self._package)
        self._encrypted = self._encrypted_parts()

    def extracted(self) -> Extracted:
        items = {item.get("id"): item for item in _below(self._root, "manifest")}
        spine = [item.get("idref") for item in _below(self._root, "spine")]
        parts: list[Part] = []
        unread = False
        size = 0
        for number, item_id in enumerate(spine, 1):
            is_full = number > _MOST_SECTIONS or size >= _TEXT_CHARS
            is_late = time.monotonic() > self._until
            if is_full or is_late:
                rest = f"sections {number:,} to {len(spine):,}, which are"
                if number == len(spine):
                    rest = f"section {number:,}, which is"
                self._gaps.append(f"{rest} too much to read")
                unread = True
                break
            text = self._section(number, items.get(item_id))[: _TEXT_CHARS - size]
            size += len(text)
            if text:
                parts.append(Part(f"section {number}", text))
        if not parts and not self._gaps:
            raise _no_text()
        title, about = self._about()
        if about:
            parts.insert(0, Part("about this book", about))
        outside = _count_pages_outside(items, spine)
        if outside > 0:
            self._gaps.append(f"{count_phrase(outside, 'page')} outside the order of reading")
        return Extracted(tuple(parts), title, max(len(spine), 1), self._missing(), unread)

    def _missing(self) -> tuple[str, ...]:
        phrases = self._gaps[:_MOST_NAMED]
        more = len(self._gaps) - _MOST_NAMED
        if more > 0:
            phrases.append(f"{count_phrase(more, 'more note')} on sections")
        return (*phrases, *count_of_addresses(self._addresses))

    # -- the package ------------------------------------------------------------------------------------------

    def _package_part(self) -> str:
        """Return the name of the part that lists the others."""
        if _CONTAINER in self._archive:
            for each in self._xml(_CONTAINER).iter():
                path = each.get("full-path") or ""
                if _local(each) == "rootfile" and path in self._archive:
                    return path
        raise _no_text()

    def _xml(self, part: str) -> Any:
        """Return the XML of a part. Raises ToolFailed if it is too large, or declares entities."""
        if self._archive.getinfo(part).file_size > _XML_BYTES:
            raise ToolFailed("this EPUB book lists too much to read here; ask for a smaller one")
        try:
            root = parse_xml(self._archive.read(part))
        except ValueError:
            raise _no_text() from None
        document = root.getroottree().docinfo
        if document.doctype and any(document.internalDTD.iterentities()):
            raise own_document_type()
        return root

    def _encrypted_parts(self) -> set[str]:
        if _ENCRYPTION not in self._archive:
            return set()
        references = [each for each in self._xml(_ENCRYPTION).iter() if _local(each) == "CipherReference"]
        return {part_key(each.get("URI") or "") for each in references}

    def _about(self) -> tuple[str | None, str]:
        """Return the title of the book, and what its package says about it."""
        title: str | None = None
        lines: list[str] = []
        for each in _below(self._root, "metadata"):
            name = _local(each)
            words = " ".join("".join(each.itertext()).split())[:_ABOUT_CHARS]
            if not words:
                continue
            if name == "title" and title is None:
                title = words[:2_000]
            elif name in _ABOUT:
                lines.append(f"{name.capitalize()}: {words}")
        return title, "\n".join(lines)[:_ABOUT_CHARS]

    # -- sections ---------------------------------------------------------------------------------------------

    def _section(self, number: int, item: Any) -> str:
        """Return the text of a section; note what it lacks."""
        section = f"section {number}"
        address = ""
        if item is not None:
            address = item.get("href") or ""
        path = unquote(address.partition("#")[0]).replace("\\", "/")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(self._package), path))
        if part_key(file) in self._encrypted:
            raise ToolFailed("this EPUB book cannot be read: it is encrypted; ask for a copy without protection")
        if item is None or file not in self._archive:
            self._gaps.append(f"{section}, which is not in the file ({address[:_NAME_CHARS]})")
            return ""
        if not _is_page(item):
            media_type = item.get("media-type") or ""
            self._gaps.append(f"{section}, which is no page ({media_type[:_NAME_CHARS]})")
            return ""
        try:
            data = self._archive.read(file)
        except (zipfile.BadZipFile, ValueError, OSError):
            data = b"\0"  # which is no text: the section counts as damaged
        decoded = decode(data)
        if decoded is None:
            self._gaps.append(f"{section}, which is damaged")
            return ""
        html = decoded.text
        if len(html) > _SECTION_CHARS:
            self._gaps.append(f"the text of {section} after its first {_SECTION_CHARS:,} characters")
        page = read_page_text(html[:_SECTION_CHARS], is_xml=True, mark_tables=True)
        self._addresses |= unseen_addresses(data)
        lacks = [*page.missing, *page.unseen]
        if lacks:
            self._gaps.append(f"in {section} {', '.join(lacks)}")
        return page.text


def _no_text() -> ToolFailed:
    return ToolFailed("this file has no text of its kind: it is damaged, or has the name of another kind")


def _local(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _below(root: Any, name: str) -> list[Any]:
    """Return the elements inside those of a name that the root has."""
    elements: list[Any] = []
    for holder in root:
        if _local(holder) == name:
            elements += [each for each in holder if isinstance(each.tag, str)]
    return elements


def _is_page(item: Any) -> bool:
    return (item.get("media-type") or "").partition(";")[0].strip().lower() in _PAGES


def _count_pages_outside(items: Mapping[str, Any], spine: Sequence[str]) -> int:
    """Return how many pages of a book are not in its order of reading, besides its table of contents."""
    page_ids = {item_id for item_id, item in items.items() if _is_page(item)}
    pages = [item_id for item_id in page_ids if items[item_id].get("properties") != "nav"]
    return len(pages) - len(page_ids.intersection(spine))
