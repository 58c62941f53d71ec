"""The files of a workspace as passages, for a search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

from ava_extras import has_extra
from ava_roles.errors import ToolFailed
from ava_roles.passages import HEADING_CHARS, FileMatch, Passage, PassageRanking, split_passages
from ava_roles.sandbox.paths import Root
from ava_roles.tools import parser_process
from ava_roles.tools.pages import hide_pages, is_pdf
from ava_roles.tools.text_files import decode_text, is_binary, read_unpacked, without_tags
from ava_roles.words import Query

_MAX_FILE_BYTES = 10_000_000
_HEAD_BYTES = 1_024
_NOT_TEXT, _TOO_LARGE = "not text, or unreadable", "too large or damaged"
_NO_EXTRA = "documents, which need the extra `documents`"


class PassageReader:
    """Reads files as passages. It keeps the pages of PDFs, which take seconds to parse. Blocks.

    `size`: bytes that were read, and characters of passages. Of a file that is not text, as its first kilobyte shows,
    only that counts. `documents`: how many documents were read.
    """

    def __init__(self, root: Root) -> None:
        self.size = self.documents = 0
        self._root = root
        self._pages: dict[str, tuple[tuple[int, str], ...]] = {}

    def read(self, name: str, size: int, hide: Callable[[str], str] = str) -> list[Passage] | str:
        """Return the passages of a file; why not, if it cannot be read."""
        if size > _MAX_FILE_BYTES:
            return _TOO_LARGE
        found = self._passages(name, size, hide)
        if not isinstance(found, str):
            self.size += sum(len(passage.text) for passage in found)
        return found

    def _passages(self, name: str, size: int, hide: Callable[[str], str]) -> list[Passage] | str:
        try:
            if not is_document(name):
                return self._text_passages(name, size, hide)
            self.size += size
            self.documents += 1
            if name not in self._pages:
                if not has_extra("documents"):
                    return _NO_EXTRA
                data, _more = self._root.read(name, _MAX_FILE_BYTES)
                if not is_pdf(data):
                    return list(split_passages(parser_process.read_docx(data, hide)))
                self._pages[name] = parser_process.read_pdf(data, count=100).pages
            pages = hide_pages(self._pages[name], hide)
            return [_on_page(page, each.text) for page, text in pages for each in split_passages(text)]
        except ToolFailed:
            return _NOT_TEXT

    def hidden(self, file: FileMatch, query: Query, hide: Callable[[str], str]) -> FileMatch:
        """Return a file's best passages with secrets hidden; none if the words match only in secrets."""
        changed = False

        def noted(text: str) -> str:
            nonlocal changed
            shown = hide(text)
            changed = changed or shown != text
            return shown

        found = self.read(file.path, 0, noted)
        if isinstance(found, str):
            return FileMatch(file.path, ())
        if not changed and {each.text for each in file.passages} <= {each.text for each in found}:
            return file
        ranking = PassageRanking(query)
        ranking.add(file.path, found)
        room = len(file.path) + sum(len(passage.text) + HEADING_CHARS for passage in file.passages)
        return next(iter(ranking.best(1, room)), FileMatch(file.path, ()))

    def _text_passages(self, name: str, size: int, hide: Callable[[str], str]) -> list[Passage] | str:
        head, longer = read_unpacked(self._root, name, _HEAD_BYTES)
        self.size += len(head)
        if longer and is_binary(head):
            return _NOT_TEXT
        data, more = read_unpacked(self._root, name, _MAX_FILE_BYTES)
        self.size += max(len(data), size)
        if more:
            return _TOO_LARGE
        text = decode_text(data)
        if text is None:
            return _NOT_TEXT
        if PurePosixPath(name.removesuffix(".gz")).suffix.lower() in (".html", ".htm", ".xhtml"):
            text = without_tags(text)
        return list(split_passages(hide(text)))


def _on_page(page: int, text: str) -> Passage:
    """Return a passage of a page; as a place in lines does, its place says how many lines it has."""
    count = text.count("\n") + 1
    return Passage(f"page {page}, {count} line{'s' * (count > 1)}", text)


def is_document(name: str) -> bool:
    """Tell whether a file is a PDF or a Word document by its name."""
    return PurePosixPath(name).suffix.lower() in (".pdf", ".docx")
