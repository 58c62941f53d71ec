"""Parsers of documents, and of the articles of web pages.

They take every file to be hostile. The seam is `PARSERS`. Only `texts/parser_process.py` loads them, and forks a
process for each file (not on Windows). Those of PDFs, workbooks and articles need the packages of the extra
`documents`: without them, `read_file` says what is missing, and only the words of a web page remain, without headings
and links.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module

from ava_roles.texts.extracted import Extracted, Wanted
from ava_roles.texts.formats.article import read_article
from ava_roles.texts.formats.epub import read_epub
from ava_roles.texts.formats.mail import read_mail
from ava_roles.texts.formats.notebook import read_notebook
from ava_roles.texts.formats.odp import read_odp
from ava_roles.texts.formats.ods import read_ods
from ava_roles.texts.formats.odt import read_odt
from ava_roles.texts.formats.old_workbook import read_workbook, read_xls
from ava_roles.texts.formats.pdf import read_pdf
from ava_roles.texts.formats.rtf import read_rtf
from ava_roles.texts.formats.slides import read_pptx
from ava_roles.texts.formats.word import read_docx
from ava_roles.texts.formats.workbook import read_xlsx

PARSERS: dict[str, Callable[[bytes, Wanted], Extracted]] = {
    "PDF": read_pdf,
    "Word document": read_docx,
    "presentation": read_pptx,
    "workbook": read_workbook,
    "OpenDocument text": read_odt,
    "OpenDocument presentation": read_odp,
    "OpenDocument spreadsheet": read_ods,
    "EPUB book": read_epub,
    "RTF file": read_rtf,
    "email": read_mail,
    "notebook": read_notebook,
}
"""The parser of each kind of document (`texts/extracted.py`)."""
_PACKAGES: dict[str, tuple[str, ...]] = {
    "PDF": ("pypdfium2.raw",),
    "Word document": ("lxml.etree",),
    "presentation": ("lxml.etree",),
    "OpenDocument text": ("lxml.etree",),
    "OpenDocument presentation": ("lxml.etree",),
    "OpenDocument spreadsheet": ("lxml.etree",),
    "EPUB book": ("lxml.etree",),
    "workbook": ("openpyxl", "openpyxl.chart", "lxml.etree", "xlrd"),
}
"""What each parser imports when it first reads."""


def load_packages(parser: str) -> None:
    """Import what a parser needs, before a process forks for its files."""
    for name in _PACKAGES.get(parser, ()):
        with suppress(ImportError):  # its files are then said to be unreadable
            import_module(name)


__all__ = [
    "PARSERS",
    "read_article",
    "read_docx",
    "read_epub",
    "read_mail",
    "read_notebook",
    "read_odp",
    "read_ods",
    "read_odt",
    "read_pdf",
    "read_pptx",
    "read_rtf",
    "read_workbook",
    "read_xls",
    "read_xlsx",
]
