"""PDFs: the text of their pages, with what is filled into forms, comments, bookmarks and the addresses of links.

PDFium reads them. It runs no script, follows no action and loads nothing from elsewhere.
"""

from __future__ import annotations

import ctypes
import re
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from ava_roles.errors import ToolFailed
from ava_roles.texts.extracted import ALL, MOST_CHARS, Extracted, Part, Wanted, WordRow, WordTable, page_ranges, size_of
from ava_roles.texts.formats.addresses import without_scheme
from ava_roles.texts.formats.pdf_tables import find_tables
from ava_roles.texts.web_page import PAGE_CHARS, PARSING_S, parsing

_MOST_ANNOTATIONS = 2_000
_MOST_OBJECTS = 20_000
_MOST_BOOKMARKS = 2_000
_VALUE_CHARS = 10_000  # of one field or comment
_VALUE_BYTES = 100_000_000  # more than a file that is read can hold
_LABEL_CHARS = 20
_NOT_IN_LABELS = re.compile(r"[^\w .-]|_")
_NAMED_FILES = 20
_STREAM = re.compile(rb"(?<!end)stream\r?\n")
_DEFLATED = re.compile(rb"/Filter\s*+\[?\s*+/(?:FlateDecode|Fl)\s*+[]/>](?!\s*+/?[A-Z0-9a-z]+Decode)")
_STREAM_HEAD = 2_000
_INFLATED_BYTES = 30_000_000
_INFLATING_S = 2.0
_LONG_STRING = 8_000
"""PDFium drops what follows the first 32,767 bytes of a string, up to 4 bytes a character, and does not say so."""
_UNKNOWN_SHARE = 0.3
"""A page with this share of characters that its fonts leave open is not readable text."""
_HYPHEN = "\ufffe"  # what PDFium returns for a hyphen and the end of its line

_BLANK = "blank, or cannot be decoded"
_PICTURE = "a picture without text"
_PICTURES = "pictures, which are not read"
_BROKEN = "broken, and cannot be read"
_LETTERS = "text in a font that does not say which letters it shows"
_MARKS = "drawn marks or stamps, which are not read"
_MEDIA = "sound, video or 3D content, which is not read"
_MANY_NOTES = "more comments, links and form fields than are read"
_CUT_STRING = "a piece of text so long that its end may be missing here"
_DAMAGED = "some of the file's data is damaged, so text of its pages may be missing"
_LONG = f"more than {PAGE_CHARS:,} characters; the rest is not read"


@parsing("PDF")
def read_pdf(data: bytes, wanted: Wanted = ALL) -> Extracted:
    """Return the text of the wanted pages, within the time limit. Raises ToolFailed."""
    until = time.monotonic() + PARSING_S
    with _Pdf(data) as pdf:
        first = wanted.first
        total = last = pdf.total
        if wanted.count is not None:
            last = min(total, first + wanted.count - 1)
        before = ""
        if 1 < first <= total:
            before = pdf.page_text(first - 1)
            pdf.lacks.clear()  # what the page before lacks is not asked for
        pages: list[Part] = []
        tables: list[WordTable] = []
        for number in range(first, last + 1):
            if time.monotonic() > until or size_of(pages) > wanted.max_chars:
                break
            text = pdf.page_text(number)
            if size_of(pages) + len(text) + len(before) > MOST_CHARS:
                break
            tables += [WordTable(len(pages), rows) for rows in pdf.tables]
            pages.append(Part(pdf.place(number), text))
        unread = first + len(pages) - 1 < last
        missing = list(pdf.missing())
        if not pdf.encrypted and _is_damaged(data):
            missing.append(_DAMAGED)
        return Extracted(
            tuple(pages),
            pdf.title,
            total,
            tuple(missing),
            unread,
            before,
            pdf.encrypted,
            word_tables=tuple(tables),
        )


class _Pdf:
    """A PDF that PDFium has opened.

    `lacks`: on which pages there is something that their texts do not have. `tables`: those of the page that was read
    last, by the lines of its text.
    """

    def __init__(self, data: bytes) -> None:
        pdfium: Any = import_module("pypdfium2")  # has no types
        self._raw: Any = import_module("pypdfium2.raw")
        try:
            self._file = pdfium.PdfDocument(data)
        except pdfium.PdfiumError as error:
            if error.err_code == self._raw.FPDF_ERR_PASSWORD:
                raise ToolFailed("this PDF needs a password; ask for a copy without one") from None
            raise ToolFailed("this PDF cannot be read: it is damaged, or no PDF; ask for another copy") from None
        self._failure: type[Exception] = pdfium.PdfiumError
        self.lacks: defaultdict[str, list[int]] = defaultdict(list)
        self.tables: list[list[WordRow]] = []
        self.total = len(self._file)
        self.title = str(self._file.get_metadata_value("Title")).strip() or None
        self.encrypted = self._raw.FPDF_GetSecurityHandlerRevision(self._file) != -1
        kind = self._raw.FPDF_GetFormType(self._file)
        self._has_xfa = kind in (self._raw.FORMTYPE_XFA_FULL, self._raw.FORMTYPE_XFA_FOREGROUND)
        if kind != self._raw.FORMTYPE_NONE:
            self._file.init_forms()
        self._has_more_bookmarks = False
        if not self.total:
            raise ToolFailed("this PDF cannot be read: no page of it can be found; ask for another copy")
        self._bookmarks = self._read_bookmarks()

    def __enter__(self) -> _Pdf:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def place(self, number: int) -> str:
        """Return a page's number, with what is printed on it where that differs, e.g. `page 4 (iv)`."""
        label = _string(self._raw.FPDF_GetPageLabel, self._file, number - 1)
        label = _NOT_IN_LABELS.sub("", label)[:_LABEL_CHARS].strip()
        if label in ("", str(number)):
            return f"page {number}"
        return f"page {number} ({label})"

    def missing(self) -> Iterator[str]:
        """Yield sentences on what is in the file and not in the texts of its pages."""
        for lack, numbers in self.lacks.items():
            yield _describe_lack(lack, numbers)
        if self._has_xfa:
            yield "this is an XFA form: what only XFA has, and its pages do not show, is not read"
        if self._has_more_bookmarks:
            yield f"bookmarks after the first {_MOST_BOOKMARKS:,} are not read"
        files = [_line(name) for name in self._attachments()]
        if files:
            names = ", ".join(files)
            more = self._raw.FPDFDoc_GetAttachmentCount(self._file) - len(files)
            if more > 0:
                names += f" and {more:,} more"
            yield f"attached files: {names}"

    def _read_bookmarks(self) -> dict[int, list[str]]:
        """Return the titles of the bookmarks by the numbers of their pages."""
        titles: defaultdict[int, list[str]] = defaultdict(list)
        for number, bookmark in enumerate(self._file.get_toc()):
            if number == _MOST_BOOKMARKS:
                self._has_more_bookmarks = True
                break
            destination = bookmark.get_dest()
            page = 1
            if destination is not None:
                page += destination.get_index() or 0
            titles[page].append(_line(bookmark.get_title()))
        return titles

    def _attachments(self) -> Iterator[str]:
        for number in range(min(self._raw.FPDFDoc_GetAttachmentCount(self._file), _NAMED_FILES)):
            attachment = self._raw.FPDFDoc_GetAttachment(self._file, number)
            yield _string(self._raw.FPDFAttachment_GetName, attachment) or "without a name"

    def page_text(self, number: int) -> str:
        """Return the text of a page, then its form fields and comments; note what it lacks, and its tables."""
        self.tables = []
        try:
            page = self._file[number - 1]
            page.set_rotation(0)  # PDFium reads the lines of a turned page in the order in which they are seen
            text_page = page.get_textpage()
        except self._failure:
            self.lacks[_BROKEN].append(number)
            return ""
        chars = text_page.count_chars()
        text = ""
        if chars > 0:
            text = text_page.get_text_range(0, min(chars, PAGE_CHARS))
        tables = find_tables(self._raw, text_page, text)
        self.tables = _in_shown_lines(tables, text)
        text = _shown(text).strip()
        if chars > PAGE_CHARS:
            self.lacks[_LONG].append(number)
            text += "\n(cut here: the page has more text)"
        self._note_objects(page, number, text)
        if self._has_long_string(text_page, chars):
            self.lacks[_CUT_STRING].append(number)
        notes = [*self._other_titles(number, text), *self._annotations(page, text_page, number)]
        text_page.close()
        page.close()
        return "\n\n".join(filter(None, [text, "\n".join(notes)]))

    def _other_titles(self, number: int, text: str) -> Iterator[str]:
        """Yield the bookmarks of a page that are no headings on it."""
        titles = self._bookmarks.get(number, ())
        letters = _letters(text) if titles else ""
        for title in titles:
            if _letters(title) not in letters:
                yield f"[bookmark] {title}"

    def _note_objects(self, page: Any, number: int, text: str) -> None:
        count = self._raw.FPDFPage_CountObjects(page)
        if not text and count:
            self.lacks[_PICTURE].append(number)
        elif not text:
            self.lacks[_BLANK].append(number)
        elif any(self._is_picture(page, index) for index in range(min(count, _MOST_OBJECTS))):
            self.lacks[_PICTURES].append(number)
        unknown = sum(_is_unknown(char) for char in text)
        if text and unknown > _UNKNOWN_SHARE * len(text):
            self.lacks[_LETTERS].append(number)

    def _has_long_string(self, text_page: Any, chars: int) -> bool:
        """Tell whether one piece of a page's text is so long that PDFium may have cut it.

        Samples are taken at half of that length: two of them in the same piece mean that it is that long.
        """
        last_address = None
        for index in range(0, chars, _LONG_STRING // 2):
            piece = self._raw.FPDFText_GetTextObject(text_page, index)
            address = ctypes.cast(piece, ctypes.c_void_p).value
            if address is not None and address == last_address:
                return True
            last_address = address
        return False

    def _is_picture(self, page: Any, index: int) -> bool:
        raw = self._raw
        item = raw.FPDFPage_GetObject(page, index)
        kind = raw.FPDFPageObj_GetType(item)
        if kind != raw.FPDF_PAGEOBJ_FORM:
            return bool(kind == raw.FPDF_PAGEOBJ_IMAGE)
        # A form holds drawings that are used again, often around one picture.
        for inner in range(min(raw.FPDFFormObj_CountObjects(item), _MOST_ANNOTATIONS)):
            if raw.FPDFPageObj_GetType(raw.FPDFFormObj_GetObject(item, inner)) == raw.FPDF_PAGEOBJ_IMAGE:
                return True
        return False

    # -- form fields, comments and links ------------------------------------------------------------------------------

    def _annotations(self, page: Any, text_page: Any, number: int) -> Iterator[str]:
        raw = self._raw
        count = raw.FPDFPage_GetAnnotCount(page)
        room = PAGE_CHARS
        for index in range(min(count, _MOST_ANNOTATIONS)):
            note = raw.FPDFPage_GetAnnot(page, index)
            if not note:
                continue
            try:
                line = self._note(note, text_page, number)
            finally:
                raw.FPDFPage_CloseAnnot(note)
            room -= len(line)
            if room < 0:
                self.lacks[_MANY_NOTES].append(number)
                return
            if line:
                yield line
        if count > _MOST_ANNOTATIONS:
            self.lacks[_MANY_NOTES].append(number)

    def _note(self, note: Any, text_page: Any, number: int) -> str:
        raw = self._raw
        kind = raw.FPDFAnnot_GetSubtype(note)
        if kind == raw.FPDF_ANNOT_WIDGET:
            return self._field(note)
        if kind == raw.FPDF_ANNOT_LINK:
            return self._link(note, text_page)
        if kind == raw.FPDF_ANNOT_POPUP:
            return ""  # its text is that of the comment to which it belongs
        if kind in (raw.FPDF_ANNOT_SOUND, raw.FPDF_ANNOT_MOVIE, raw.FPDF_ANNOT_RICHMEDIA, raw.FPDF_ANNOT_THREED):
            self.lacks[_MEDIA].append(number)
        text = _line(_string(raw.FPDFAnnot_GetStringValue, note, b"Contents"))
        if kind == raw.FPDF_ANNOT_FILEATTACHMENT:
            name = _string(raw.FPDFAttachment_GetName, raw.FPDFAnnot_GetFileAttachment(note)) or "without a name"
            return f"[attached file, not read: {_line(name)}] {text}".rstrip()
        if not text:
            if kind in (raw.FPDF_ANNOT_INK, raw.FPDF_ANNOT_STAMP):
                self._note_marks(number)
            return ""
        author = _line(_string(raw.FPDFAnnot_GetStringValue, note, b"T"))
        if not author:
            return f"[comment] {text}"
        return f"[comment by {author}] {text}"

    def _note_marks(self, number: int) -> None:
        if number not in self.lacks[_MARKS]:
            self.lacks[_MARKS].append(number)

    def _field(self, note: Any) -> str:
        raw, form = self._raw, self._file.formenv
        if form is None:
            return ""
        name = _line(_string(raw.FPDFAnnot_GetFormFieldName, form, note)) or "without a name"
        kind = raw.FPDFAnnot_GetFormFieldType(form, note)
        if kind == raw.FPDF_FORMFIELD_PUSHBUTTON:
            return ""
        if kind in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
            choice = _line(_string(raw.FPDFAnnot_GetFormFieldExportValue, form, note))
            if choice.lower() not in ("", "yes", "on", "off"):
                name = f"{name} ({choice})"
            if raw.FPDFAnnot_IsChecked(form, note):
                return f"[field {name}] checked"
            return f"[field {name}] not checked"
        if kind == raw.FPDF_FORMFIELD_SIGNATURE:
            return f"[field {name}] a signature, which is not checked"
        value = _line(_string(raw.FPDFAnnot_GetFormFieldValue, form, note))
        if kind in (raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX):
            value = ", ".join(self._chosen_options(form, note)) or value
        return f"[field {name}] {value or '(empty)'}"

    def _chosen_options(self, form: Any, note: Any) -> Iterator[str]:
        raw = self._raw
        count = max(raw.FPDFAnnot_GetOptionCount(form, note), 0)
        for index in range(min(count, _MOST_ANNOTATIONS)):
            if raw.FPDFAnnot_IsOptionSelected(form, note, index):
                yield _line(_string(raw.FPDFAnnot_GetOptionLabel, form, note, index))

    def _link(self, note: Any, text_page: Any) -> str:
        raw = self._raw
        link = raw.FPDFAnnot_GetLink(note)
        action = raw.FPDFLink_GetAction(link) if link else None
        if not action:
            return ""
        kind = raw.FPDFAction_GetType(action)
        if kind == raw.PDFACTION_URI:
            address = _line(_bytes(raw.FPDFAction_GetURIPath, self._file, action).decode("utf-8", "replace"))
        elif kind in (raw.PDFACTION_LAUNCH, raw.PDFACTION_REMOTEGOTO):
            address = _line(_bytes(raw.FPDFAction_GetFilePath, action).decode("utf-8", "replace"))
        else:
            return ""
        rect = raw.FS_RECTF()
        text = ""
        if raw.FPDFAnnot_GetRect(note, rect):
            sides = (rect.left, min(rect.top, rect.bottom), rect.right, max(rect.top, rect.bottom))
            text = _line(text_page.get_text_bounded(*sides))
        bare_address = without_scheme(address)
        if not bare_address or bare_address in "".join(text.split()):
            return ""
        if not text:
            return f"[link] {address}"
        return f"[link {text!r}] {address}"


def _is_damaged(data: bytes) -> bool:
    """Tell whether a deflated stream, other than a picture, is truncated. PDFium shows its beginning without an error.

    Checks for at most 2 s, and the first 30 MB of each stream.
    """
    until = time.monotonic() + _INFLATING_S
    for stream in _STREAM.finditer(data):
        if time.monotonic() > until:
            return False
        before = data[max(0, stream.start() - _STREAM_HEAD) : stream.start()]
        head = before[before.rfind(b" obj") :]
        end = data.find(b"endstream", stream.end())
        if end < 0 or b"/Image" in head or _DEFLATED.search(head) is None:
            continue
        if not _has_end(data[stream.end() + 2 : end]):
            return True
    return False


def _has_end(deflated: bytes) -> bool:
    """Tell whether deflated data has its end. Its checksum, which many programs leave out, does not count."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        inflater.decompress(deflated, _INFLATED_BYTES)
    except zlib.error:
        return False
    return inflater.eof or bool(inflater.unconsumed_tail)


def _shown(text: str) -> str:
    return text.replace("\r\n", "\n").replace(_HYPHEN, "-\n").replace("\0", "")


def _in_shown_lines(tables: Sequence[Sequence[WordRow]], text: str) -> list[list[WordRow]]:
    """Return tables with the lines that their rows have in the page's text as it is shown."""
    if not tables:
        return []
    shown = _shown(text)
    above = shown[: len(shown) - len(shown.lstrip())].count("\n")
    numbers = [-above]
    for line in text.split("\r\n"):
        numbers.append(numbers[-1] + _shown(line).count("\n") + 1)
    in_shown: list[list[WordRow]] = []
    for rows in tables:
        in_shown.append([row._replace(first=numbers[row.first], last=numbers[row.last]) for row in rows])
    return in_shown


def _string(call: Callable[..., int], *arguments: Any) -> str:
    """Return a text that PDFium gives in UTF-16, with its length in bytes."""
    return _bytes(call, *arguments, wide=True).decode("utf-16-le", "replace")


def _bytes(call: Callable[..., int], *arguments: Any, wide: bool = False) -> bytes:
    """Call a function of PDFium twice: for the size of its text, then for the text, which ends with a null."""
    null_bytes = 2 if wide else 1
    size = call(*arguments, None, 0)
    if not null_bytes < size <= _VALUE_BYTES:
        return b""
    buffer = ctypes.create_string_buffer(size)
    target = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)) if wide else buffer
    call(*arguments, target, size)
    return buffer.raw[: size - null_bytes]


def _line(text: str) -> str:
    beginning = text[: 2 * _VALUE_CHARS]
    line = " ".join(beginning.replace("\0", "").replace(_HYPHEN, "-").split())
    if len(text) == len(beginning) and len(line) <= _VALUE_CHARS:
        return line
    return f"{line[:_VALUE_CHARS]} (cut here: it is longer)"


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))


def _describe_lack(lack: str, pages: Sequence[int]) -> str:
    """Return a sentence on what some pages lack, e.g. `pages 2 to 4 are blank, or cannot be decoded`."""
    are_several = len(pages) > 1
    if lack in (_BLANK, _PICTURE, _BROKEN):
        verb = "are" if are_several else "is"
    else:
        verb = "have" if are_several else "has"
    if are_several and lack == _PICTURE:
        lack = "pictures without text"
    return f"{page_ranges(pages)} {verb} {lack}"


def _is_unknown(char: str) -> bool:
    """Tell whether a character has no meaning outside its font: a control, a private one or a replacement."""
    if char < " ":
        return char not in "\n\t"
    return "\ue000" <= char <= "\uf8ff" or char == "\ufffd"
